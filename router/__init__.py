"""Warmroute, a cache-aware router for vLLM fleets. `docs/design/packages.md` describes the packages."""

import scorers  # noqa: F401  WARMROUTE_PURE=1 takes effect before any module is imported
