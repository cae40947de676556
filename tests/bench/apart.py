"""Rows whose measurements have a module of their own, which also runs alone; their figures get their bars here."""

from __future__ import annotations

import subprocess

from router.lab.local_stack.install import InstallFailed
from tests.bench import decisions, handed, index, workers
from tests.bench.figures import Bar, Line, beside
from tests.bench.routers import peers_venv
from tests.bench.row import BenchRun, Row

DYNAMO = "Dynamo RadixTree"
MILLION = 1e6


def deciding(run: BenchRun) -> list[Line]:
    run.report("every policy of configs/policies at 64 targets")
    costs = decisions.measure(run.effort.of(7, 2))
    run.notes.append(", ".join(f"{cost.policy} decides in {cost.decision_us:.0f} us" for cost in costs))
    bar = Bar(decisions.BAR_US)
    every = [Line(f"{cost.policy} as a shadow", "us", [cost.shadow_us], bar=bar) for cost in costs]
    return [*every, Line("the dearest of them as a shadow", "us", [costs[-1].shadow_us], bar=bar)]


def two_workers(run: BenchRun) -> list[Line]:
    run.report("one worker and two, in turns")
    seen = workers.measure(run.effort.repetitions, run.effort.of(8000, 3000))
    points = [100 * abs(one - two) for one, two in zip(seen.hit_share[1], seen.hit_share[2], strict=True)]
    bar = Bar(workers.CPU_BAR, "ratio")
    return [
        beside("CPU per 200-byte request, 2 workers", "us", seen.small_us[2], seen.small_us[1], "1 worker", bar),
        Line("hit share of agents, 2 workers and 1: points apart", "", points, bar=Bar(100 * workers.HIT_BAR)),
    ]


def ids_handed(run: BenchRun) -> list[Line]:
    ratios = handed.measure(run.effort.repetitions, run.report)
    what = f"warm {handed.TOKENS:,}-token chat on a real vLLM: time to first token, through the router / direct"
    return [Line(what, "", [], ratios=ratios, bar=Bar(0.75, "ratio"))]


def indexing(run: BenchRun) -> list[Line]:
    repetitions, blocks = run.effort.repetitions, run.effort.of(1_000_000, 200_000)
    run.report(f"ours, {blocks:,} blocks")
    ours = index.measure(repetitions, blocks)
    theirs: list[index.Figures] = []
    try:
        run.report(f"{DYNAMO}, {blocks:,} blocks")
        theirs = index.measure_peer(peers_venv() / "bin" / "python", repetitions, blocks)
    except InstallFailed as why:
        run.notes.append(f"{DYNAMO} is left out: {why}")
    except subprocess.CalledProcessError as failed:
        run.notes.append(f"{DYNAMO} is left out: {failed.stderr.strip()}")
    of_all = [("from decoded events", "applied", Bar(3.0, sense=">=")), ("with key chaining", "chained", None)]
    of_all += [
        ("with wire decoding and key chaining", "decoded", Bar(1.5, sense=">=")),
        ("removals, one block each", "removed", None),
    ]
    every = "every chain at every target"
    return [
        *(_rate(f"index apply, {what}", *_both(field, ours, theirs), bar) for what, field, bar in of_all),
        *_matching("chains of agents", [one.sessions for one in ours], [one.sessions for one in theirs], Bar(100.0)),
        *_matching(every, [one.spread for one in ours], [one.spread for one in theirs], Bar(0.35, "ratio")),
    ]


def _both(field: str, ours: list[index.Figures], theirs: list[index.Figures]) -> tuple[list[float], list[float]]:
    """Return a figure by repetition, in millions; the peer's only where it was measured."""
    first, second = ([getattr(one, field) for one in some] for some in (ours, theirs))
    return [value / MILLION for value in first], [value / MILLION for value in second if value is not None]


def _rate(what: str, ours: list[float], theirs: list[float], bar: Bar | None) -> Line:
    return beside(what, "million blocks/s", ours, theirs, DYNAMO if theirs else "", bar)


def _matching(what: str, ours: list[index.Matched], theirs: list[index.Matched], bar: Bar) -> list[Line]:
    what = f"match of 5,000 blocks, {what}"
    peer = DYNAMO if theirs else ""
    return [
        beside(f"{what}, p50", "us", [m.p50_us for m in ours], [m.p50_us for m in theirs], peer, bar),
        beside(f"{what}, p99", "us", [m.p99_us for m in ours], [m.p99_us for m in theirs], peer, Bar(200.0)),
    ]


def index_memory(run: BenchRun) -> list[Line]:
    run.report("a million blocks over 64 targets")
    million = index.bytes_per_block()
    lines = [Line("index memory per (target, block), a million of them", "bytes", [million], bar=Bar(100.0))]
    if run.effort.quick:
        return lines
    low, high = min(index.FILLS), max(index.FILLS)
    run.report(f"from {low:,} to {high:,} blocks")
    fills = index.fills()
    run.notes.append(", ".join(f"{size:,} blocks: {held:.0f} bytes each" for size, held in fills.items()))
    return [*lines, Line(f"the same from {low:,} to {high:,} blocks", "bytes", sorted(fills.values()))]


ROWS = (
    Row("index", "index", indexing, 330, 20),
    Row("index-memory", "index memory", index_memory, 90, 12),
    Row("handed", "handing the engine the token ids", ids_handed, 100, 50),
    Row("decisions", "one decision at 64 targets, by policy", deciding, 20, 5),
    Row("workers", "two workers", two_workers, 120, 20),
)
