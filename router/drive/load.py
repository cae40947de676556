"""`warmroute load`: agents in a closed loop against any endpoint, and what they got.

So many agents at once; one that has ended its session is followed by the next. Each names its session in
`X-Session-ID`, so a router can tell them apart. Prompts are token ids, as the client's docstring says why.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import quantiles

from rich import box
from rich.console import Console
from rich.table import Table

from router.clock import Clock
from router.drive.agents import Asked, Turns, converse
from router.drive.cancelling import cancellable
from router.drive.client import Client, Failed
from router.drive.site import VOCABULARY
from router.sim.workloads import Session, Workload


@dataclass
class Loaded(Turns):
    interrupted: bool = False


async def load(
    url: str, model: str, workload: Workload, at_once: int, clock: Clock, progress: Callable[[int, int], None]
) -> Loaded:
    """Every session of `workload`, `at_once` of them at a time. A cancellation ends it with what there is.

    `progress` is told how many turns are over and how many of them failed.
    """
    loaded = Loaded()
    failed = 0

    def done(one: Asked) -> None:
        nonlocal failed
        loaded.asked.append(one)
        failed += isinstance(one.answer, Failed)
        progress(len(loaded.asked), failed)

    began_s = clock.now()
    waiting = iter(workload.sessions)
    async with Client(url, model, clock) as client:
        with cancellable(loaded):
            await asyncio.gather(*(_agent(client, waiting, workload.seed, done) for _ in range(at_once)))
    loaded.took_s = clock.now() - began_s
    return loaded


async def _agent(client: Client, waiting: Iterator[Session], seed: int, done: Callable[[Asked], None]) -> None:
    for session in waiting:
        await converse(client, session, seed, VOCABULARY, done, name=f"{seed}-{session.number}")


def table(loaded: Loaded, title: str) -> Table:
    answers = loaded.answers
    shown = Table(title=title, box=box.SIMPLE, show_header=False)
    shown.add_column("what", no_wrap=True)
    shown.add_column("value", justify="right", no_wrap=True)
    shown.add_row("turns answered / failed", f"{len(answers)} / {len(loaded.failures)}")
    if len(answers) > 1:
        cuts = quantiles([answer.ttft_ms for answer in answers], n=100, method="inclusive")
        shown.add_row("TTFT ms p50 / p90 / p99", " / ".join(f"{cuts[at]:.0f}" for at in (49, 89, 98)))
    prompt = sum(answer.prompt_tokens for answer in answers if answer.cached_tokens is not None)
    cached = sum(answer.cached_tokens or 0 for answer in answers)
    if prompt:
        shown.add_row("prompt tokens from a cache", f"{cached / prompt:.1%} of {prompt:,}")
    if loaded.took_s > 0:
        shown.add_row("turns per second", f"{len(answers) / loaded.took_s:.1f}")
    for target, turns in sorted(Counter(answer.target or "?" for answer in answers).items()):
        shown.add_row(f"turns at {target}", str(turns))
    reasons = Counter(f"{one.status or 'no answer'}: {one.reason}" for one in loaded.failures)
    for reason, times in reasons.most_common(3):
        shown.add_row(f"[red]failed {times}x[/]", reason[:100])
    return shown


def report(console: Console, loaded: Loaded, title: str) -> None:
    console.print(table(loaded, title))
    if loaded.interrupted:
        console.print("interrupted: this is only a part", style="yellow")
