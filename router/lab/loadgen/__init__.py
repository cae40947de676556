"""The load generator: sends workloads to a running endpoint as real requests, and reports the answers."""
