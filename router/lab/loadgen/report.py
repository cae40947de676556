"""The report of a load: its requests as the simulator's columns, so that both have the same figures by the same
names.

A live endpoint reports how many prompt tokens were cached, but not in which tier: the shares by source stay empty,
and `hit_share` replaces them. The report also has the client's own delays, the deviation of real sizes from the
workload's, the answers by target, and failures by reason.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from router.lab.loadgen.conversations import Prompts
from router.lab.loadgen.load import SentRequest
from router.lab.simulator.outcome import RequestEnd, SimulationFigures, SimulationOutcome, compute_figures, quantile
from router.lab.workloads.model import Workload

UNKNOWN_TARGET = "?"  # the target when no router reports it


@dataclass
class LoadReport:
    """The state of a load so far."""

    url: str
    model: str
    workload: Workload
    prompts: Prompts
    text_seed: int
    concurrency: int | None  # agents of a closed loop; `None`: an open loop
    processes: int
    tokens_per_word: float | None  # as calibrated; `None`: prompts are token ids
    requests: list[SentRequest] = field(default_factory=list)
    process_failures: list[str] = field(default_factory=list)  # client processes that failed
    interrupted: bool = False

    @property
    def loop(self) -> str:
        return "open loop" if self.concurrency is None else f"closed loop, {self.concurrency} at once"

    @property
    def answers(self) -> list[SentRequest]:
        return [one for one in self.requests if one.failure is None]

    @property
    def failures(self) -> Counter[str]:
        failed = (one for one in self.requests if one.failure is not None)
        return Counter(f"{one.status or 'no answer'}: {one.failure}" for one in failed)


class ClientReport(NamedTuple):
    """The client's own deviation from the workload. Shares are real over requested tokens of answered requests."""

    late_p50_s: float | None
    late_p99_s: float | None
    late_max_s: float | None
    prompt_tokens_share: float | None
    output_tokens_share: float | None


class TargetReport(NamedTuple):
    """Answers of one target."""

    requests: int
    hit_share: float | None
    ttft_p50_s: float | None


def summarize_load(loaded: LoadReport) -> SimulationFigures:
    """Return the figures of the whole load; refusals with 429 count as `shed`, other failures as `failed`."""
    instances = {target: number for number, target in enumerate(sorted({target_name(one) for one in loaded.answers}))}
    outcome = SimulationOutcome(len(instances) or 1)
    for one in loaded.requests:
        _add(outcome, one, instances)
    outcome.took_s = max((one.sent_s + one.duration_s for one in loaded.requests), default=0.0)
    totals = compute_figures(outcome)._replace(local_share=None, host_share=None, pool_share=None)
    return totals if len(instances) > 1 else totals._replace(imbalance=None)


def _add(outcome: SimulationOutcome, one: SentRequest, instances: dict[str, int]) -> None:
    ok = one.failure is None
    outcome.arrived_s.append(one.sent_s)
    outcome.waited_s.append(0.0)
    outcome.ttft_s.append(float("nan") if one.ttft_s is None else one.ttft_s)
    outcome.duration_s.append(one.duration_s)
    outcome.session.append(one.session)
    outcome.instance.append(instances[target_name(one)] if ok else -1)
    outcome.prompt_tokens.append(one.prompt_tokens or 0)
    outcome.local_tokens.append(one.cached_tokens or 0)
    outcome.host_tokens.append(0)
    outcome.pool_tokens.append(0)
    outcome.output_tokens.append(one.output_tokens or 0)
    outcome.end.append(RequestEnd.OK if ok else RequestEnd.SHED if one.status == 429 else RequestEnd.FAILED)


def compute_hit_share(some: list[SentRequest]) -> float | None:
    """Return the share of cached prompt tokens over answers that report it; None if no answer does."""
    return _share((one.cached_tokens, one.prompt_tokens or 0) for one in some if one.cached_tokens is not None)


def summarize_client(loaded: LoadReport) -> ClientReport:
    """Return how late the client was, and real over requested sizes."""
    late, answered = sorted(one.late_s for one in loaded.requests), loaded.answers
    return ClientReport(
        late_p50_s=quantile(late, 0.5),
        late_p99_s=quantile(late, 0.99),
        late_max_s=late[-1] if late else None,
        prompt_tokens_share=_share((one.prompt_tokens or 0, one.planned_tokens) for one in answered),
        output_tokens_share=_share((one.output_tokens or 0, one.planned_output_tokens) for one in answered),
    )


def _share(pairs: Iterable[tuple[int, int]]) -> float | None:
    """Return the sum of the first numbers over the sum of the second ones; None without pairs."""
    rows = list(pairs)
    whole = sum(second for _, second in rows)
    return sum(first for first, _ in rows) / whole if whole else None


def group_by_target(loaded: LoadReport) -> dict[str, TargetReport]:
    """Return the answers by target, in order of target names."""
    rows: defaultdict[str, list[SentRequest]] = defaultdict(list)
    for one in loaded.answers:
        rows[target_name(one)].append(one)
    return {target: _describe_target(some) for target, some in sorted(rows.items())}


def _describe_target(some: list[SentRequest]) -> TargetReport:
    ttft_s = sorted(one.ttft_s or 0.0 for one in some)
    return TargetReport(len(some), compute_hit_share(some), quantile(ttft_s, 0.5))


def target_name(one: SentRequest) -> str:
    """Return the name of the target that answered; `UNKNOWN_TARGET` if no router reports it."""
    return one.target or UNKNOWN_TARGET


def load_json(loaded: LoadReport, versions: str, when: str) -> dict[str, Any]:
    """Return the report as JSON values, with all requests in the order of sending."""
    workload = loaded.workload
    sizes = {"sessions": len(workload.sessions), "turns": workload.turns}
    return {
        "when": when,
        "versions": versions,
        "url": loaded.url,
        "model": loaded.model,
        "workload": {"name": workload.name, "seed": workload.seed} | sizes,
        "loop": loaded.loop,
        "processes": loaded.processes,
        "prompts": loaded.prompts,
        "text_seed": loaded.text_seed,
        "tokens_per_word": loaded.tokens_per_word,
        "interrupted": loaded.interrupted,
        "troubles": loaded.process_failures,
        "figures": summarize_load(loaded)._asdict() | {"hit_share": compute_hit_share(loaded.answers)},
        "client": summarize_client(loaded)._asdict(),
        "targets": {target: at._asdict() for target, at in group_by_target(loaded).items()},
        "failures": dict(loaded.failures),
        "requests": [msgspec.structs.asdict(one) for one in sorted(loaded.requests, key=lambda one: one.sent_s)],
    }
