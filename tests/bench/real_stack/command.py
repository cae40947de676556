"""The benchmarks as commands run them: progress while they run, then tables, a JSON file, a chart."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from router.cli.terminal import drawing, output
from router.cli.terminal.output import cancellable
from router.clock import Clock, SystemClock
from router.lab.workloads.model import Workload
from tests.bench.real_stack import summary
from tests.bench.real_stack.agents import AgentsReport, BenchArm, compare_arms, default_arms
from tests.bench.real_stack.cache_tiers import KINDS, TierReport, measure_tiers
from tests.bench.real_stack.environment import BenchFailed, EnvironmentFactory, read_engine_facts
from tests.bench.real_stack.report import (
    agents_chart,
    agents_remarks,
    agents_table,
    layers_chart,
    layers_remarks,
    layers_table,
    store_table,
)


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
    """Write `layers.json` and `layers.png` to the folder `out`. Return False when interrupted: the report is partial.

    Without a seed the prompts are new ones, which engines that ran this before have not cached. Raises BenchFailed
    with fewer than two engines, WarmrouteError for a file that cannot be written.
    """
    clock, console = clock or SystemClock(), console or output.readable_console()
    if chart:
        drawing.require()
    async with stage(True) as site:
        if len(site.engines) < 2:
            raise BenchFailed("two engines are needed: one fills the pool, the other loads from it")
        prompt_seed = int(clock.wall()) if seed is None else seed
        facts = await read_engine_facts(site)
        report = TierReport(tokens, prompt_seed, f"{output.versions()}, {facts.version}", facts.block_tokens)
        with output.progress_bar(console) as progress, cancellable(report):
            bar = progress.add_task("layers", total=2 + len(KINDS) * repetitions)

            def step(kind: str) -> None:
                progress.update(bar, description=f"prompt: {kind}", completed=progress.tasks[bar].completed + 1)

            await measure_tiers(site, report, repetitions, clock, step)
    console.print(output.render(layers_table(report)))
    if (store := store_table(report)) is not None:
        console.print(output.render(store))
    console.print(layers_remarks(report), soft_wrap=True, markup=False)
    when = output.format_now(clock)
    output.write_json(console, out / "layers.json", summary.layers_json(report, when))
    if chart and report.measurements:
        layers_chart(report, when, out / "layers.png")
        output.report_written(console, out / "layers.png")
    return not report.interrupted


async def bench_agents(
    stage: EnvironmentFactory,
    out: Path,
    workload: Workload,
    policy: str,
    chart: bool,
    clock: Clock | None = None,
    console: Console | None = None,
) -> bool:
    """Write `agents.json`, `agents.png` and the routers' logs to the folder `out`; `policy` is the cache-aware one.

    Return False when interrupted: the report is partial. Raises WarmrouteError for a file that cannot be written.
    """
    clock, console = clock or SystemClock(), console or output.readable_console()
    if chart:
        drawing.require()
    report, compared = AgentsReport(workload, output.versions()), default_arms(policy)
    with output.progress_bar(console) as progress, cancellable(report):
        bars = {arm: progress.add_task(arm.name, total=workload.turns) for arm in compared}

        def done(arm: BenchArm, turns: int) -> None:
            progress.update(bars[arm], completed=turns)

        await compare_arms(report, compared, stage, out, clock, done)
    console.print(output.render(agents_table(report)))
    console.print(agents_remarks(report), soft_wrap=True, markup=False)
    when = output.format_now(clock)
    output.write_json(console, out / "agents.json", summary.agents_json(report, when))
    if chart and any(outcome.answers for outcome in report.outcomes):
        agents_chart(report, when, out / "agents.png")
        output.report_written(console, out / "agents.png")
    return not report.interrupted
