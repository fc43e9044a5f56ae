"""Runtimes move bytes, keep a clock and a disk, and decide nothing: one process, gRPC, Flower."""
