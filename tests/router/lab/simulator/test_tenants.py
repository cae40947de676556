"""Tenants side by side in the simulator: shares by weight, a greedy one, deadlines, each at a small scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest

from router.config.sections.admission import AdmissionConfig
from router.features.admission.fair_order import FairOrder
from router.lab.simulator.outcome import RequestEnd, SimulationOutcome, quantile
from router.lab.simulator.run import simulate_tenants
from router.lab.simulator.scenario import Scenario
from router.lab.simulator.tenants import TenantLoad
from router.lab.sweep import options
from router.lab.workloads.presets import TOOLS
from scorers.admission.contract import Admission

UNTIL_S = 90.0
FULL_PER_S = 2.2  # requests that one instance serves


@cache
def load(number: int, rho: float) -> TenantLoad:
    per_s = rho * FULL_PER_S
    tools = replace(TOOLS, requests=int(per_s * UNTIL_S) + 1, per_s=per_s)
    return TenantLoad(f"t{number}", tools.workload(number + 1))


def serve(rule: str, tenants: Sequence[TenantLoad]) -> SimulationOutcome:
    admission = AdmissionConfig.model_validate({"enabled": True, "rule": {"name": rule}, "max_wait_s": 1e6})
    profile = replace(options.load_profile("qwen3-32b-2xh100"), kv_tokens=1_000_000)
    scenario = Scenario(profile=profile, instances=1, admission=admission)
    outcome = simulate_tenants(scenario, options.load_policies(["warm"])["warm"], tenants, seed=1, until_s=UNTIL_S)
    assert outcome.double_bookings == 0
    return outcome


def rows_of(outcome: SimulationOutcome, tenant: int, tenants: int) -> list[int]:
    return [row for row, session in enumerate(outcome.session) if session % tenants == tenant]


def p90_s(outcome: SimulationOutcome, tenant: int, tenants: int) -> float:
    return quantile(sorted(outcome.ttft_s[row] for row in rows_of(outcome, tenant, tenants)), 0.9) or 0.0


def test_the_fleet_is_shared_by_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the router charges, from 20 s to 90 s while both wait all the time. The tokens of the requests that begin in
    so short a window differ more: charges are corrected when answers end.
    """
    seen: list[tuple[float, dict[str | None, float]]] = []
    begin = FairOrder.begin

    def noted(order: FairOrder, admission: Admission, tokens: float, now: float) -> None:
        begin(order, admission, tokens, now)
        seen.append((now, {share.name: share.charged_tokens for share in order.shares() if share.waiting}))

    monkeypatch.setattr(FairOrder, "begin", noted)
    serve("saturation", [load(0, 3.0), load(1, 3.0)._replace(weight=3.0)])
    within = [charged for at_s, charged in seen if 20.0 <= at_s < UNTIL_S]
    assert all(len(charged) == 2 for charged in within), "both wait"
    one, other = (within[-1][name] - within[0][name] for name in ("t0", "t1"))
    assert other / one == pytest.approx(3.0, rel=0.05)


def test_a_modest_tenant_hardly_notices_a_greedy_one() -> None:
    loads = [load(0, 0.2), load(1, 3.0)]
    alone, without, fair = serve("none", loads[:1]), serve("none", loads), serve("saturation", loads)
    assert p90_s(without, 0, 2) > 20 * p90_s(alone, 0, 1)
    assert p90_s(fair, 0, 2) < 5 * p90_s(alone, 0, 1)


def test_deadlines_are_met_at_least_as_often_as_with_edf() -> None:
    loads = [load(0, 1.5)._replace(ttft_ms=(2000.0, 8000.0))]
    good = {}
    for rule in ("edf", "saturation"):
        outcome = serve(rule, loads)
        ok = [row for row in range(len(outcome)) if outcome.end[row] == RequestEnd.OK]
        good[rule] = sum(outcome.ttft_s[row] <= (2.0 if outcome.session[row] % 2 == 0 else 8.0) for row in ok)
        if rule == "saturation":
            assert RequestEnd.SHED in outcome.end, "what would come too late is refused"
    assert good["saturation"] >= good["edf"]
