"""The engine and the policies of small simulations."""

from __future__ import annotations

from router.config import schema
from router.lab.engine_profile import EngineProfile

PROFILE = EngineProfile(
    name="test",
    kv_tokens=200_000,
    kv_bytes_per_token=1.0,
    us_per_token=60.0,
    ns_per_pair=1.5,
    us_per_decode=80.0,
    weights_ms=10.0,
    ns_per_context_token=50.0,
    step_ms=2.0,
)
WARM = schema.PolicyConfig.model_validate({"filters": [{"name": "near_longest"}], "scorers": [{"name": "warm"}]})
LEAST = schema.PolicyConfig.model_validate({"scorers": [{"name": "least_requests"}]})
