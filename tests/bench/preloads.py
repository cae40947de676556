"""What prefixes loaded ahead bring, in the simulator: copies of hot prefixes, and hand-off before a drain.

    python -m tests.bench.preloads copies [--instances 8,32] [--policies warm,llmd_affinity_gate] [--seeds 3]
    python -m tests.bench.preloads handoff [--seeds 4]

The router's own parts plan, place, book, price and count what is loaded (`features/preload`, TODO),
within 2 % of the fleet's prefill time; engines and clients are the simulator's. Profile `qwen3-32b-2xh100`.

copies: every two minutes another document of 20,000 tokens is asked about for one minute, by half of all requests.
handoff: sessions with 60 or 40 documents; one of eight engines is drained at 260 s, either at once or handed off from
200 s on. The figures are those of the requests sent from 200 s to 350 s, which the loading holds up, too.
"""

from __future__ import annotations

import argparse
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import mean
from typing import Any, Literal, NamedTuple, cast

from router.config.schema import PolicyConfig
from router.features.preload.book import Reason
from router.features.preload.booking import PreloadBooking, book_preload, settle_preload
from router.features.preload.budget import PreloadBudget
from router.features.preload.copies import WINDOW_S, find_missing_copy
from router.features.preload.handoff import plan_handoff
from router.features.preload.placement import find_place
from router.features.preload.plan import MIN_SESSIONS, HotPrefix
from router.features.preload.recent_prompts import RecentPrompt
from router.fleet.instance import Target
from router.kvcache.events import Key, TargetId
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.lab.rng import Rng
from router.lab.simulator.clients import ClientTurn
from router.lab.simulator.fast_engine import EngineJob
from router.lab.simulator.outcome import SimulationFigures, compute_figures
from router.lab.simulator.router import MODEL, instance_name, instance_number
from router.lab.simulator.run import _Run
from router.lab.simulator.scenario import Scenario
from router.lab.sweep.options import load_policies, load_profile
from router.lab.workloads.arrivals import OpenArrivals
from router.lab.workloads.block_names import NamedTokens
from router.lab.workloads.distributions import LogNormal, draw_gap_s, draw_uniform
from router.lab.workloads.model import Span, Workload
from router.lab.workloads.presets import SharedPrefixWorkload
from router.prompt.usage import Usage
from router.scheduling.scheduler import Scheduler
from router.telemetry.shared_prefixes import WINDOW_S as LONG_WINDOW_S

Mode = Literal["off", "copies", "handoff"]
SHARE = 0.02
POLL_S = 0.05
ROUND_S = 1.0
PROFILE = load_profile("qwen3-32b-2xh100")
HAND_OFF_S, DRAIN_S, END_S = 200.0, 260.0, 350.0
DOCUMENTS = (8, 60, 20_000), (4, 40, 40_000), (2, 60, 20_000)  # requests per second, documents, tokens of each
LEAVING = 3
LEAVING_TARGET = TargetId(f"{instance_name(LEAVING)}/0")


class Sent(NamedTuple):
    """A request as it is counted."""

    at_s: float
    prefixes: tuple[Key, ...]
    session: int


class Load(NamedTuple):
    """A prefix on its way."""

    booking: PreloadBooking
    prompt: RecentPrompt


class PreloadingRun(_Run):
    """A simulation in which the first router loads prefixes ahead."""

    mode: Mode = "off"
    drains = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._budget = PreloadBudget(SHARE)
        self._sent: deque[Sent] = deque()
        self._prompts: dict[Key, RecentPrompt] = {}
        self._plan: list[RecentPrompt] = []
        self.loading = 0
        if self.mode == "copies":
            self._event_queue.at(ROUND_S, self._make_copy)
        if self.drains:
            self._event_queue.at(HAND_OFF_S, self._hand_off)
            self._event_queue.at(DRAIN_S, self._drain)

    @property
    def core(self) -> Scheduler:
        return self.routers[0].scheduler

    def _send(self, turn: ClientTurn) -> None:
        names = self._prompt(turn)
        keys = tuple(Key(names[(1 << i) - 1]) for i in range(len(names).bit_length()))
        self._sent.append(Sent(self._event_queue.now_s, keys, turn.session.number))
        if keys:
            # One "token" per block, the block's name: what is cut from it is the names of a prefix.
            prompt = RecentPrompt(array("I"), 1, keys, MODEL, None)
            whole = cast("array[int]", names[: 1 << (len(keys) - 1)])
            self._prompts |= dict.fromkeys(keys, prompt._replace(ids=whole))
        super()._send(turn)

    def _count(self, window_s: float) -> list[HotPrefix]:
        """Return the prefixes of several sessions, as `count_sessions` does."""
        since_s = self._event_queue.now_s - window_s
        recent = [sent for sent in self._sent if sent.at_s >= since_s]
        requests = Counter(key for sent in recent for key in sent.prefixes)
        sessions: dict[Key, set[int]] = {}
        blocks: dict[Key, int] = {}
        for sent in recent:
            for i, key in enumerate(sent.prefixes):
                sessions.setdefault(key, set()).add(sent.session)
                blocks[key] = 1 << i
        return [
            HotPrefix(key, blocks[key], len(who), requests[key], len(recent))
            for key, who in sessions.items()
            if len(who) >= MIN_SESSIONS
        ]

    def _make_copy(self) -> None:
        if self._clients.at_work:
            self._event_queue.at(self._event_queue.now_s + ROUND_S, self._make_copy)
        if self.loading:
            return
        targets = {target.id: target for target in self.core.fleet.candidates(MODEL, (), self._event_queue.now_s)}
        requests = {id: target.load_book.requests for id, target in targets.items()}
        missing = find_missing_copy(self._count(WINDOW_S), self._prompts, requests, self._holders)
        if missing is not None:
            holding = self._holders(missing.prompt.prefixes[-1])
            self._begin([one for id, one in targets.items() if id not in holding], missing.prompt, "copy")

    def _hand_off(self) -> None:
        if self.mode != "handoff":
            return
        self._plan = plan_handoff(self._count(LONG_WINDOW_S), self._prompts, self._is_only_there)[::-1]
        self._hand_over()

    def _holders(self, key: Key) -> list[TargetId]:
        return self.core.indexer.holders(key)[0]

    def _is_only_there(self, key: Key) -> bool:
        return self._holders(key) == [LEAVING_TARGET]

    def _hand_over(self) -> None:
        if self._event_queue.now_s >= DRAIN_S or not self._plan:
            return
        prompt = self._plan.pop()
        others = [target for target in self.core.fleet.targets_serving(MODEL) if target.id != LEAVING_TARGET]
        if self._is_only_there(prompt.prefixes[-1]):
            self._begin(others, prompt, "drain")
        else:
            self._hand_over()

    def _drain(self) -> None:
        for router in self.routers:
            router.scheduler.drain(instance_name(LEAVING), True)

    # the mechanism

    def _begin(self, candidates: Iterable[Target], prompt: RecentPrompt, reason: Reason) -> None:
        names = prompt.ids
        size = self._scenario.block_tokens
        tokens = cast("array[int]", NamedTokens(names, size))
        known = TokenizedPrompt(tokens, True, "given", {size: cast("Sequence[Key]", names)}, 0.0, 0.0)
        place = find_place(self.core, list(candidates), known, self._event_queue.now_s)
        if place is None:
            self._hand_over()
            return
        self.loading += 1
        self._wait(place, prompt, known, reason)

    def _wait(self, place: Target, prompt: RecentPrompt, known: TokenizedPrompt, reason: Reason) -> None:
        """Send it when its target computes no other prompt and the budget allows it, as `Preloader` does."""
        now = self._event_queue.now_s
        busy = place.load_book.prefilling or place.load_book.gauges.waiting
        if busy or self._budget.saved_ms(self._scenario.instances, now) <= 0:
            self._event_queue.at(now + POLL_S, self._wait, place, prompt, known, reason)
            return
        booking = book_preload(self.core, place, known, reason, None, now)
        self._budget.charge(booking.price_ms())
        number = instance_number(place.instance.id)
        self._cluster.poll_soon(number)
        job = EngineJob(prompt.ids, len(known.ids), 1, Load(booking, prompt))
        assert self._cluster.submit(job, number), "an engine's queue has no limit here"

    def on_first_token(self, job: EngineJob) -> None:
        if not isinstance(job.tag, Load):
            super().on_first_token(job)

    def on_done(self, job: EngineJob, number: int) -> None:
        if not isinstance(job.tag, Load):
            super().on_done(job, number)
            return
        self.loading -= 1
        usage, now = Usage(job.prompt_tokens, job.cached_tokens, 1), self._event_queue.now_s
        loaded = settle_preload(self.core, job.tag.booking, usage, now, now)
        self.book.note(job.tag.booking.reason, loaded, job.tag.prompt.prefixes)
        self._hand_over()


def flash(seed: int, requests: int, per_s: float, document: int = 20_000) -> Workload:
    """Return an open loop of questions, half of them about one document for the first of every two minutes."""
    rng, arrivals, at_s = Rng(seed), OpenArrivals(), 0.0
    documents: dict[int, Span] = {}

    def tokens(average: int) -> int:
        return 1 + round(2 * average * draw_uniform(rng))

    for _ in range(requests):
        number = int(at_s // 120)
        spans = (Span(rng.bits(), tokens(4_000)),)
        if at_s % 120 < 60 and draw_uniform(rng) < 0.5:
            spans = documents.setdefault(number, Span(rng.bits(), document)), Span(rng.bits(), tokens(600))
        arrivals.add(at_s, spans, 1 + tokens(150))
        at_s += draw_gap_s(rng, per_s)
    return Workload("flash", seed, arrivals, is_closed=False)


def documents(seed: int, per_s: float, count: int, tokens: int) -> Workload:
    """Return an open loop of questions about so many documents, all asked about equally often."""
    return SharedPrefixWorkload(
        name="documents",
        requests=round(400 * per_s),
        per_s=per_s,
        prefixes=count,
        zipf=0.0,
        prefixed=1.0,
        prefix_tokens=LogNormal(tokens, 0.5),
        own_tokens=LogNormal(600, 0.5),
        alone_tokens=LogNormal(600, 0.0),
        output_tokens=LogNormal(150, 0.5),
    ).workload(seed)


class Result(NamedTuple):
    figures: SimulationFigures
    loaded: int  # tokens
    hit: int  # of these, by the first request that asked
    lost: int


def run(mode: Mode, policy: PolicyConfig, workload: Workload, seed: int, instances: int, *, drains: bool) -> Result:
    kind = type("Run", (PreloadingRun,), {"mode": mode, "drains": drains})
    scenario = Scenario(profile=PROFILE, instances=instances)
    one: PreloadingRun = kind(scenario, policy, workload.sessions, seed, END_S if drains else None, None, None)
    outcome = one.serve(None, False)
    assert outcome.double_bookings <= one.loading, "what is on its way at the end is booked"
    book = one.book
    settled = {end: sum(n for (_, how), n in book.settled_tokens.items() if how == end) for end in ("hit", "lost")}
    window = (HAND_OFF_S, END_S) if drains else (0.0, None)
    return Result(
        compute_figures(outcome, since_s=window[0], until_s=window[1]), sum(book.loaded_tokens.values()), **settled
    )


def compare(
    name: str, modes: Sequence[Mode], make: Callable[[int], Workload], policy: str, seeds: int, **how: Any
) -> None:
    """Print a line per mode: means over the seeds."""
    rules = load_policies([policy])[policy]
    workloads = [make(seed) for seed in range(1, seeds + 1)]
    for mode in modes:
        results = [run(mode, rules, one, seed, **how) for seed, one in enumerate(workloads, 1)]
        figures = [result.figures for result in results]
        columns = [
            mean(1e3 * (one.ttft_mean_s or 0) for one in figures),
            mean(1e3 * (one.ttft_p90_s or 0) for one in figures),
            mean(1e3 * (one.ttft_p99_s or 0) for one in figures),
            mean(1e3 * (one.tpot_p90_s or 0) for one in figures),
            mean(100 * (one.hit_share or 0) for one in figures),
        ]
        loaded, hit, lost = (sum(part) for part in zip(*(result[1:] for result in results), strict=True))
        cells = " | ".join(f"{value:,.0f}" for value in columns[:4])
        print(
            f"| {name} | `{policy}` | {mode} | {cells} | {columns[4]:.2f} | {loaded:,} | {hit:,} | {lost:,} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("copies", "handoff"))
    parser.add_argument("--instances", default="8,32")
    parser.add_argument("--policies", default="warm,llmd_affinity_gate")
    parser.add_argument("--loads", default="0,1,2", help="of handoff")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    print("| load | policy | | TTFT mean, ms | p90 | p99 | TPOT p90, ms | hits, % | loaded tokens | hit | lost |")
    print("|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    policies = options.policies.split(",")
    if options.what == "handoff":
        for per_s, count, tokens in [DOCUMENTS[int(number)] for number in options.loads.split(",")]:
            name = f"{count} documents of {tokens:,}, {per_s}/s"
            make = partial(documents, per_s=per_s, count=count, tokens=tokens)
            compare(name, ("off", "handoff"), make, policies[0], options.seeds, instances=8, drains=True)
        return
    for instances in map(int, options.instances.split(",")):
        for policy in policies:
            per_s = 2 * instances
            make = partial(flash, requests=150 * per_s, per_s=per_s)
            name = f"{instances} instances, {per_s}/s"
            compare(name, ("off", "copies"), make, policy, options.seeds, instances=instances, drains=False)


if __name__ == "__main__":
    main()
