"""Warmroute, a cache-aware router for vLLM fleets. `docs/reference/modules.md` lists the modules."""

import scorers  # noqa: F401  WARMROUTE_PURE=1 takes effect before any module is imported
