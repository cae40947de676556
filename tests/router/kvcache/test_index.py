"""Named stories first; then a machine that tells random ones to the index and to the brute-force oracle."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router.kvcache.block_keys import Keyring
from router.kvcache.events import BlocksCleared, BlocksRemoved, BlocksStored, EngineHash, Event, Key, TargetId, Tier
from router.kvcache.index import SWEEP_BLOCKS, BlockIndex, HeldBlocks
from tests.suites.naive_index import NaiveIndex
from tests.suites.properties import examples

RING = Keyring(1)
A, B, C, D = TargetId("a/0"), TargetId("b/0"), TargetId("b/1"), TargetId("d/0")
BLOCK = 2


def hash_of(path: Sequence[int], salt: str | None = None, adapter: str | None = None) -> EngineHash:
    """As engines do: the hash says the whole chain, nothing else."""
    return EngineHash(hash((*path, salt, adapter)) & 0xFFFF_FFFF)


def stored(
    path: Sequence[int],
    start: int = 0,
    tier: Tier = Tier.GPU,
    group: int = 0,
    salt: str | None = None,
    adapter: str | None = None,
) -> BlocksStored:
    """Blocks `start`.. of the chain whose i-th block holds the tokens (path[i], path[i])."""
    hashes = [hash_of(path[: i + 1], salt, adapter) for i in range(len(path))]
    ids = [token for name in path[start:] for token in (name,) * BLOCK]
    parent = hashes[start - 1] if start else None
    return BlocksStored(hashes[start:], parent, ids, BLOCK, tier, group, adapter, salt if start == 0 else None, None)


def removed(path: Sequence[int], tier: Tier = Tier.GPU, group: int = 0) -> BlocksRemoved:
    """The last block of `path`."""
    return BlocksRemoved([hash_of(path)], tier, group)


def keys(path: Sequence[int], salt: str | None = None, adapter: str | None = None, model: str = "m") -> list[Key]:
    return RING.chain(RING.root(model, adapter, salt), [token for name in path for token in (name,) * BLOCK], BLOCK)


@pytest.fixture
def index() -> BlockIndex:
    made = BlockIndex(RING)
    for target in (A, B, C):
        made.join(target, "m")
    return made


def held(index: BlockIndex, path: Sequence[int], target: TargetId = A) -> tuple[int, int, int]:
    return tuple(index.match(keys(path), [target]).get(target, HeldBlocks(0, 0, 0)))


def test_each_target_has_its_own_run_and_who_holds_nothing_is_absent(index: BlockIndex) -> None:
    index.apply(A, stored([1, 2, 3]))
    index.apply(B, stored([1, 9]))
    assert index.match(keys([1, 2, 3, 4]), [A, B, C]) == {A: HeldBlocks(3, 3, 3), B: HeldBlocks(1, 1, 1)}
    assert index.match(keys([1, 2]), [B]) == {B: HeldBlocks(1, 1, 1)}
    assert index.match([], [A, B]) == {}
    assert index.match(keys([1]), []) == {}
    assert index.match(keys([1]), [TargetId("never/0")]) == {}


class Unwalked(list[Key]):
    """A prompt that must not be walked."""

    def __iter__(self) -> Iterator[Key]:
        raise AssertionError("walked")


def test_whole_targets_are_bisected_and_others_walked_in_the_same_match(index: BlockIndex) -> None:
    prompt = Unwalked(keys([1, 2, 3, 4, 5]))
    index.apply(A, stored([1, 2, 3]))
    index.apply(B, stored([1, 2, 3, 4]))
    index.apply(B, removed([1, 2, 3, 4]))
    assert index.match(prompt, [A, B, C]) == {A: HeldBlocks(3, 3, 3), B: HeldBlocks(3, 3, 3)}
    index.apply(B, removed([1, 2]))
    with pytest.raises(AssertionError, match="walked"):
        index.match(prompt, [A, B])
    assert index.match(prompt, [A]) == {A: HeldBlocks(3, 3, 3)}
    assert index.match(keys([1, 2, 3]), [A, B]) == {A: HeldBlocks(3, 3, 3), B: HeldBlocks(1, 1, 1)}
    index.forget(B)
    index.apply(B, stored([1, 2]))
    assert index.match(prompt, [A, B])[B] == HeldBlocks(2, 2, 2), "whole again"


def test_tiers_are_cumulative_and_each_run_is_whole(index: BlockIndex) -> None:
    index.apply(A, stored([1, 2, 3, 4, 5]))
    index.apply(A, stored([1, 2, 3], tier=Tier.CPU))
    index.apply(A, stored([1, 2, 3, 4], start=3, tier=Tier.DISK))
    index.apply(A, removed([1, 2]))
    assert held(index, [1, 2, 3, 4, 5]) == (1, 5, 5)
    index.apply(A, removed([1, 2, 3, 4]))
    assert held(index, [1, 2, 3, 4, 5]) == (1, 3, 5)
    assert index.stats(A).blocks == (3, 3, 1)


def test_holders_and_copies_of_blocks(index: BlockIndex) -> None:
    """Slower tiers count where the GPU has not got it; whoever left holds nothing."""
    index.apply(A, stored([1, 2]))
    index.apply(B, stored([1]))
    index.apply(C, stored([1, 2], tier=Tier.CPU))
    first, second = keys([1, 2])
    assert index.holders(first) == ([A, B], [C])
    assert index.holders(second) == ([A], [C])
    assert index.copies(Tier.GPU) == (3, 2)
    index.leave(B)
    assert index.holders(first) == ([A], [C])
    assert index.copies(Tier.GPU) == (2, 2)


def test_a_block_counts_once_whatever_tiers_and_groups_it_is_in(index: BlockIndex) -> None:
    assert index.held_blocks(A) == 0
    index.apply(A, stored([1, 2, 3]))
    index.apply(A, stored([1, 2], tier=Tier.CPU))
    index.apply(A, stored([1, 2, 3, 4], start=3, tier=Tier.DISK))
    index.apply(A, stored([1, 2], group=1))
    assert index.held_blocks(A) == 4, "1, 2 and 3 on the GPU, 4 on disk"
    index.apply(A, removed([1, 2]))
    assert index.held_blocks(A) == 4, "still in host memory"
    index.apply(A, removed([1, 2], tier=Tier.CPU))
    index.apply(A, stored([7, 8], start=1))
    assert index.held_blocks(A) == 3, "an orphan has no name yet"
    assert index.held_blocks(B) == index.held_blocks(TargetId("never/0")) == 0
    index.forget(A)
    assert index.held_blocks(A) == 0


def test_a_hash_goes_with_its_last_copy_and_never_below(index: BlockIndex) -> None:
    index.apply(A, stored([1, 2]))
    index.apply(A, stored([1, 2], start=1))
    index.apply(A, removed([1, 2]))
    assert held(index, [1, 2])[0] == 2
    for _ in range(3):
        index.apply(A, removed([1, 2]))
    assert held(index, [1, 2])[0] == 1
    index.apply(A, stored([1, 2], start=1))
    assert held(index, [1, 2])[0] == 2


def test_two_groups_with_the_same_tokens_count_once(index: BlockIndex) -> None:
    index.apply(A, stored([1, 2], group=0))
    index.apply(A, stored([1, 2], group=1))
    assert held(index, [1, 2])[0] == 2
    assert index.stats(A).blocks == (2, 0, 0)
    index.apply(A, removed([1, 2], group=0))
    assert held(index, [1, 2])[0] == 2
    index.apply(A, removed([1, 2], group=7))  # a group that is not indexed
    index.apply(A, removed([1, 2], group=1))
    assert held(index, [1, 2])[0] == 1


def test_a_third_group_with_the_same_tokens_is_counted_back_as_well(index: BlockIndex) -> None:
    for group in range(3):
        index.apply(A, stored([1], group=group))
    for group, left in ((1, 1), (0, 1), (2, 0)):
        index.apply(A, removed([1], group=group))
        assert held(index, [1])[0] == left


def test_an_orphan_waits_and_is_never_hung_on_the_root(index: BlockIndex) -> None:
    assert index.apply(A, stored([1, 2, 3], start=2)) == []
    assert index.apply(A, stored([1, 2, 3, 4], start=3)) == []
    assert held(index, [3, 4]) == (0, 0, 0)
    assert index.stats(A).orphans == 2
    index.apply(A, removed([1, 2, 3, 4]))  # while it waits
    assert index.apply(A, stored([1, 2])) == keys([1, 2, 3])
    assert held(index, [1, 2, 3, 4])[0] == 3
    assert index.stats(A).orphans == 0


def test_no_orphans_may_be_kept() -> None:
    none = BlockIndex(RING, orphan_blocks=0)
    none.join(A, "m")
    none.apply(A, stored([5, 1], start=1))
    assert none.stats(A).orphans == 0
    none.apply(A, stored([5]))
    assert held(none, [5, 1])[0] == 1


def test_orphans_are_bounded_and_the_oldest_go(index: BlockIndex) -> None:
    small = BlockIndex(RING, orphan_blocks=3)
    small.join(A, "m")
    for name in (5, 6, 7, 8):
        small.apply(A, stored([name, 1], start=1))
    assert small.stats(A).orphans == 3
    for name in (5, 6):
        small.apply(A, stored([name]))
    assert held(small, [5, 1])[0] == 1
    assert held(small, [6, 1])[0] == 2
    small.apply(A, stored([9, 1, 2, 3, 4, 5], start=1))  # more than the bound by itself
    assert small.stats(A).orphans == 0


def test_a_long_line_of_single_orphans_does_not_recurse(index: BlockIndex) -> None:
    first, *others = (
        BlocksStored([EngineHash(i)], EngineHash(i - 1) if i else None, [i], 1, Tier.GPU, 0, None, None, None)
        for i in range(3000)
    )
    for event in reversed(others):
        assert index.apply(A, event) == []
    assert len(index.apply(A, first)) == 3000


def test_a_parent_in_another_tier_is_known(index: BlockIndex) -> None:
    index.apply(A, stored([1, 2]))
    index.apply(A, stored([1, 2, 3], start=2, tier=Tier.CPU))
    assert held(index, [1, 2, 3]) == (2, 3, 3)


def test_adapter_salt_and_model_are_other_worlds(index: BlockIndex) -> None:
    index.join(B, "other")
    index.apply(A, stored([1], salt="s"))
    index.apply(A, stored([1, 2], start=1, salt="s"))
    index.apply(A, stored([1], adapter="lora"))
    index.apply(B, stored([1]))
    assert index.match(keys([1]), [A, B]) == {}
    assert index.match(keys([1, 2], salt="s"), [A])[A].gpu == 2
    assert index.match(keys([1], adapter="lora"), [A])[A].gpu == 1
    assert index.match(keys([1], model="other"), [A, B]) == {B: HeldBlocks(1, 1, 1)}


def test_an_offload_tier_that_forgets_the_salt_is_named_by_the_hash(index: BlockIndex) -> None:
    salted = stored([1, 2], salt="s")
    index.apply(A, salted)
    index.apply(A, salted._replace(tier=Tier.CPU, salt=None))
    assert held(index, [1, 2]) == (0, 0, 0)
    assert index.match(keys([1, 2], salt="s"), [A])[A] == HeldBlocks(2, 2, 2)


def test_cleared_takes_every_tier_and_only_of_its_target(index: BlockIndex) -> None:
    for target in (A, B):
        index.apply(target, stored([1, 2]))
        index.apply(target, stored([1], tier=Tier.CPU))
    index.apply(A, BlocksCleared())
    assert index.match(keys([1, 2]), [A, B]) == {B: HeldBlocks(2, 2, 2)}
    assert index.stats(A).blocks == (0, 0, 0)
    assert index.block_tokens(A) == BLOCK
    index.apply(A, stored([1]))
    assert held(index, [1, 2]) == (1, 1, 1)


def test_what_is_forgotten_is_swept_in_slices_and_its_bit_used_again(index: BlockIndex) -> None:
    for name in range(1000):
        index.apply(A, stored([name]))
    index.forget(A)
    assert sum(map(len, index._holders.tables)) == 1000 - SWEEP_BLOCKS
    for name in range(8):
        index.apply(B, stored([5000 + name]))
        assert held(index, [3]) == (0, 0, 0)
    assert sum(map(len, index._holders.tables)) == 8
    index.leave(B)
    index.leave(C)
    index.apply(A, stored([1]))
    index.apply(A, stored([2]))
    index.join(B, "m")
    assert index.match(keys([1]), [A, B]) == {A: HeldBlocks(1, 1, 1)}
    assert index._bits == 4


def test_coming_and_going_uses_no_bits_up(index: BlockIndex) -> None:
    """However often a target joins again, with blocks or without, and whether or not others have events."""
    for name in range(500):
        index.join(C, "m")
        if name % 2:
            index.apply(C, stored([name, name + 1]))
    assert index._bits <= 5
    index.apply(A, stored([1]))
    assert held(index, [1]) == (1, 1, 1)


def test_a_sweep_without_events_cleans_everything(index: BlockIndex) -> None:
    for name in range(300):
        index.apply(A, stored([name, name]))
        index.apply(A, stored([name], tier=Tier.CPU))
        index.apply(A, stored([name, 7], start=1, salt="unknown"))  # an orphan
    index.leave(A)
    sweeps = 0
    while index.sweep():
        sweeps += 1
    assert 1 < sweeps < 50
    assert sum(map(len, index._holders.tables)) == 0
    assert not index._retired


def test_whoever_left_is_unknown(index: BlockIndex) -> None:
    index.apply(A, stored([1]))
    index.leave(A)
    assert index.match(keys([1]), [A]) == {}
    assert index.block_tokens(A) is None
    with pytest.raises(KeyError):
        index.apply(A, stored([1]))


def test_block_tokens_come_from_the_gpu(index: BlockIndex) -> None:
    assert index.block_tokens(A) is None
    index.apply(A, stored([1], tier=Tier.CPU)._replace(block_tokens=1, hashes=[EngineHash(1), EngineHash(2)]))
    assert index.block_tokens(A) == 1
    index.apply(A, stored([1]))
    index.apply(A, stored([1], tier=Tier.CPU)._replace(block_tokens=1, hashes=[EngineHash(1), EngineHash(2)]))
    assert index.block_tokens(A) == BLOCK


def test_the_bytes_it_states_are_the_bytes_it_takes() -> None:
    gc.collect()
    tracemalloc.start()
    try:
        index = BlockIndex(RING)
        for target in (A, B):
            index.join(target, "m")
            for name in range(0, 20_000, 10):
                index.apply(target, stored(list(range(name, name + 10))))
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    stated = index.stats(A).bytes + index.stats(B).bytes
    assert stated == pytest.approx(taken, rel=0.2)


# Chains over two names, at most five blocks long: few enough that random events meet again and again.
paths = st.lists(st.sampled_from([1, 2]), min_size=1, max_size=5)
targets = st.sampled_from([A, B, D, D])  # D has one group and nothing but its GPU
tiers = st.sampled_from([Tier.GPU, Tier.GPU, Tier.GPU, Tier.CPU, Tier.DISK])
groups = st.sampled_from([0, 0, 0, 1, 1, 2])
salts = st.sampled_from([None, None, None, "s"])


class Told(NamedTuple):
    who: TargetId
    path: list[int]
    start: int
    tier: Tier
    group: int
    salt: str | None

    @property
    def event(self) -> BlocksStored:
        tier, group = (Tier.GPU, 0) if self.who == D else (self.tier, self.group)
        return stored(self.path, self.start, tier, group, self.salt)


def test_a_child_that_is_known_from_another_event_does_not_wait_for_a_removed_parent() -> None:
    """Found by `Stories`: block 2 goes while block 1 is unknown, and its child is stored once more after that."""
    second = BlocksRemoved([hash_of([1, 2], None)], Tier.GPU, 0)
    events = [
        Told(A, [1, 2, 1], 1, Tier.GPU, 0, None).event,
        second,
        Told(A, [1, 2, 1, 1], 2, Tier.GPU, 0, None).event,
        Told(A, [1], 0, Tier.GPU, 0, None).event,
    ]
    index, naive = BlockIndex(RING), NaiveIndex(RING)
    for each in (index, naive):
        each.join(A, "m")
        for event in events:
            each.apply(A, event)
    assert index.stats(A).blocks == (len(naive.keys(A, Tier.GPU)), 0, 0) == (3, 0, 0)


class Stories(RuleBasedStateMachine):
    """Most rules build on what was told before: unrelated events would rarely meet."""

    @initialize()
    def begin(self) -> None:
        self.index, self.naive = BlockIndex(RING), NaiveIndex(RING)
        self.told: list[Told] = []
        self.holed: set[TargetId] = set()
        for target in (A, B, C, D):
            self.both(lambda index, target=target: index.join(target, "m"))

    def both(self, act: Callable[[BlockIndex | NaiveIndex], object]) -> None:
        act(self.index)
        act(self.naive)

    def tell(self, who: TargetId, event: Event) -> None:
        before = self.naive.keys(who, Tier.GPU)
        entered = self.index.apply(who, event)
        self.naive.apply(who, event)
        assert sorted(entered) == sorted(self.naive.keys(who, Tier.GPU) - before)
        if not self.naive.contiguous(who):
            self.holed.add(who)

    def store(self, told: Told) -> None:
        self.told.append(told)
        self.tell(told.who, told.event)

    @rule(who=targets, path=paths, tier=tiers, group=groups, salt=salts)
    def store_from_the_root(self, who: TargetId, path: list[int], tier: Tier, group: int, salt: str | None) -> None:
        self.store(Told(who, path, 0, tier, group, salt))

    @rule(who=targets, path=paths, start=st.integers(1, 4), tier=tiers, group=groups)
    def store_anywhere(self, who: TargetId, path: list[int], start: int, tier: Tier, group: int) -> None:
        self.store(Told(who, path, min(start, len(path) - 1), tier, group, None))

    @precondition(lambda self: self.told)
    @rule(data=st.data(), tail=paths, tier=tiers)
    def store_after(self, data: st.DataObject, tail: list[int], tier: Tier) -> None:
        told = data.draw(st.sampled_from(self.told))
        self.store(told._replace(path=[*told.path, *tail][:5], start=min(len(told.path), 4), tier=tier))

    @precondition(lambda self: self.told)
    @rule(data=st.data(), tier=tiers)
    def store_again(self, data: st.DataObject, tier: Tier) -> None:
        self.store(data.draw(st.sampled_from(self.told))._replace(tier=tier))

    @precondition(lambda self: self.told)
    @rule(data=st.data(), times=st.integers(1, 3))
    def remove(self, data: st.DataObject, times: int) -> None:
        told = data.draw(st.sampled_from(self.told))
        for _ in range(times):
            hash_ = data.draw(st.sampled_from(told.event.hashes))
            self.tell(told.who, BlocksRemoved([hash_], told.event.tier, told.event.group))

    @precondition(lambda self: self.told)
    @rule(data=st.data())
    def evict_tail_first(self, data: st.DataObject) -> None:
        told = data.draw(st.sampled_from(self.told))
        self.tell(told.who, BlocksRemoved(told.event.hashes[::-1], told.event.tier, told.event.group))

    @precondition(lambda self: self.told)
    @rule(data=st.data())
    def fork_and_evict_one_branch(self, data: st.DataObject) -> None:
        trunk = data.draw(st.sampled_from(self.told))
        for name in (1, 2):
            self.store(trunk._replace(path=[*trunk.path[:4], name], start=len(trunk.path[:4])))
        gone = self.told[-2]  # the branch that goes on from the trunk's tip: the other only hangs there
        for end in range(len(gone.path), 0, -1):
            self.tell(gone.who, BlocksRemoved([hash_of(gone.path[:end], gone.salt)], gone.event.tier, gone.event.group))

    @precondition(lambda self: self.told)
    @rule(data=st.data())
    def evict_a_whole_chain(self, data: st.DataObject) -> None:
        told = data.draw(st.sampled_from(self.told))
        for end in range(len(told.path), 0, -1):
            hash_ = hash_of(told.path[:end], told.salt)
            self.tell(told.who, BlocksRemoved([hash_], told.event.tier, told.event.group))

    @precondition(lambda self: not any(self.index.stats(target).orphans for target in (A, B, C, D)))
    @rule()
    def restart_the_router(self) -> None:
        shelves = {target: self.index.snapshot(target) for target in (A, B, C, D)}
        self.index = BlockIndex(RING)
        for target, shelf in shelves.items():
            assert shelf is not None
            self.index.restore(target, shelf)
        for target, shelf in shelves.items():
            assert shelf is not None
            assert self.index.join_restored(target, shelf.model)

    @precondition(lambda self: len(self.told) > 8)
    @rule(who=targets, how=st.sampled_from(["clear", "forget", "join m", "join other"]))
    def start_over(self, who: TargetId, how: str) -> None:
        self.told = [told for told in self.told if told.who != who]
        self.holed.discard(who)
        if how == "clear":
            self.tell(who, BlocksCleared())
        elif how == "forget":
            self.both(lambda index: index.forget(who))
        else:
            self.both(lambda index: index.join(who, how.removeprefix("join ")))

    @invariant()
    def they_agree(self) -> None:
        asked = [A, B, C, D]
        for salt in (None, "s"):
            for path in ([1, 1, 1, 1, 1], [1, 2, 1, 2, 1], [2, 1, 1, 2, 2], [2, 2, 2, 2, 1]):
                wanted = keys(path, salt)
                assert self.index.match(wanted, asked) == self.naive.match(wanted, asked)
                reach = [
                    (who, held) for bits, held, _ in self.index.match_all(wanted) for who in self.index.targets_of(bits)
                ]
                assert sorted(reach) == sorted(
                    (who, self.naive.match(wanted, asked).get(who, HeldBlocks(0, 0, 0))) for who in asked
                )
        for target in asked:
            assert not (self.index.stats(target).contiguous and target in self.holed)
        assert self.index.stats(D).contiguous == (D not in self.holed), (
            "bisected as long as that is right, and not longer"
        )
        for target in asked:
            assert self.index.stats(target).blocks == tuple(len(self.naive.keys(target, tier)) for tier in Tier)
            assert self.index.held_blocks(target) == self.naive.held_blocks(target)
        blocks = [self.index.stats(target).blocks for target in asked]
        assert self.index._holders.blocks == [sum(of_tier) for of_tier in zip(*blocks, strict=True)]


TestStories = Stories.TestCase
TestStories.settings = examples(80, stateful_step_count=40)
