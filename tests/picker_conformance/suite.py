"""Runs the cases against one picker, one after the other, and returns the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from router.clock import Clock
from router.errors import WarmrouteError
from tests.picker_conformance.case import CaseResult, ConformanceCase, skip
from tests.picker_conformance.cases import (
    body_modes,
    choice,
    health,
    refusals,
    request_body,
    response,
    service,
    subsets,
)
from tests.picker_conformance.channel import join_address, open_channel, speaks_tls, split_address
from tests.picker_conformance.describe import describe_request
from tests.picker_conformance.peer import PickerPeer, learn_fleet
from tests.picker_conformance.report import CaseReport, ConformanceReport

CASES: tuple[ConformanceCase, ...] = (
    *service.CASES,
    *choice.CASES,
    *subsets.CASES,
    *request_body.CASES,
    *refusals.CASES,
    *response.CASES,
    *body_modes.CASES,
    *health.CASES,
)


@dataclass(frozen=True)
class ConformanceOptions:
    """`address` is host:port of ext_proc; None: `health_port` is the same port, and `model` is asked for."""

    address: str
    health_port: int | None = None
    model: str | None = None
    endpoints: tuple[str, ...] = ()
    api_key: str | None = None
    timeout_s: float = 5.0
    cases: tuple[str, ...] = ()  # ids; none: all


def select_cases(ids: Sequence[str]) -> list[ConformanceCase]:
    """Return the cases with these ids, all of them for none. Raises WarmrouteError for an id that there is not."""
    known = {case.id for case in CASES}
    if wrong := [one for one in ids if one not in known]:
        raise WarmrouteError(f"no case {', '.join(wrong)}; there are {CASES[0].id} to {CASES[-1].id}")
    return [case for case in CASES if not ids or case.id in ids]


async def run_suite(
    options: ConformanceOptions, clock: Clock, on_case: Callable[[CaseReport], None] = lambda case: None
) -> ConformanceReport:
    """Return the report on the picker at an address; `on_case` hears of each case that was decided.

    Raises WarmrouteError when nobody listens there, when the picker refuses all requests as wrong, and for unknown
    case ids.
    """
    cases = select_cases(options.cases)
    host, port = split_address(options.address)
    tls = await speaks_tls(host, port, options.timeout_s)
    async with AsyncExitStack() as opened:
        channel = await opened.enter_async_context(open_channel(host, port, tls))
        health_channel = channel
        if options.health_port not in (None, port):
            # plaintext, because the probes of kubelets are
            health_channel = await opened.enter_async_context(open_channel(host, options.health_port or 0, False))
        peer = PickerPeer(channel, health_channel, options.timeout_s, options.api_key)
        peer = replace(peer, fleet=await learn_fleet(peer, options.model, options.endpoints))
        report = ConformanceReport(
            picker=join_address(host, port),
            tls=tls,
            at=datetime.fromtimestamp(clock.wall(), UTC).isoformat(timespec="seconds"),
            model=peer.fleet.model,
            endpoints=peer.endpoints,
        )
        for case in cases:
            result = await run_case(case, peer)
            told = CaseReport(
                case.id, case.level, case.clause, case.source, case.sent, case.expected, result.result, result.received
            )
            report.cases.append(told)
            on_case(told)
    return report


async def run_case(case: ConformanceCase, peer: PickerPeer) -> CaseResult:
    """Return the result of one case; it is skipped where it needs an endpoint and the picker has none."""
    if case.needs_endpoint and not peer.endpoints:
        why = "" if peer.fleet.refusal is None else f": {describe_request(peer.fleet.refusal)}"
        return skip(f"the picker chose no endpoint{why}")
    return await case.check(peer)
