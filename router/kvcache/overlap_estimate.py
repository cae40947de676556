"""What a target is believed to hold of a prompt: three rules, over what is known of it.

    its stream is trusted               what the index has of it ----------+
    no stream, or no trust in it        what was sent there lately --------+--> Belief
    in either case, beside it           what is on its way there ----------+

A stream that was joined late says nothing of what was cached before: where it knows of nothing, what the target holds
is *unknown* (None) until as many blocks have been stored as fit into it. Reads what others write, and keeps of it only
what it last said.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from router.kvcache.event_sequencer import EventSequencer
from router.kvcache.events import Key, TargetId
from router.kvcache.index import BlockIndex, HeldBlocks
from router.kvcache.overlap_groups import NO_OVERLAP, usable
from router.kvcache.speculative import ApproximateBlocks, SpeculativeBlocks
from router.kvcache.target_state import TargetCacheState
from router.kvcache.tokenized_prompt import TokenizedPrompt
from scorers.contract import Overlap


class OverlapEstimate(NamedTuple):
    """What one target is believed to hold of one prompt.

    `promised_tokens` is what its events say, in any tier of its own, whether they are trusted or not (None: it has no
    stream): promises are held against deliveries even while they are not used, so that trust can come back.
    """

    overlap: Overlap | None
    indexed_tokens: int | None
    block_tokens: int | None  # None: it has told no size yet
    held_blocks: int  # leading ones that need not be expected: they are on its GPU, by events or approximately


NOTHING = HeldBlocks(0, 0, 0)
LATELY_S = 0.1
HOLDS_NOTHING = OverlapEstimate(NO_OVERLAP, 0, None, 0)


class _Lately(NamedTuple):
    held: HeldBlocks
    belief: OverlapEstimate


class OverlapEstimator:
    """Of everybody in `stories`, which the caller keeps; he says whenever one of them went on (`went_on`)."""

    def __init__(
        self,
        index: BlockIndex,
        expected: SpeculativeBlocks,
        approximate: ApproximateBlocks,
        stories: Mapping[TargetId, TargetCacheState],
    ) -> None:
        self._index = index
        self._expected = expected
        self._approximate = approximate
        self._stories = stories
        # Of targets with a trusted stream, what was believed last: most hold as much of the next prompt, nothing or the
        # same beginning. Kept until the target tells something; ages are good to `LATELY_S`.
        self._lately: dict[TargetId, _Lately] = {}
        self._lately_since = 0.0

    def invalidate(self, target: TargetId) -> None:
        self._lately.pop(target, None)

    def estimate(
        self,
        known: TokenizedPrompt,
        block_tokens: Mapping[TargetId, int | None],
        distrusted: Collection[TargetId],
        now: float,
    ) -> dict[TargetId, OverlapEstimate]:
        """One belief per target of `block_tokens`, which names their block sizes. `distrusted`: they broke promises."""
        beliefs: dict[TargetId, OverlapEstimate] = {}
        for target, its_size in block_tokens.items():
            if its_size is None and (book := self._trusted_book(target)) is not None and not book.joined_late:
                beliefs[target] = HOLDS_NOTHING  # not one block was stored there yet, or its size would be known
        for size in {size for size in block_tokens.values() if size is not None}:
            if size not in known.keys:  # it appeared while the prompt was being tokenised
                continue
            targets = [target for target, its_size in block_tokens.items() if its_size == size]
            self._add_beliefs(beliefs, usable(known, size), size, targets, distrusted, now)
        return beliefs

    def _add_beliefs(
        self,
        beliefs: dict[TargetId, OverlapEstimate],
        keys: Sequence[Key],
        size: int,
        targets: Sequence[TargetId],
        distrusted: Collection[TargetId],
        now: float,
    ) -> None:
        """Of `targets`, whose blocks have `size`."""
        if now - self._lately_since > LATELY_S:
            self._lately.clear()
            self._lately_since = now
        reach, lately = self._index.match(keys, targets), self._lately
        bringing: dict[int, Collection[TargetId]] = {}  # by how much they hold: who gets the block after that
        for target in targets:
            held = reach.get(target, NOTHING)
            if (soon := bringing.get(held.gpu)) is None:
                soon = self._expected.targets_expecting(keys[held.gpu], now) if held.gpu < len(keys) else ()
                bringing[held.gpu] = soon
            looked_at = target in soon or target in distrusted
            kept = lately.get(target)
            if kept is not None and kept.held == held and kept.belief.block_tokens == size and not looked_at:
                beliefs[target] = kept.belief
                continue
            belief = beliefs[target] = self._of_one(target, keys, size, held, target not in distrusted, now)
            if not looked_at and self._trusted_book(target) is not None:
                lately[target] = _Lately(held, belief)

    def _trusted_book(self, target: TargetId) -> EventSequencer | None:
        story = self._stories.get(target)
        return (
            story.sequencer if story is not None and story.sequencer is not None and story.sequencer.trusted else None
        )

    def _of_one(
        self, target: TargetId, keys: Sequence[Key], size: int, held: HeldBlocks, believed: bool, now: float
    ) -> OverlapEstimate:
        story = self._stories.get(target)
        book = story.sequencer if story is not None else None
        promised = None if book is None else held.disk * size
        heard_s = None if book is None else book.last_heard_s
        # To the millisecond, as views are logged; a third of what `round` costs.
        age_s = None if heard_s is None else ((now - heard_s) * 1e3 + 0.5) // 1 / 1e3
        if story is None or book is None or not book.trusted or not believed:
            likely = self._approximate.leading_blocks(target, keys, now)
            if believed:  # between two replays the index is behind, not wrong
                likely = max(likely, held.gpu)
            expected = self._expected.leading_blocks(target, keys, likely, now)
            tokens = likely * size
            overlap = Overlap(tokens, tokens, tokens, expected * size, "approximate", age_s)
            return OverlapEstimate(overlap, promised, size, likely)
        expected = self._expected.leading_blocks(target, keys, held.gpu, now)
        if not expected and not held.disk and book.joined_late and not story.turned_over:
            return OverlapEstimate(None, promised, size, 0)
        overlap = Overlap(held.gpu * size, held.cpu * size, held.disk * size, expected * size, "events", age_s)
        return OverlapEstimate(overlap, promised, size, held.gpu)
