"""What a workload really has: its published statistics counted on the workload itself, before anybody serves it.

The most that any cache could give is counted with an infinite one that everybody shares. It stores spans, not blocks:
a tree whose nodes are "this source, so far, after that node", so that a context of 80,000 tokens costs a few dozen
steps and not five thousand.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain, pairwise
from statistics import fmean, median
from typing import NamedTuple

from router.testbed.workloads import Session, Span, Workload
from router.testbed.workloads.offered_load import arrival_rate


class WorkloadStatistics(NamedTuple):
    """Means, medians and 90th percentiles are over what they name: sessions, or turns (requests) of all sessions."""

    sessions: int
    turns: int
    per_s: float | None  # requests per second; None: a closed loop, or all of them at once
    median_turns: float
    mean_first_tokens: float
    mean_growth_tokens: float  # from one prompt to the next
    median_last_tokens: float  # the prompt of a session's last turn
    longest_tokens: int
    input_tokens: int
    mean_input_tokens: float
    median_input_tokens: float
    p90_input_tokens: float
    output_tokens: int
    mean_output_tokens: float
    median_output_tokens: float
    p90_output_tokens: float
    ideal_share: float  # of input tokens found by an infinite cache of whole blocks, shared by all
    shared_share: float  # of input tokens: what turns of different sessions have in common
    median_think_s: float

    @property
    def input_per_output(self) -> float:
        return self.input_tokens / self.output_tokens


def compute_statistics(workload: Workload, block_tokens: int) -> WorkloadStatistics:
    """Turns are taken session by session, in the sessions' order of start. Raises ValueError for an empty workload."""
    if not len(workload.sessions):
        raise ValueError(f"workload {workload.name}: it has no requests")
    hit, common = _found(workload, block_tokens)
    prompts: list[list[int]] = []
    outputs, pauses_s = array("q"), array("d")
    for session in workload.sessions:
        prompts.append([turn.prompt_tokens for turn in session.turns])
        outputs.extend(turn.output_tokens for turn in session.turns)
        pauses_s.extend(turn.think_s for turn in session.turns)
    inputs = array("q", chain.from_iterable(prompts))
    given = sum(inputs)
    return WorkloadStatistics(
        sessions=len(prompts),
        turns=len(inputs),
        per_s=arrival_rate(workload) or None,
        median_turns=median(map(len, prompts)),
        mean_first_tokens=fmean(own[0] for own in prompts),
        mean_growth_tokens=fmean([b - a for own in prompts for a, b in pairwise(own)] or [0]),
        median_last_tokens=median(own[-1] for own in prompts),
        longest_tokens=max(inputs),
        input_tokens=given,
        mean_input_tokens=given / len(inputs),
        median_input_tokens=median(inputs),
        p90_input_tokens=_p90(inputs),
        output_tokens=sum(outputs),
        mean_output_tokens=sum(outputs) / len(outputs),
        median_output_tokens=median(outputs),
        p90_output_tokens=_p90(outputs),
        ideal_share=hit / given,
        shared_share=common / given,
        median_think_s=median(pauses_s),
    )


def _found(workload: Workload, block_tokens: int) -> tuple[int, int]:
    """Tokens of all prompts that an infinite cache finds, and those that turns of different sessions have in common."""
    cache, alone = InfiniteCache(), InfiniteCache()
    hit = common = 0
    for session in sorted(workload.sessions, key=_start_s) if workload.is_closed else workload.sessions:
        for prompt, answered in (seen := session_contexts(session)):
            hit += _whole(cache.matched(prompt), prompt, block_tokens)
            common += alone.matched(prompt)
            cache.add(answered)
        alone.add(seen[-1][1])
    return hit, common


def _start_s(session: Session) -> float:
    return session.start_s


def _p90(values: Sequence[int]) -> int:
    """Nearest rank."""
    return sorted(values)[(9 * len(values) - 1) // 10]


def session_contexts(session: Session) -> list[tuple[list[Span], list[Span]]]:
    """Per turn the prompt as spans, and the prompt with its answer as the engine has cached it.

    The last token of an answer is never run through the model, so no engine has its KV.
    """
    seen: list[tuple[list[Span], list[Span]]] = []
    context: list[Span] = []
    for number, turn in enumerate(session.turns):
        prompt = take_tokens(context, turn.kept_tokens) + list(turn.fresh)
        answer = session.answer(number)
        context = [*prompt, answer]
        seen.append((prompt, [*prompt, Span(answer.source, answer.tokens - 1)]))
    return seen


def take_tokens(spans: Sequence[Span], tokens: int) -> list[Span]:
    """The leading spans that hold `tokens` tokens, the last one shortened."""
    kept: list[Span] = []
    for span in spans:
        if tokens <= 0:
            break
        kept.append(Span(span.source, min(span.tokens, tokens)))
        tokens -= span.tokens
    return kept


def _whole(matched: int, prompt: Sequence[Span], block_tokens: int) -> int:
    """In whole blocks, and never the whole prompt: its last token must be computed for the first answer token."""
    return min(matched, sum(span.tokens for span in prompt) - 1) // block_tokens * block_tokens


class InfiniteCache:
    """Prefixes of spans; nothing is ever forgotten."""

    def __init__(self) -> None:
        self._longest: dict[tuple[int, int], int] = {}  # (node, source) -> tokens of the source cached after the node
        self._nodes: dict[tuple[int, int, int], int] = {}  # (node, source, tokens) -> the node that follows

    def matched(self, spans: Sequence[Span]) -> int:
        """Leading tokens that are cached."""
        node, matched = 0, 0
        for source, tokens in spans:
            cached = self._longest.get((node, source), 0)
            matched += min(cached, tokens)
            following = self._nodes.get((node, source, tokens))
            if cached < tokens or following is None:
                break
            node = following
        return matched

    def add(self, spans: Sequence[Span]) -> None:
        node = 0
        for source, tokens in spans:
            self._longest[node, source] = max(tokens, self._longest.get((node, source), 0))
            node = self._nodes.setdefault((node, source, tokens), len(self._nodes) + 1)
