"""Loops over all rows of a decision that one plug-in each needs: apart from it, since this is compiled and plug-ins are
not (setup.py). The plug-ins describe the formulas and what a missing value means.
"""

from __future__ import annotations

from collections.abc import Sequence

from scorers.blocks import used_tokens
from scorers.contract import Row
from scorers.polled import fill_missing
from scorers.ttft import prefill_ms


def relative_requests(rows: Sequence[Row], stale_s: float) -> list[float]:
    """Return the requests at each row, ours and others', between the fewest (0) and the most (1): `queue_depth`."""
    known: list[float | None] = []
    for row in rows:
        load = row.load
        age_s = load.metrics_age_s
        known.append(load.elsewhere if age_s is not None and age_s <= stale_s else None)
    counts = fill_missing(known)
    for i, row in enumerate(rows):
        counts[i] += row.load.requests
    least = min(counts)
    spread = max(counts) - least
    return [(count - least) / spread for count in counts] if spread > 0 else [0.0] * len(counts)


def few_waiting(rows: Sequence[Row], most: int, stale_s: float) -> list[bool]:
    """Return whether at most `most` requests wait in each row's engine, as far as it has reported: `max_waiting`."""
    few: list[bool] = []
    for row in rows:
        load = row.load
        waiting, age_s = load.waiting, load.metrics_age_s
        few.append(waiting is None or age_s is None or age_s > stale_s or waiting <= most)
    return few


def near_longest(rows: Sequence[Row], share: float) -> list[bool]:
    """Return which rows hold `share` of the longest run on any GPU, or over all tiers of any: `near_longest`."""
    overlaps = [row.overlap for row in rows]
    fast = max([overlap.expected_tokens for overlap in overlaps if overlap is not None], default=0)
    whole = max(fast, max([overlap.disk_tokens for overlap in overlaps if overlap is not None], default=0))
    if whole == 0:
        return [True] * len(rows)
    enough = share * whole
    enough_fast = share * fast or whole + 1.0  # with nothing on any GPU no run there is near
    return [
        overlap is not None and (overlap.expected_tokens >= enough_fast or overlap.disk_tokens >= enough)
        for overlap in overlaps
    ]


def charged_blocks(
    rows: Sequence[Row], prompt_tokens: int, unit: int, share_exponent: float, load_exponent: float
) -> list[float]:
    """Return the blocks of `unit` tokens that each row is charged for: `jsew`."""
    unshared: list[float] = []
    for row in rows:
        load = row.load
        unshared.append((used_tokens(load) + prompt_tokens) / unit * max(1, load.requests) ** share_exponent)
    mean = sum(unshared) / len(unshared)
    if mean == 0:
        return unshared
    bend = load_exponent - 1
    return [blocks * (blocks / mean) ** bend if blocks else 0.0 for blocks in unshared]


def fetch_longest_ms(rows: Sequence[Row], held: Sequence[int], whole: int, pooled: int, ratio: float) -> list[float]:
    """Return the milliseconds to the first token of `whole` tokens, where each row holds `held` of them and a prefix
    that is `ratio` times as long is always fetched from where it is: `mooncake_alg1`.
    """
    longest = max(held)
    best = max(longest, pooled)
    costs: list[float] = []
    for i, row in enumerate(rows):
        speed, queued_ms, own = row.speed, row.load.queued_ms, held[i]
        link = speed.pool if pooled >= longest else speed.peer
        if link is None or own == best or best < ratio * own:
            costs.append(queued_ms + prefill_ms(speed, whole - own, own))
        else:
            transfer_ms = link.base_ms + link.us_per_token * (best - own) / 1000
            costs.append(transfer_ms + queued_ms + prefill_ms(speed, whole - best, best))
    return costs


def queue_costs(rows: Sequence[Row], held: Sequence[int], whole: int, linear: float, attended: float) -> list[float]:
    """Return the cost of each row's queue with a prompt of `whole` tokens, of which the row holds `held`: `smetric`."""
    costs: list[float] = []
    for i, row in enumerate(rows):
        load = row.load
        if load.prefilling and load.requests:
            each = load.prefill_tokens / load.prefilling
            length = max(each, load.context_tokens / load.requests)
            queued = load.prefilling * (linear * each + attended * each * (length - each / 2))
        else:
            queued = linear * load.prefill_tokens
        costs.append(queued + prompt_cost(whole, held[i], linear, attended))
    return costs


def prompt_cost(whole: int, held: int, linear: float, attended: float) -> float:
    """Return the cost of a prompt of `whole` tokens where `held` of them are: `smetric`."""
    new = max(0, whole - held)
    return linear * new + attended * new * (whole - new / 2)
