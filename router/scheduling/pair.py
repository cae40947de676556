"""Prefill and decode on two instances: which two, or why one is enough.

    answer   the decode target, by the `decode` profile: it streams the answer and keeps the session's cache
    prefill  by the `prefill` profile, among those that can hand KV over to it - or nobody, where the decode target has
             so little left to compute that a transfer would not pay (`prefill_from_tokens`)

The decode target comes first because it decides how much there is to prefill. Sees only the contract: who can hand KV
to whom is the caller's knowledge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from router.scheduling.policy.decision import Decision
from router.scheduling.policy.policy import Policy
from router.scheduling.selector import Selector
from scorers.contract import Row, View


class PairChoice(NamedTuple):
    """Who answers, and who computes the prompt for it; None: the answering target does that itself."""

    answer: Decision
    prefill: Decision | None


def choose_pair(
    desk: Selector, policy: Policy, view: View, prefill_rows: Callable[[str], tuple[Row, ...]]
) -> PairChoice:
    """`view` has the rows that may answer; `prefill_rows` those that may prefill for a given target."""
    answer = desk.decide(view, policy, "decode")
    if not should_split(view, answer.row, policy.prefill_from_tokens):
        return PairChoice(answer, None)
    rows = prefill_rows(answer.target)
    return PairChoice(answer, desk.decide(view._replace(rows=rows), policy, "prefill") if rows else None)


def should_split(view: View, row: Row, from_tokens: int) -> bool:
    """Whether the target of `row` has enough to compute for another instance to do it.

    Whole blocks are what can be cached, so up to a block is left even where everything is. A prompt of unknown length
    counts as long: it may be, and a needless leg costs less than a long prefill amid running answers.
    """
    if view.prompt_tokens is None:
        return True
    overlap = row.overlap
    held = 0 if overlap is None else max(overlap.expected_tokens, overlap.disk_tokens)
    if view.pool is not None:  # an engine loads whatever the pool has
        held = max(held, view.pool.tokens)
    left = view.prompt_tokens - held
    return left >= from_tokens and left > (row.block_tokens or 0)
