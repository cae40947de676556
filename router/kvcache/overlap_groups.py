"""What a whole fleet holds of a prompt, without naming most of it: groups of targets that hold the same.

Most targets of a large fleet hold nothing of a prompt, or the same short beginning, and a choice looks at few of
them. So the largest group is told by what it holds alone: it is everybody who is named nowhere else. The index answers
in bits (`holders.py`), of which one operation takes in all targets; only the members of smaller groups are named.

That is the word of the index alone. Of whom more must be asked (no trusted stream, or blocks on their way) is said
beside it.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple

from router.kvcache.events import Key, TargetId
from router.kvcache.index import BlockIndex, HeldBlocks
from router.kvcache.speculative import SpeculativeBlocks
from router.kvcache.tokenized_prompt import TokenizedPrompt
from scorers.contract import Overlap

NO_OVERLAP = Overlap(0, 0, 0, 0, "events", None)


class OverlapGroup(NamedTuple):
    overlap: Overlap  # of an unknown age
    targets: Sequence[TargetId]


class OverlapGroups(NamedTuple):
    groups: Sequence[OverlapGroup]
    rest: Overlap  # of all that are in no group
    unsure: Set[TargetId]  # for whom that is not all, or nothing, that is believed


def outline(
    index: BlockIndex, expected: SpeculativeBlocks, known: TokenizedPrompt, unsure: Set[TargetId], now: float
) -> OverlapGroups:
    """`unsure`: for whom the index does not speak. Those that `expected` knows to get the next block of a group are
    added. What it takes grows with the targets outside of the largest group.
    """
    parts: list[tuple[Overlap, int]] = []
    nobody, waiting = index.all_bits, set(unsure)
    for size in known.keys:
        keys = usable(known, size)
        for bits, held in index.match_all(keys):
            if held.gpu < len(keys):
                waiting.update(expected.targets_expecting(keys[held.gpu], now))
            if held.disk:
                parts.append((_overlap(held, size), bits))
                nobody &= ~bits
    parts.append((NO_OVERLAP, nobody))
    parts.sort(key=_count)
    rest, _ = parts.pop()
    return OverlapGroups([OverlapGroup(overlap, index.targets_of(bits)) for overlap, bits in parts], rest, waiting)


def usable(known: TokenizedPrompt, size: int) -> Sequence[Key]:
    """The last token is always computed: a hit ends at the block before (protocol 4.5)."""
    keys = known.keys[size]
    return keys[:-1] if known.complete and len(known.ids) == len(keys) * size else keys


def _count(part: tuple[Overlap, int]) -> int:
    return part[1].bit_count()


def _overlap(held: HeldBlocks, size: int) -> Overlap:
    return Overlap(held.gpu * size, held.cpu * size, held.disk * size, held.gpu * size, "events", None)
