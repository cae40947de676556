"""How fast the real CPU stack is, in the numbers of a profile: `python -m tests.agreement.fit_stack FOLDER`.

Two engines over a store are started as `tests.bench.real_stack` starts them; one of them is asked, alone, for

    prompts of several lengths after contexts of several lengths that it has cached   -> TTFT
    answers of several requests at once over contexts of several lengths              -> time per token
    prompts that only the store has                                                   -> TTFT beyond that of a local hit

and the terms of `router/lab/engine_profile.py` are fitted to those times. What is printed stands in
`configs/profiles/cpu-tiny.yaml`. A prompt is not timed before the one before it is saved. The samples stay in the
folder; with `--again` they are fitted anew, without a stack.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import httpx
import msgspec
import numpy as np

from router.clock import SystemClock
from router.config.reader import read_config
from router.lab.loadgen.client import ClientAnswer, LoadClient
from router.lab.loadgen.conversations import VOCABULARY
from router.lab.sweep.options import load_profile
from router.lab.workloads.model import Span, make_token_ids
from tests.bench.real_stack.engine_counters import MasterCounts, fetch_counters
from tests.bench.real_stack.environment import Environment, environment_factory

ROOT = Path(__file__).parents[2]
REPETITIONS = 3
PROMPTS = (256, 512, 1024, 2048, 4096, 8192, 12_288)
CONTEXTS, AFTER = (2048, 6144, 12_288), (128, 512, 2048)
TOGETHER, BENEATH = (1, 2, 4, 8), (256, 2048, 6144)
ANSWER_TOKENS = 48
LOADED = (512, 2048, 6144, 12_288)
SAMPLES = "samples.json"


class Prefill(NamedTuple):
    new: int
    context: int
    ms: float


class Decode(NamedTuple):
    batch: int
    context: int  # of each
    ms: float  # per step


class Load(NamedTuple):
    tokens: int
    ms: float  # beyond a local hit of the same prompt


class Samples(NamedTuple):
    prefills: list[Prefill]
    decodes: list[Decode]
    loads: list[Load]


class Fit(NamedTuple):
    """The profile's terms, what it leaves out, and by how much the times are missed (root of the mean square)."""

    step_ms: float
    ns_per_context_token: float
    us_per_token: float
    ns_per_pair: float
    prompt_ms: float  # per prompt, beside its steps: HTTP, the store's lookup
    load_base_ms: float
    load_us_per_token: float
    prefills_missed: float
    decodes_missed: float
    loads_missed: float


def fit(samples: Samples, batched_tokens: int) -> Fit:
    """A step that only decodes is step_ms and the reading of all contexts; with that step_ms, a prompt is its steps,
    its tokens, its pairs and something of its own.
    """
    (step_ms, ns_context), decodes_missed = _fitted(
        [(1.0, 1e-6 * each.batch * each.context) for each in samples.decodes], [each.ms for each in samples.decodes]
    )
    chunks = [-(-each.new // batched_tokens) for each in samples.prefills]
    (prompt_ms, us_token, ns_pair), prefills_missed = _fitted(
        [(1.0, 1e-3 * each.new, 1e-6 * each.new * (each.context + each.new / 2)) for each in samples.prefills],
        [each.ms - step_ms * steps for each, steps in zip(samples.prefills, chunks, strict=True)],
    )
    (base_ms, us_loaded), loads_missed = _fitted(
        [(1.0, 1e-3 * each.tokens) for each in samples.loads], [each.ms for each in samples.loads]
    )
    return Fit(
        step_ms, ns_context, us_token, ns_pair, prompt_ms, base_ms, us_loaded,
        prefills_missed, decodes_missed, loads_missed,
    )  # fmt: skip


def _fitted(features: Sequence[tuple[float, ...]], ms: Sequence[float]) -> tuple[list[float], float]:
    """Coefficients by least squares, each time weighing as much as any other by its own size."""
    own = np.array(ms)
    shares = np.array(features) / own[:, None]
    found = np.linalg.lstsq(shares, np.ones(len(ms)), rcond=None)[0]
    return [float(value) for value in found], float(np.sqrt(np.mean((shares @ found - 1) ** 2)))


class Bench:
    """Two engines, and prompts that nobody has seen."""

    def __init__(self, site: Environment, a: LoadClient, b: LoadClient, http: httpx.AsyncClient) -> None:
        self.a, self.b = a, b
        self._site, self._http = site, http
        self._source = 0

    def new(self, tokens: int) -> list[int]:
        self._source += 1
        return make_token_ids(Span(self._source, tokens), 7, VOCABULARY)

    async def ask(self, client: LoadClient, prompt: Sequence[int], tokens: int = 1) -> ClientAnswer:
        answer = await client.complete(prompt, tokens)
        assert isinstance(answer, ClientAnswer), answer
        return answer

    async def quiet(self) -> None:
        """Until the store has what was computed: saving takes the time of whoever computes."""
        assert self._site.master is not None
        before = None
        while before != (now := MasterCounts.read(await fetch_counters(self._http, self._site.master)).stored_keys):
            before = now
            await asyncio.sleep(0.15)

    async def prefill(self, new: int, context: Sequence[int] = ()) -> Prefill:
        answer = await self.ask(self.a, [*context, *self.new(new)])
        await self.quiet()
        cached = answer.cached_tokens or 0
        return Prefill(len(context) + new - cached, cached, answer.ttft_ms)

    async def decode(self, batch: int, context: int) -> Decode:
        """The last one to begin saw no prompt of the others."""
        prompts = [self.new(context) for _ in range(batch)]
        for prompt in prompts:
            await self.ask(self.a, prompt)
        await self.quiet()
        answers = await asyncio.gather(*(self.ask(self.a, prompt, ANSWER_TOKENS) for prompt in prompts))
        last = max(answers, key=lambda answer: answer.ttft_ms)
        return Decode(batch, context + ANSWER_TOKENS // 2, (last.total_ms - last.ttft_ms) / (last.output_tokens - 1))

    async def load(self, tokens: int) -> Load:
        prompt = self.new(tokens + 1)
        await self.ask(self.a, prompt)
        await self.quiet()
        first = await self.ask(self.b, prompt)
        await self.quiet()
        again = await self.ask(self.b, prompt)
        assert first.cached_tokens == again.cached_tokens == tokens // 128 * 128, (first, again)
        return Load(tokens, first.ttft_ms - again.ttft_ms)


async def measure(bench: Bench, seen: Samples) -> None:
    for _ in range(2):
        await bench.prefill(256)
        await bench.load(512)
    for repetition in range(REPETITIONS):
        print(f"repetition {repetition + 1} of {REPETITIONS}", file=sys.stderr)
        seen.prefills.extend([await bench.prefill(new) for new in PROMPTS])
        for context in CONTEXTS:
            cached = bench.new(context)
            await bench.ask(bench.a, cached)
            await bench.quiet()
            seen.prefills.extend([await bench.prefill(new, cached) for new in AFTER])
        for beneath in BENEATH:
            seen.decodes.extend([await bench.decode(batch, beneath) for batch in TOGETHER])
        seen.loads.extend([await bench.load(tokens) for tokens in LOADED])


async def run(folder: Path) -> None:
    """Leaves its samples in the folder, all there are when it is interrupted."""
    seen = Samples([], [], [])
    config = read_config(ROOT / "configs" / "stack-cpu.yaml")
    clock = SystemClock()
    async with (
        environment_factory(config, folder, print)(True) as site,
        httpx.AsyncClient(trust_env=False) as http,
        LoadClient(site.engines[0], site.model, clock) as a,
        LoadClient(site.engines[1], site.model, clock) as b,
    ):
        try:
            await measure(Bench(site, a, b, http), seen)
        finally:
            (folder / SAMPLES).write_bytes(msgspec.json.encode(seen))


def main() -> None:
    read = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    read.add_argument("folder", type=Path)
    read.add_argument("--again", action="store_true", help="fit the samples that are there")
    given = read.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if not given.again:
        asyncio.run(run(given.folder))
    samples = msgspec.json.decode((given.folder / SAMPLES).read_bytes(), type=Samples)
    print(f"{len(samples.prefills)} prompts, {len(samples.decodes)} batches, {len(samples.loads)} loads")
    for name, value in fit(samples, load_profile("cpu-tiny").batched_tokens)._asdict().items():
        print(f"{name:22}{value:10.4g}")


if __name__ == "__main__":
    main()
