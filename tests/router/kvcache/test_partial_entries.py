"""Entries inside blocks, of engines with `--prefix-match-unit`: blocks of 8 tokens, units of 2."""

from __future__ import annotations

import gzip
import json
from typing import NamedTuple

from router.kvcache.engine_hashes import EngineChain
from router.kvcache.events import BlocksRemoved, BlocksStored, EngineHash, Event, EventBatch, TailsStored, Tier
from router.kvcache.overlap_estimate import OverlapEstimate
from router.kvcache.tokenized_prompt import HashInputs, TokenizedPrompt
from tests.fakes.caches import promise_each, prompt_of
from tests.paths import ROOT
from tests.router.kvcache.house import A, House

BLOCK, UNIT = 8, 2
FULL, STATES = 0, 1
ORIGIN = HashInputs("m", None, None, None)
CHAIN = EngineChain("sha256_cbor")
TURN = list(range(100, 122))  # 2 blocks and 3 units: what precedes its last token ends at 20


class Parts(NamedTuple):
    """The events of one prompt of an engine."""

    blocks: BlocksStored
    entry: BlocksStored  # of full attention
    state: TailsStored


class Engine:
    """An engine that hashes with `chain`, and what a house knows of it."""

    def __init__(self, chain: EngineChain = CHAIN) -> None:
        self.house = House()
        self.house.join(A)
        self.seq = 0
        self.chain = chain

    def hashes(self, ids: list[int]) -> list[EngineHash]:
        return [*map(self.chain.event_hash, self.chain.chain(None, ids, UNIT))]

    def parts(self, ids: list[int], group: int = FULL) -> Parts:
        """The events of a prompt that ends with a token of no unit."""
        hashes, whole = self.hashes(ids), len(ids) // BLOCK * BLOCK
        blocks = hashes[BLOCK // UNIT - 1 :: BLOCK // UNIT]
        place = (len(ids) - 1) // UNIT
        unit = ids[(place - 1) * UNIT : place * UNIT]
        entry, parent = hashes[place - 1], hashes[place - 2]
        more = (Tier.GPU, group, None, None, None)
        return Parts(
            BlocksStored(blocks, None, ids[:whole], BLOCK, *more),
            BlocksStored([entry], parent, unit, UNIT, *more),
            TailsStored([entry], STATES, UNIT, 1, leading=False, from_start=False),
        )

    def announce(self, *events: Event) -> None:
        self.seq += 1
        self.house.knowledge.on_batch(A, EventBatch(self.seq, float(self.seq), 0, list(events), {}))

    def begin(self) -> None:
        """Announce two other prompts, which show the groups, the unit, and then how the engine hashes."""
        self.announce(TailsStored([], STATES, BLOCK, 1, leading=False, from_start=False))
        for first in (500, 600):
            self.announce(*self.parts([*range(first, first + 22)]))

    def prompt(self, ids: list[int]) -> TokenizedPrompt:
        return prompt_of(ids, BLOCK)._replace(origin=ORIGIN)

    def belief(self, ids: list[int]) -> OverlapEstimate:
        prompt = self.prompt(ids)
        for _ in self.house.knowledge.missed.recall(prompt):
            pass
        return self.house.belief(A, prompt, BLOCK)

    def promised(self, ids: list[int]) -> int:
        overlap = self.belief(ids).overlap
        assert overlap is not None
        return overlap.gpu_tokens


def test_a_recorded_engine_re_used_what_was_promised() -> None:
    """Requests to the cache manager of vLLM 0.32: blocks of 64 tokens, units of 8, with evictions."""
    with gzip.open(ROOT / "tests/data/vllm-0.32-partial-hits.jsonl.gz", "rt") as lines:
        requests = [*map(json.loads, lines)]
    cached = [request["cached"] for request in requests]
    assert promise_each(requests, 64) == cached
    assert sum(tokens % 64 > 0 for tokens in cached) > len(cached) / 3


def test_a_turn_is_re_used_up_to_its_last_unit() -> None:
    engine, more = Engine(), [*TURN, *range(200, 230)]
    engine.begin()
    engine.announce(*engine.parts(TURN))
    assert (engine.promised(more), engine.promised(TURN), engine.promised(TURN[:19])) == (20, 20, 0)
    believed = engine.belief(more)
    assert (believed.indexed_tokens, believed.held_blocks, believed.recomputed_tokens) == (20, 2, 0)
    assert believed.overlap is not None
    assert believed.overlap.expected_tokens == 20


def test_a_prompt_shorter_than_a_block_is_found_again() -> None:
    engine = Engine()
    engine.begin()
    engine.announce(*engine.parts(TURN))
    engine.announce(*engine.parts([*range(300, 306), 1])[1:])
    assert engine.promised([*range(300, 306), 7, 8, 9]) == 6


def test_an_entry_is_found_under_its_own_tokens_alone() -> None:
    engine = Engine()
    engine.begin()
    engine.announce(*engine.parts(TURN))
    assert engine.promised([*TURN[:18], 1, 2, 3, 4]) == 0


def test_an_entry_ends_with_the_block_that_takes_its_place() -> None:
    """A block that was filled up is found as a whole alone; the state stays."""
    engine, grown = Engine(), [*TURN, *range(200, 212)]
    engine.begin()
    engine.announce(*engine.parts(TURN))
    assert engine.promised([*TURN, 1, 2, 3]) == 20
    hashes = engine.hashes(grown)
    engine.announce(
        BlocksRemoved([hashes[9]], Tier.GPU, FULL),
        BlocksStored([hashes[11]], hashes[7], grown[16:24], BLOCK, Tier.GPU, FULL, None, None, None),
    )
    assert engine.promised([*TURN, 1, 2, 3]) == 0, "the block is another one, and no state ends at 16"
    assert engine.promised(grown) == 20, "it holds the whole block, and the state inside it"
    engine.announce(BlocksRemoved([hashes[9]], Tier.GPU, STATES))
    assert engine.promised(grown) == 0


def test_every_group_of_full_attention_must_have_the_entry() -> None:
    engine, more = Engine(), [*TURN, 1, 2, 3]
    engine.begin()
    other = engine.parts(TURN, group=2)
    engine.announce(*engine.parts(TURN), other.blocks)
    assert engine.promised(more) == 0
    engine.announce(other.entry)
    assert engine.promised(more) == 20


def test_entries_that_come_before_any_block_are_kept() -> None:
    engine, short = Engine(), [*range(300, 306), 1]
    entry, state = engine.parts(short)[1:]
    engine.announce(entry, TailsStored([], STATES, BLOCK, 1, leading=False, from_start=False), state)
    engine.announce(*engine.parts(TURN))
    assert engine.promised([*short, 7]) == 6
    engine.announce(BlocksRemoved(entry.hashes, Tier.GPU, FULL))
    assert engine.promised([*short, 7]) == 0


def test_blocks_alone_are_promised_of_an_engine_whose_hashes_cannot_be_computed() -> None:
    engine, more = Engine(EngineChain("sha256_cbor", "a seed that nobody guesses")), [*TURN, 1, 2, 3]
    engine.begin()
    engine.announce(*engine.parts(TURN))
    assert engine.promised(more) == 0
    state = engine.hashes(TURN)[7]
    engine.announce(TailsStored([state], STATES, BLOCK, 1, leading=False, from_start=False))
    assert engine.promised(more) == 16


def test_entries_survive_a_snapshot() -> None:
    engine, more = Engine(), [*TURN, 1, 2, 3]
    engine.begin()
    engine.announce(*engine.parts(TURN))
    assert engine.promised(more) == 20
    saved = engine.house.knowledge.snapshot(A)
    assert saved is not None
    later = Engine()
    later.house.knowledge.leave(A)
    later.house.knowledge.restore(saved)
    later.house.knowledge.join(A, "m", stream=True, replayable=False)
    later.house.knowledge.on_batch(A, EventBatch(engine.seq + 1, 9.0, 0, [], {}))
    assert later.promised(more) == 20


def test_an_engine_that_begins_anew_has_no_entries() -> None:
    engine, more = Engine(), [*TURN, 1, 2, 3]
    engine.begin()
    engine.announce(*engine.parts(TURN))
    assert engine.promised(more) == 20
    engine.house.knowledge.clear(A)
    assert engine.promised(more) == 0
    engine.announce(*engine.parts(TURN))
    assert engine.promised(more) == 20
