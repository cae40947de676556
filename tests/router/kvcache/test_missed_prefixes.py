"""What a router learns of caches that were filled before it came: the engine is the emulator's, with vLLM's hashes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.config.sections.pool import HashAlgo
from router.kvcache.digest_cache import DIGEST_BYTES
from router.kvcache.events import (
    BlocksRemoved,
    BlocksStored,
    EngineHash,
    Event,
    EventBatch,
    TailsStored,
    TargetId,
    Tier,
)
from router.kvcache.recent_removals import MOST
from router.kvcache.tokenized_prompt import HashInputs, TokenizedPrompt
from router.lab.simulator.engine_types import EngineShape, SequenceRequest
from router.lab.simulator.step_engine import StepEngine
from tests.fakes.caches import prompt_of
from tests.router.kvcache.house import A, B, House

BLOCKS = 40  # of 4 tokens
SYSTEM = list(range(100, 124))  # 6 blocks
ORIGIN = HashInputs("m", None, None, None)


class Served(NamedTuple):
    predicted: int | None  # by events; None: unknown
    assumed: int | None  # what a policy sees
    delivered: int


class Late:
    """An engine, and a house that joins its stream when `join` is called."""

    def __init__(self, target: TargetId = A, house: House | None = None, **shape: object) -> None:
        fields = {"block_tokens": 4, "blocks": BLOCKS, "prefill_tokens_per_s": 0, "decode_ms_per_token": 0.0}
        self.engine = StepEngine(EngineShape(**{**fields, "hash_algo": "sha256", **shape}))  # type: ignore[arg-type]
        self.house = house or House()
        self.target = target
        self.origin = ORIGIN
        self.seq = -1
        self.joined = False
        self.capacity: int | None = None

    def join(self, capacity: int | None = None) -> None:
        self.house.knowledge.join(self.target, "m", stream=True, replayable=False)
        self.joined, self.seq = True, self.seq + 5
        self.announce([])
        if capacity is not None:
            self.house.knowledge.set_capacity(self.target, capacity)

    def announce(self, events: Sequence[Event]) -> None:
        self.seq += 1
        if self.joined:
            self.house.knowledge.on_batch(self.target, EventBatch(self.seq, float(self.seq), 0, list(events), {}))

    def run(self, ids: Sequence[int]) -> int:
        """Serve a prompt by the engine alone; return the delivered tokens. Its events are announced."""
        salt = self.origin.salt
        self.engine.submit(SequenceRequest(ids, 1, salt=salt), 0.0)
        outputs, events = {}, []
        while not outputs:
            result = self.engine.step(0.0)
            outputs, events = result.outputs, [*events, *result.events]
        self.announce(events)
        return next(iter(outputs.values())).cached_tokens

    def prompt(self, ids: Sequence[int]) -> TokenizedPrompt:
        return prompt_of(ids)._replace(origin=self.origin)

    def serve(self, ids: Sequence[int]) -> Served:
        """Serve a prompt through the house."""
        knowledge, prompt = self.house.knowledge, self.prompt(ids)
        for _ in knowledge.missed.recall(prompt):
            pass
        belief = self.house.belief(self.target, prompt)
        assumed = None if belief.overlap is None else belief.overlap.gpu_tokens
        sent = knowledge.add_sent(self.target, prompt, belief)
        assert sent is not None
        delivered = self.run(ids)
        knowledge.on_first_byte(sent)
        if sent.late is not None:
            knowledge.missed.on_answer(sent.late, delivered)
        return Served(belief.indexed_tokens, assumed, delivered)

    def believed(self, ids: Sequence[int]) -> int:
        """The blocks of a prompt that the index holds."""
        return (self.house.belief(self.target, self.prompt(ids)).indexed_tokens or 0) // 4

    def hashes(self, ids: Sequence[int]) -> list[EngineHash]:
        return [*map(self.engine._chain.event_hash, self.engine.digests(SequenceRequest(ids, 1)))]

    def held(self, ids: Sequence[int]) -> int:
        """The blocks of it that the engine holds, as far as a hit can reach."""
        return min(len(self.engine._pool.find_leading(self.hashes(ids))), (len(ids) - 1) // 4)


def chat(number: int, turns: int) -> list[int]:
    """A chat of that many turns, each of 2 blocks after the system prompt."""
    return [*SYSTEM, *(1000 * number + token for token in range(8 * turns)), 7]


def test_an_answer_proves_the_tails_of_a_hybrid_model_too() -> None:
    """The engine is one of full attention: the tails of its model are announced here, by hand."""
    late, ids = Late(), chat(1, 2)
    late.run(ids)
    late.join()
    late.run(chat(2, 1))  # from token 0 on: the way to hash is known
    late.announce([TailsStored(late.hashes(chat(2, 1))[-2:], 1, 4, 2, leading=True, from_start=False)])
    assert late.serve(ids).delivered == 40
    assert late.serve(ids) == Served(40, 40, 40)
    last = late.hashes(ids)[9]
    late.announce([TailsStored([last], 1, 4, 2, leading=True, from_start=False)])
    assert late.believed(ids) == 10
    late.announce([BlocksRemoved([last], Tier.GPU, 1)])
    assert late.believed(ids) == 0, "the copy that was announced is the one that was known"
    assert late.serve(ids).delivered == 40
    assert late.believed(ids) == 10


# what waiting blocks prove


@pytest.mark.parametrize("algo", ["sha256", "sha256_cbor"])
def test_a_turn_announced_in_time_shows_all_before_it(algo: HashAlgo) -> None:
    late = Late(hash_algo=algo)
    late.run(chat(1, 2))
    late.join()
    late.run(chat(1, 3))  # not through this router
    assert late.believed(chat(1, 4)) == 0
    for _ in range(4):  # one way to hash is tried with each prompt
        for _ in late.house.knowledge.missed.recall(late.prompt(chat(1, 4))):
            pass
    assert late.believed(chat(1, 4)) == late.held(chat(1, 4)) == 12
    assert late.serve(chat(1, 4)) == (48, 48, 48)


def test_a_prompt_shorter_than_a_block_tries_no_way_to_hash() -> None:
    late = Late()
    late.run(chat(1, 2))
    late.join()
    late.run(chat(1, 3))
    for ids in (*[[7, 8]] * 2, chat(1, 4)):  # the engine hashes in the way that is tried first
        for _ in late.house.knowledge.missed.recall(late.prompt(ids)):
            pass
    assert late.believed(chat(1, 4)) == 12


def test_a_waiting_block_that_was_evicted_proves_nothing() -> None:
    late = Late()
    late.run(chat(1, 2))
    late.join()
    late.run(chat(1, 3))
    late.announce([BlocksRemoved(late.hashes(chat(1, 3))[:9:-1], Tier.GPU, 0)])
    for _ in range(3):
        for _ in late.house.knowledge.missed.recall(late.prompt(chat(1, 4))):
            pass
    assert late.believed(chat(1, 4)) == 0


def test_the_way_to_hash_is_found_once_for_all_engines_of_a_model() -> None:
    first = Late(hash_seed="42", hash_algo="sha256_cbor")
    second = Late(B, first.house, hash_seed="42", hash_algo="sha256_cbor")
    for late in (first, second):
        late.run(chat(1, 2))
        late.join()
        late.run([*range(2000, 2009)])  # its first block shows how it hashes
        late.run(chat(1, 3))
    assert first.serve(chat(1, 4)).predicted == 48
    assert second.believed(chat(1, 4)) == 12


# what answers prove


def test_a_prompt_that_is_cached_whole_is_learned_from_its_answer() -> None:
    late = Late()
    late.run(chat(1, 2))
    late.join()
    late.run([*range(2000, 2009)])
    assert late.serve(chat(1, 2)) == (0, None, 40)
    assert late.serve(chat(1, 2)) == (40, 40, 40)
    assert late.serve(chat(2, 1)) == (24, 24, 24)


def test_digests_of_prompts_count_towards_the_memory_for_prompts() -> None:
    late = Late()
    late.run(chat(1, 2))
    late.join()
    late.run([*range(2000, 2009)])  # proves how it hashes
    assert late.house.memory.held_bytes == 0
    late.serve(chat(1, 2))
    assert late.house.memory.held_bytes == 10 * DIGEST_BYTES  # blocks of the prompt


def test_an_engine_that_cannot_be_computed_is_estimated_by_what_was_sent_there() -> None:
    late = Late(hash_algo="xxhash", hash_seed="a secret of this process")
    late.run(chat(1, 2))
    late.join()
    late.run([*range(2000, 2009)])
    assert late.serve(chat(1, 2)) == (0, None, 40)
    assert late.serve(chat(1, 3)) == (0, 40, 40)
    assert late.serve(chat(1, 4)) == (0, 48, 48)


def test_blocks_removed_while_the_client_read_are_not_believed_again() -> None:
    late = Late()
    late.run(chat(1, 2))
    late.join()
    late.run([*range(2000, 2009)])
    knowledge, prompt = late.house.knowledge, late.prompt(chat(1, 2))
    sent = knowledge.add_sent(A, prompt, late.house.belief(A, prompt))
    assert sent is not None
    assert sent.late is not None
    delivered = late.run(chat(1, 2))
    for number in range(30, 36):  # other prompts fill the cache
        late.run([1000 * number + token for token in range(30)])
    knowledge.missed.on_answer(sent.late, delivered)
    assert late.believed(chat(1, 2)) == late.held(chat(1, 2)) < 10


def test_more_removals_than_are_kept_leave_it_unknown() -> None:
    late = Late()
    late.run(chat(1, 2))
    late.join()
    late.run([*range(2000, 2009)])
    knowledge, prompt = late.house.knowledge, late.prompt(chat(1, 2))
    sent = knowledge.add_sent(A, prompt, late.house.belief(A, prompt))
    assert sent is not None
    assert sent.late is not None
    late.announce([BlocksRemoved([EngineHash(n) for n in range(MOST + 1)], Tier.GPU, 0)])
    knowledge.missed.on_answer(sent.late, 40)
    assert late.believed(chat(1, 2)) == 0


def test_an_answer_of_an_engine_that_was_restarted_teaches_nothing() -> None:
    late = Late()
    late.run(chat(1, 2))
    late.join()
    late.run([*range(2000, 2009)])
    knowledge, prompt = late.house.knowledge, late.prompt(chat(1, 2))
    sent = knowledge.add_sent(A, prompt, late.house.belief(A, prompt))
    assert sent is not None
    assert sent.late is not None
    knowledge.clear(A)
    knowledge.missed.on_answer(sent.late, 40)
    assert late.believed(chat(1, 2)) == 0


def test_a_salt_is_believed_only_where_its_own_hashes_were_announced() -> None:
    late = Late()
    late.origin = ORIGIN._replace(salt="ann")
    late.run(chat(1, 2))
    late.join()
    late.origin = ORIGIN
    late.run([*range(2000, 2009)])
    late.origin = ORIGIN._replace(salt="bare")
    knowledge = late.house.knowledge
    prompt = late.prompt(chat(1, 2))
    sent = knowledge.add_sent(A, prompt, late.house.belief(A, prompt))
    assert sent is not None
    assert sent.late is not None
    knowledge.missed.on_answer(sent.late, 40)
    assert late.believed(chat(1, 2)) == 0


# what was recalled behaves as if it had been announced


def test_what_is_announced_after_it_was_recalled_is_no_second_copy() -> None:
    late = Late()
    late.run(chat(1, 2))
    late.join()
    late.run([*range(2000, 2009)])
    late.serve(chat(1, 2))
    hashes = late.hashes(chat(1, 2))
    again = BlocksStored(hashes, None, chat(1, 2)[:40], 4, Tier.GPU, 0, None, None, None)
    late.announce([again])
    late.announce([BlocksRemoved(hashes[::-1], Tier.GPU, 0)])
    assert late.believed(chat(1, 2)) == 0


def test_a_block_that_was_missed_stays_while_a_block_after_it_does() -> None:
    """A prompt that re-used nothing of a hybrid model left a second copy: evicted unused, while the first one stays."""
    late = Late()
    late.run(chat(1, 1))
    late.join()
    late.run([*range(2000, 2009)])
    late.serve(chat(1, 2))
    system, follower = late.hashes(chat(1, 1))[:6], late.hashes(chat(1, 1))[6]
    for hash_ in reversed(system):
        late.announce([BlocksRemoved([hash_], Tier.GPU, 0)])
    assert late.believed(chat(1, 2)) == 10
    for hash_ in (*reversed(late.hashes(chat(1, 2))[7:10]), follower, *reversed(system)):
        late.announce([BlocksRemoved([hash_], Tier.GPU, 0)])
    assert late.believed(chat(1, 2)) == 0


def test_an_announced_block_of_which_a_copy_was_missed_stays_while_a_block_after_it_does() -> None:
    late = Late()
    late.run(chat(1, 1))
    late.join()
    late.run(chat(1, 2))  # as if its first two blocks were computed again
    late.serve(chat(1, 3))
    for hash_ in (late.hashes(chat(1, 3))[8], late.hashes(chat(1, 3))[8]):
        late.announce([BlocksRemoved([hash_], Tier.GPU, 0)])
    assert late.believed(chat(1, 3)) == 12


def test_what_was_held_before_a_gap_is_likely_to_be_there_still() -> None:
    late = Late(hash_algo="xxhash", hash_seed="a secret of this process")
    late.seq = -6
    late.join()  # at its first batch
    late.run(chat(1, 2))
    late.seq += 3
    late.run([*range(2000, 2009)])
    assert late.serve(chat(1, 2)) == (0, 40, 40)
    assert late.house.belief(A, late.prompt(chat(2, 1))).overlap == (24, 24, 24, 24, "approximate", 0.0)


def test_nothing_is_known_to_be_missing_while_blocks_wait_for_a_parent() -> None:
    late = Late(hash_algo="xxhash", hash_seed="a secret of this process")
    late.run(chat(1, 2))
    late.join(capacity=BLOCKS)
    for number in range(40):  # the system prompt stays in use while everything else is evicted
        late.run(chat(2 + number, 1))
    stream = late.house.knowledge.describe_stream(A)
    assert stream is not None
    assert stream.turned_over
    assert late.house.belief(A, late.prompt(chat(90, 1))).overlap is None
    assert late.house.knowledge.held_tokens(A, 4, True) is None


@given(
    before=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), min_size=1, max_size=8),
    after=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4), st.booleans()), min_size=1, max_size=25),
    algo=st.sampled_from(["sha256", "sha256_cbor"]),
)
def test_against_the_engine(before: list[tuple[int, int]], after: list[tuple[int, int, bool]], algo: HashAlgo) -> None:
    """Whatever was cached before: never more is believed than the engine holds, and of an answered prompt all of it."""
    late = Late(hash_algo=algo)
    for number, turns in before:
        late.run(chat(number, turns))
    late.join()
    late.run([*range(9000, 9009)])
    for number, turns, through in after:
        if through:
            late.serve(chat(number, turns))
            assert late.believed(chat(number, turns)) == late.held(chat(number, turns))
        else:
            late.run(chat(number, turns))
        for other in range(1, 6):
            assert late.believed(chat(other, 4)) <= late.held(chat(other, 4))
