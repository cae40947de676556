"""The engine at a stride against the one that takes every step and makes every token."""

import dataclasses
import random
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.kvcache.events import BlocksCleared, BlocksRemoved, BlocksStored, TargetId
from router.kvcache.index import BlockIndex
from router.lab.engine_profile import EngineProfile
from router.lab.simulator import step_engine
from router.lab.simulator.block_cache import KvTier, TransferLink
from router.lab.simulator.engine_types import EngineShape, RequestId, SequenceRequest
from router.lab.simulator.fast_engine import EngineJob, EngineSurroundings, FastEngine
from router.lab.simulator.scenario import LinkSpeed
from router.lab.workloads.block_names import BlockNameKeyring, SessionContext
from router.lab.workloads.model import Span, make_token_ids
from tests.suites.properties import examples

BLOCK = 16
PLAIN = EngineProfile(
    name="plain",
    kv_tokens=4096,
    kv_bytes_per_token=1.0,
    us_per_token=100.0,
    ns_per_pair=50.0,
    us_per_decode=200.0,
    weights_ms=1.0,
    ns_per_context_token=500.0,
    step_ms=1.0,
    batched_tokens=256,
    max_seqs=8,
)


class Sent(NamedTuple):
    at_s: float
    spans: Sequence[Span]
    output_tokens: int

    @property
    def prompt_tokens(self) -> int:
        return sum(span.tokens for span in self.spans)


class Story(NamedTuple):
    first_s: float
    done_s: float
    cached_tokens: int


def by_steps(profile: EngineProfile, sent: Sequence[Sent]) -> list[Story]:
    """What the engine that takes every step does with them; `sent` is in order of time."""
    engine = step_engine.StepEngine(
        EngineShape(
            block_tokens=BLOCK,
            blocks=profile.kv_tokens // BLOCK,
            profile=profile,
            max_num_seqs=profile.max_seqs,
            max_num_batched_tokens=profile.batched_tokens,
        )
    )
    waiting, now, wake = list(enumerate(sent)), 0.0, None
    who: dict[RequestId, int] = {}
    firsts: dict[int, float] = {}
    stories: dict[int, Story] = {}
    while waiting or wake is not None:
        if waiting and (wake is None or waiting[0][1].at_s < wake):
            number, one = waiting.pop(0)
            now = one.at_s
            ids = [id for span in one.spans for id in make_token_ids(span, 0, range(1000, 2000))]
            answer = make_token_ids(Span(10_000 + number, one.output_tokens), 0, range(1000, 2000))
            id = engine.submit(SequenceRequest(ids, one.output_tokens, script=answer), now)
            assert not isinstance(id, str)
            who[id] = number
            if wake is None:
                wake = engine.step(now).next_wake_s
            continue
        assert wake is not None
        now = wake
        result = engine.step(now)
        for id, output in result.outputs.items():
            firsts.setdefault(who[id], now)
            if output.finish is not None:
                stories[who[id]] = Story(firsts[who[id]], now, output.cached_tokens)
        wake = result.next_wake_s
    return [stories[number] for number in range(len(sent))]


def by_strides(profile: EngineProfile, sent: Sequence[Sent], around: EngineSurroundings | None = None) -> list[Story]:
    engine = FastEngine(profile, BLOCK) if around is None else FastEngine(profile, BLOCK, around)
    waiting = list(enumerate(sent))
    firsts: dict[int, float] = {}
    stories: dict[int, Story] = {}
    while True:
        wakes = [at for at in (engine.until_s, engine.loads_until_s) if at is not None]
        wake = min(wakes, default=None)
        if waiting and (wake is None or waiting[0][1].at_s < wake):
            number, one = waiting.pop(0)
            context = SessionContext(BLOCK)
            for span in one.spans:
                context.add(span)
            context.add(Span(-1 - number, one.output_tokens))
            assert engine.submit(EngineJob(context.names, one.prompt_tokens, one.output_tokens, number), one.at_s)
            continue
        if wake is None:
            return [stories[number] for number in range(len(sent))]
        ended = engine.end(wake)
        engine.end_loads(wake)
        for job in ended.firsts:
            assert isinstance(job.tag, int)
            firsts[job.tag] = wake
        for job in ended.dones:
            assert isinstance(job.tag, int)
            stories[job.tag] = Story(firsts[job.tag], wake, job.cached_tokens)


def one(at_s: float, tokens: int, output: int, source: int = 1) -> Sent:
    return Sent(at_s, (Span(source, tokens),), output)


def test_a_lone_request_takes_what_the_profile_says() -> None:
    # 100 tokens: 100 x 100 us + 100 x 50 pairs x 50 ns = 10.25 ms, + 1 ms; then 9 steps of 1 ms + max(0.2, 1 + 0.5 us x
    # (100 .. 108)): 9 x 2 + 0.0005 x (100 + .. + 108) = 18 + 0.468 ms
    (story,) = by_strides(PLAIN, [one(0.0, 100, 10)])
    assert story.first_s == pytest.approx(0.01125)
    assert story.done_s - story.first_s == pytest.approx(0.018468)


def test_a_long_prompt_is_computed_in_chunks_of_the_budget() -> None:
    (story,) = by_strides(PLAIN, [one(0.0, 600, 1)])  # 256 + 256 + 88: three steps
    pairs = 256 * 128 + 256 * (256 + 128) + 88 * (512 + 44)
    assert story.first_s == pytest.approx(3 * 0.001 + (600 * 100 + pairs * 0.05) / 1e6)
    assert story.done_s == story.first_s


def test_a_stride_ends_where_somebody_comes() -> None:
    first, second = by_strides(PLAIN, [one(0.0, 100, 1000), one(0.5, 16, 5, source=2)])
    assert 0.5 < second.first_s < 0.51
    assert second.done_s < first.done_s


def test_a_prompt_that_was_answered_here_is_a_hit_and_its_last_token_is_computed_all_the_same() -> None:
    _, again = by_strides(PLAIN, [one(0.0, 160, 5), one(1.0, 160, 5)])
    assert again.cached_tokens == 144


def test_the_youngest_gives_way_when_memory_runs_out_and_still_ends() -> None:
    small = EngineProfile(**{**{f: getattr(PLAIN, f) for f in PLAIN.__dataclass_fields__}, "kv_tokens": 640})
    engine = FastEngine(small, BLOCK)
    jobs = [EngineJob(_names(number, 200, 150), 200, 150, number) for number in range(2)]
    for job in jobs:
        assert engine.submit(job, 0.0)
    done = []
    while engine.until_s is not None:
        done += engine.end(engine.until_s).dones
    assert done == jobs
    assert engine.preemptions >= 1
    assert engine.cache.live_tokens == 0


def test_what_cannot_ever_fit_and_what_finds_the_queue_full_is_refused() -> None:
    engine = FastEngine(PLAIN, BLOCK, max_queued=1)
    assert not engine.submit(EngineJob(_names(0, 4090, 10), 4090, 10), 0.0)
    assert [engine.submit(EngineJob(_names(n, 4000, 10), 4000, 10), 0.0) for n in range(3)] == [True, True, False]


def test_what_the_pool_holds_is_loaded_beside_the_computing_of_others() -> None:
    pool = KvTier(10_000, BLOCK)
    names = _names(1, 320, 4)
    pool.use(names[:20])
    around = EngineSurroundings(pool, TransferLink(LinkSpeed(32_000.0, 5.0)), None, None, None)
    (story,) = by_strides(PLAIN, [one(0.0, 320, 4)], around)
    assert story.cached_tokens == 320
    # 5 ms and 320 tokens at 32,000 a second; then the last token is computed: 1 ms + max(0.116, 1 + 0.16) ms
    assert story.first_s == pytest.approx(0.015 + 0.001 + 0.00116)


def test_the_cache_tells_of_what_it_stores_and_evicts() -> None:
    engine = FastEngine(PLAIN, BLOCK)
    held: set[int] = set()
    for number in range(12):
        assert engine.submit(EngineJob(_names(number, 800, 3), 800, 3), 0.0)
    while engine.until_s is not None:
        engine.end(engine.until_s)
        for event in engine.cache.drain():
            match event:
                case BlocksStored(hashes=hashes, parent=parent):
                    assert held.isdisjoint(hashes)
                    assert parent is None or parent in held
                    held.update(hashes)
                case BlocksRemoved(hashes=hashes):
                    assert held.issuperset(hashes)
                    held.difference_update(hashes)
                case BlocksCleared() | _:
                    raise AssertionError(event)
    assert len(held) == engine.cache.cached_blocks <= 4096 // BLOCK


WAVE_S = 60.0  # by then all have ended
waves = st.tuples(st.integers(0, 2), st.integers(1, 4), st.integers(0, 400), st.integers(1, 500), st.integers(1, 60))


@examples(60)
@given(st.lists(waves, min_size=1, max_size=12, unique_by=lambda drawn: drawn[:2]))
def test_strides_and_steps_tell_the_same_story(drawn: list[tuple[int, int, int, int, int]]) -> None:
    """Where memory suffices (who gives way when it does not is the same rule, but blocks round differently), and no two
    ask for the same text at once: there a block is hit as soon as its computing is planned, here when it is done.
    """
    roomy = EngineProfile(**{**{f: getattr(PLAIN, f) for f in PLAIN.__dataclass_fields__}, "kv_tokens": 64_000})
    sent = sorted(
        Sent(
            wave * WAVE_S + at / 100,
            (Span(source, min(100, tokens)), Span(1000 + 10 * wave + source, max(1, tokens - 100))),
            output,
        )
        for wave, source, at, tokens, output in drawn
    )
    for mine, theirs in zip(by_strides(roomy, sent), by_steps(roomy, sent), strict=True):
        assert mine.cached_tokens == theirs.cached_tokens
        assert mine.first_s == pytest.approx(theirs.first_s, abs=1e-9)
        assert mine.done_s == pytest.approx(theirs.done_s, abs=1e-9)


def _names(source: int, prompt: int, output: int) -> Sequence[int]:
    context = SessionContext(BLOCK)
    context.add(Span(source, prompt))
    context.add(Span(-1 - source, output))
    return context.names


def test_a_hybrid_model_re_uses_what_its_events_promise() -> None:
    """The index applies the rule of a real vLLM to the events of the simulated engine, which never hears of it."""
    dice = random.Random(1)
    engine = FastEngine(dataclasses.replace(PLAIN, tail_tokens=24), BLOCK)
    index, target = BlockIndex(BlockNameKeyring(0)), TargetId("engine/0")
    index.join(target, "m")
    systems = [[dice.randrange(1 << 40) for _ in range(dice.randrange(5, 20))] for _ in range(3)]
    chats = [list(dice.choice(systems)) for _ in range(8)]
    promised, delivered, evicted, held_more, now = [], [], [], 0, 0.0
    for _ in range(300):
        number = dice.randrange(8)
        if dice.random() < 0.1 or len(chats[number]) > 60:
            chats[number] = list(dice.choice(systems))
        names = chats[number] = [*chats[number], *(dice.randrange(1 << 40) for _ in range(dice.randrange(1, 6)))]
        blocks, output = len(names), dice.randrange(1, 50)
        answer = [dice.randrange(1 << 40) for _ in range((output - 1) // BLOCK)]
        held = index.match(names, [target]).get(target)
        promised.append(0 if held is None else index.count_reusable(target, names, held.gpu))
        held_more += held is not None and held.gpu > promised[-1]
        job = EngineJob([*names, *answer], blocks * BLOCK + 1, output)
        assert engine.submit(job, now)
        while engine.until_s is not None:
            now = engine.until_s
            engine.end(now)
        chats[number] += answer
        delivered.append((job.local_tokens or 0) // BLOCK)
        for event in engine.cache.drain():
            index.apply(target, event)
            evicted += [event.group] if isinstance(event, BlocksRemoved) else []
    assert promised == delivered
    assert sum(delivered) > 300
    assert held_more > 30
    assert {0, 1} == set(evicted), "blocks and tails"
