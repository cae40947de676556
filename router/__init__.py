"""Warmroute, a cache-aware router for vLLM fleets. `docs/reference/modules.md` lists the modules."""
