"""The load client and the benchmarks: requests to servers that run, and what they and their counters say."""
