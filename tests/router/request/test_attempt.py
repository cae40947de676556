"""One attempt, as far as it can be tested alone; as a whole it is tested in `tests/e2e`."""

from __future__ import annotations

from router.config.schema import PolicyConfig, WeightedPluginConfig
from router.proxy.relay import RelayNotStarted
from router.request.attempt import keep_prefilled
from router.request.response_observer import PrefilledKv
from router.scheduling.policy.policy import build_policy
from router.scheduling.policy.record import PrefillRecord
from tests.suites.views import a_row, a_view

DECISION = build_policy("p", PolicyConfig(scorers=[WeightedPluginConfig(name="round_robin")])).decide(
    a_view(a_row("a"))
)


def test_handed_over_kv_is_kept_while_no_engine_fetched_it_and_its_lease_runs() -> None:
    prefilled = PrefilledKv(b"{}", until_s=30.0, leg=PrefillRecord(DECISION, None, None, "ok"))
    assert keep_prefilled(prefilled, RelayNotStarted("connect"), 29.9) is prefilled
    assert keep_prefilled(prefilled, RelayNotStarted("connect"), 30.0) is None
    assert keep_prefilled(prefilled, RelayNotStarted("busy"), 1.0) is None, "who turns it away lets it go"
    assert keep_prefilled(prefilled, RelayNotStarted("died"), 1.0) is None, "it may have fetched it, which frees it"
    assert keep_prefilled(None, RelayNotStarted("connect"), 1.0) is None
