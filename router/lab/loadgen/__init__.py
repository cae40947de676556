"""The load generator: workloads sent to a running endpoint as real requests, and the report of what it answered."""
