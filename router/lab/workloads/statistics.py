"""Statistics of a workload, counted on the workload itself before it is served, to compare with published ones.

The upper bound of cache hits is counted with an infinite cache that all sessions share. It stores spans, not
blocks: a tree with nodes "this source, up to here, after that node", so that a context of 80,000 tokens costs a few
dozen steps and not five thousand. How often single blocks are used determines, more than the mean, the necessary
size of a cache and whether hot blocks need several copies.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple

from router.lab.workloads.block_names import SessionContext
from router.lab.workloads.model import ClosedLoopPace, Span, Workload, lay_out, session_contexts
from router.lab.workloads.offered_load import arrival_rate


class WorkloadStatistics(NamedTuple):
    """Means, medians and 90th percentiles over sessions or turns (requests), as each name states.

    Figures of sessions, their turns, and first and last prompts exclude sub-agents; all other figures include them.
    """

    sessions: int
    sub_agents: int
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
    shared_share: float  # of input tokens: shared between turns of different sessions
    median_think_s: float
    under_1_s: float | None  # share of pauses between an answer and the session's next request; None: no pauses
    under_10_s: float | None

    @property
    def input_per_output(self) -> float:
        return self.input_tokens / self.output_tokens


def compute_statistics(workload: Workload, block_tokens: int) -> WorkloadStatistics:
    """Count a workload session by session, in the order of their starts. Raises ValueError if it has none."""
    if not len(workload.sessions):
        raise ValueError(f"workload {workload.name}: it has no requests")
    hit, common = _count_hits(workload, block_tokens)
    prompts: list[list[int]] = []
    inputs, outputs, pauses_s, gaps_s = array("q"), array("q"), array("d"), array("d")
    for session in workload.sessions:
        prompts.append([turn.prompt_tokens for turn in session.turns])
        for one in session.family():
            inputs.extend(turn.prompt_tokens for turn in one.turns)
            outputs.extend(turn.output_tokens for turn in one.turns)
            pauses_s.extend(turn.think_s for turn in one.turns)
            gaps_s.extend(turn.think_s for turn in one.turns[1:])
    total = sum(inputs)
    return WorkloadStatistics(
        sessions=len(prompts),
        sub_agents=sum(1 for session in workload.sessions for _ in session.family()) - len(prompts),
        turns=len(inputs),
        per_s=arrival_rate(workload) or None,
        median_turns=median(map(len, prompts)),
        mean_first_tokens=fmean(own[0] for own in prompts),
        mean_growth_tokens=fmean([b - a for own in prompts for a, b in pairwise(own)] or [0]),
        median_last_tokens=median(own[-1] for own in prompts),
        longest_tokens=max(inputs),
        input_tokens=total,
        mean_input_tokens=total / len(inputs),
        median_input_tokens=median(inputs),
        p90_input_tokens=_p90(inputs),
        output_tokens=sum(outputs),
        mean_output_tokens=sum(outputs) / len(outputs),
        median_output_tokens=median(outputs),
        p90_output_tokens=_p90(outputs),
        ideal_share=hit / total,
        shared_share=common / total,
        median_think_s=median(pauses_s),
        under_1_s=_share_below(gaps_s, 1.0),
        under_10_s=_share_below(gaps_s, 10.0),
    )


def _share_below(values: Sequence[float], limit: float) -> float | None:
    return sum(1 for value in values if value < limit) / len(values) if values else None


def _count_hits(workload: Workload, block_tokens: int) -> tuple[int, int]:
    """Return the prompt tokens found in an infinite cache, and those shared between turns of different sessions."""
    cache, alone = InfiniteCache(), InfiniteCache()
    hit = common = 0
    families = (
        sorted(workload.sessions, key=lambda session: session.start_s) if workload.is_closed else workload.sessions
    )
    for session in (one for family in families for one in family.family()):
        for prompt, answered in (seen := session_contexts(session)):
            hit += _whole(cache.match(prompt), prompt, block_tokens)
            common += alone.match(prompt)
            cache.add(answered)
        alone.add(seen[-1][1])
    return hit, common


def _p90(values: Sequence[int]) -> int:
    """Return the 90th percentile by nearest rank."""
    return sorted(values)[(9 * len(values) - 1) // 10]


def _whole(matched: int, prompt: Sequence[Span], block_tokens: int) -> int:
    """Return `matched` in whole blocks, below the prompt's length: its last token is always computed."""
    return min(matched, sum(span.tokens for span in prompt) - 1) // block_tokens * block_tokens


class InfiniteCache:
    """A cache of prefixes of spans that evicts nothing."""

    def __init__(self) -> None:
        self._longest: dict[tuple[int, int], int] = {}  # (node, source) -> tokens of the source cached after the node
        self._nodes: dict[tuple[int, int, int], int] = {}  # (node, source, tokens) -> the node that follows

    def match(self, spans: Sequence[Span]) -> int:
        """Return how many leading tokens are cached."""
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
        """Cache `spans` with all their prefixes."""
        node = 0
        for source, tokens in spans:
            self._longest[node, source] = max(tokens, self._longest.get((node, source), 0))
            node = self._nodes.setdefault((node, source, tokens), len(self._nodes) + 1)


class BlockReuse(NamedTuple):
    """Reuse of the full blocks of all prompts."""

    blocks: int  # different full blocks in all prompts
    mean_uses: float  # prompts per block
    most_uses: int
    again_share: float  # share of blocks that occur in more than one prompt


def count_reuse(workload: Workload, block_tokens: int) -> BlockReuse | None:
    """Count in how many prompts each full block occurs; None when no prompt fills a block."""
    uses: Counter[int] = Counter()
    for request in lay_out(workload, ClosedLoopPace(at_once=1)):
        prompt = SessionContext(block_tokens)
        for span in request.prompt:
            prompt.add(span)
        uses.update(prompt.names)
    if not uses:
        return None
    again = sum(1 for count in uses.values() if count > 1)
    return BlockReuse(len(uses), uses.total() / len(uses), max(uses.values()), again / len(uses))
