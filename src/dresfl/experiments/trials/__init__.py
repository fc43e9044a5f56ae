"""A whole federation on one machine, as real processes, with real faults."""
