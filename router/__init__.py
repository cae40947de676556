"""Warmroute, the cache-aware router for LLM fleets. README.md here is the map of the modules."""
