"""Warmroute, a cache-aware router for vLLM fleets. `README.md` in this folder is the map of the modules."""
