"""The gRPC runtime: most tests run coordinator and sites as tasks of one process, over real TLS on loopback."""
