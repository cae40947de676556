"""The choice of a prefill/decode pair: two targets, or one where a transfer would not pay.

    answer   the decode target, by the `decode` profile: it streams the answer and keeps the session's cache
    prefill  by the `prefill` profile, among those that can hand KV over to it - or none, where the decode target has
             so little left to compute that a transfer would not pay (`prefill_from_tokens`)

The decode target comes first because it decides how much there is to prefill. Sees only the contract: the caller
knows which targets can hand KV to which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from router.scheduling.policy.decision import Decision
from router.scheduling.policy.policy import Policy
from router.scheduling.selector import Selector
from scorers.contract import Row, View


class PairChoice(NamedTuple):
    """The answering target, and the one that computes its prompt; None if the answering target does that itself."""

    answer: Decision
    prefill: Decision | None


def choose_pair(
    selector: Selector, policy: Policy, view: View, prefill_rows: Callable[[str], tuple[Row, ...]]
) -> PairChoice:
    """Choose among the rows of `view` to answer, and those that `prefill_rows` returns for the answering target."""
    answer = selector.decide(view, policy, "decode")
    if not should_split(view, answer.row, policy.prefill_from_tokens):
        return PairChoice(answer, None)
    rows = prefill_rows(answer.target)
    return PairChoice(answer, selector.decide(view._replace(rows=rows), policy, "prefill") if rows else None)


def should_split(view: View, row: Row, from_tokens: int) -> bool:
    """Return whether the target of `row` has enough to compute for another instance to do it. Only whole blocks can
    be cached, so up to a block is left even where everything is cached. A prompt of unknown length counts as long:
    it may be, and a needless leg costs less than a long prefill amid running answers.
    """
    if view.prompt_tokens is None:
        return True
    overlap = row.overlap
    held = 0 if overlap is None else max(overlap.expected_tokens, overlap.disk_tokens)
    if view.pool is not None:  # an engine loads all that the pool has
        held = max(held, view.pool.tokens)
    left = view.prompt_tokens - held
    return left >= from_tokens and left > (row.block_tokens or 0)
