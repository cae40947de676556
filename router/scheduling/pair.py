"""The choice of a prefill/decode pair: two targets, or one target if a transfer would not pay.

    answer   the decode target, chosen by the `decode` profile: it streams the answer and keeps the session's cache
    prefill  the prefill target, chosen by the `prefill` profile among the targets that can hand KV to the decode
             target; none if the decode target has so little to compute that a transfer would not pay
             (`prefill_from_tokens`)

The decode target is chosen first because its cache determines how much there is to prefill. This module depends
only on the contract: the caller finds the targets that can hand KV to a decode target.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from router.scheduling.policy.decision import Decision
from router.scheduling.policy.policy import Policy
from router.scheduling.selector import Selector
from scorers.contract import Row, View


class PairChoice(NamedTuple):
    """The choice of the answering target and of the prefill target; None if the answering target prefills."""

    answer: Decision
    prefill: Decision | None


def choose_pair(
    selector: Selector, policy: Policy, view: View, prefill_rows: Callable[[str], tuple[Row, ...]]
) -> PairChoice:
    """Choose the answering target among the rows of `view`, and the prefill target among the rows that
    `prefill_rows` returns for the answering target.
    """
    answer = selector.decide(view, policy, "decode")
    if not should_split(view, answer.row, policy.prefill_from_tokens):
        return PairChoice(answer, None)
    rows = prefill_rows(answer.target)
    return PairChoice(answer, selector.decide(view._replace(rows=rows), policy, "prefill") if rows else None)


def should_split(view: View, row: Row, from_tokens: int) -> bool:
    """Return whether the target of `row` has enough tokens to compute that another instance should prefill them.
    Only whole blocks can be cached, so up to a block is left even if everything is cached. A prompt of unknown
    length counts as long, because a needless prefill half costs less than a long prefill beside running answers.
    """
    if view.prompt_tokens is None:
        return True
    overlap = row.overlap
    held = 0 if overlap is None else max(overlap.expected_tokens, overlap.disk_tokens)
    if view.pool is not None:  # an engine loads all that the pool has
        held = max(held, view.pool.tokens)
    left = view.prompt_tokens - held
    return left >= from_tokens and left > (row.block_tokens or 0)
