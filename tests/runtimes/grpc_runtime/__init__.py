"""The gRPC runtime: most tests run hub and sites as tasks of one process, over real TLS on loopback."""
