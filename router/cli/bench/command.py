"""The benchmarks as commands see them: progress while they run, then tables, a JSON file, a chart."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from router.cli.bench import charts, tables
from router.cli.terminal.drawing import require
from router.cli.terminal.interrupt import cancellable
from router.cli.terminal.output import progress_bar, readable_console, versions, when_of, write_json
from router.clock import Clock, SystemClock
from router.testbed.bench import summary
from router.testbed.bench.agents import AgentsReport, BenchArm, compare_arms, default_arms
from router.testbed.bench.cache_tiers import KINDS, TierReport, measure_tiers
from router.testbed.bench.environment import BenchFailed, EnvironmentFactory, read_engine_facts
from router.testbed.workloads import Workload


async def bench_layers(
    stage: EnvironmentFactory,
    out: Path,
    tokens: int,
    repetitions: int,
    seed: int | None,
    chart: bool,
    clock: Clock | None = None,
    console: Console | None = None,
) -> bool:
    """Writes `layers.json` and `layers.png` to the folder `out`. False: interrupted, and so only a part.

    Without a seed the prompts are new ones, so that engines that have run this before do not remember them.
    """
    clock, console = clock or SystemClock(), console or readable_console()
    if chart:
        require()
    async with stage(True) as site:
        if len(site.engines) < 2:
            raise BenchFailed("two engines are needed: one to fill the pool, one to find it there")
        chosen = int(clock.wall()) if seed is None else seed
        facts = await read_engine_facts(site)
        seen = TierReport(tokens, chosen, f"{versions()}, {facts.version}", facts.block_tokens)
        with progress_bar(console) as progress, cancellable(seen):
            bar = progress.add_task("layers", total=2 + len(KINDS) * repetitions)

            def step(kind: str) -> None:
                progress.update(bar, description=f"asking: {kind}", completed=progress.tasks[bar].completed + 1)

            await measure_tiers(site, seen, repetitions, clock, step)
    console.print(tables.layers_table(seen))
    if (store := tables.store_table(seen)) is not None:
        console.print(store)
    console.print(tables.layers_remarks(seen), soft_wrap=True)
    when = when_of(clock)
    write_json(console, out / "layers.json", summary.layers_json(seen, when))
    if chart and seen.measurements:
        charts.layers_chart(seen, when, out / "layers.png")
        console.print(f"written: {out / 'layers.png'}", soft_wrap=True)
    return not seen.interrupted


async def bench_agents(
    stage: EnvironmentFactory,
    out: Path,
    workload: Workload,
    policy: str,
    chart: bool,
    clock: Clock | None = None,
    console: Console | None = None,
) -> bool:
    """Writes `agents.json`, `agents.png` and the routers' logs to the folder `out`. False: only a part.

    `policy` is the cache-aware one.
    """
    clock, console = clock or SystemClock(), console or readable_console()
    if chart:
        require()
    report, chosen = AgentsReport(workload, versions()), default_arms(policy)
    with progress_bar(console) as progress, cancellable(report):
        bars = {arm: progress.add_task(arm.name, total=workload.turns) for arm in chosen}

        def done(arm: BenchArm, turns: int) -> None:
            progress.update(bars[arm], completed=turns)

        await compare_arms(report, chosen, stage, out, clock, done)
    console.print(tables.agents_table(report))
    console.print(tables.agents_remarks(report), soft_wrap=True)
    when = when_of(clock)
    write_json(console, out / "agents.json", summary.agents_json(report, when))
    if chart and any(outcome.answers for outcome in report.outcomes):
        charts.agents_chart(report, when, out / "agents.png")
        console.print(f"written: {out / 'agents.png'}", soft_wrap=True)
    return not report.interrupted
