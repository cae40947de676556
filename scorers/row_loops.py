"""Loops over all rows of a decision, each for one plug-in. They are separate from the plug-ins because this module
is compiled and plug-ins are not (setup.py). The plug-ins describe the formulas and the meaning of a missing value.
"""

from __future__ import annotations

from collections.abc import Sequence

from scorers.blocks import sent_tokens, tier_tokens, used_tokens
from scorers.contract import Row, View
from scorers.polled import fill_missing
from scorers.ttft import others_waiting, prefill_ms, prompt_of


def relative_requests(rows: Sequence[Row], stale_s: float) -> list[float]:
    """Return the requests at each row, ours and others', scaled from the fewest (0) to the most (1), for
    `queue_depth`.
    """
    counts: list[float] = []
    silent: list[int] = []
    reported = 0.0
    for row in rows:
        load = row.load
        count = float(load.requests)
        elsewhere, age_s = load.elsewhere, load.metrics_age_s
        if elsewhere is None or age_s is None or age_s > stale_s:
            silent.append(len(counts))
        else:
            reported += elsewhere
            count += elsewhere
        counts.append(count)
    if silent and len(silent) < len(counts):
        typical = reported / (len(counts) - len(silent))
        for i in silent:
            counts[i] += typical
    least, most = least_and_most(counts)
    spread = most - least
    return [(count - least) / spread for count in counts] if spread > 0 else [0.0] * len(counts)


def least_and_most(values: list[float]) -> tuple[float, float]:
    """Return the least and the greatest of `values`, which must not be empty. Once compiled, this is faster than
    `min`.
    """
    least = most = values[0]
    for value in values:
        if value < least:
            least = value
        elif value > most:
            most = value
    return least, most


def kv_usages(rows: Sequence[Row], stale_s: float) -> list[float]:
    """Return the share of KV memory in use at each row, between 0 and 1, for `kv_usage`."""
    known: list[float | None] = []
    for row in rows:
        load = row.load
        usage, age_s = load.kv_usage, load.metrics_age_s
        known.append(usage if age_s is not None and age_s <= stale_s else None)
    costs = fill_missing(known)
    least, most = least_and_most(costs)
    if least < 0 or most > 1:  # no engine should report such a number, but the router does not control it
        return [min(1.0, max(0.0, cost)) for cost in costs]
    return costs


def all_but(rows: Sequence[Row], target: str | None) -> list[float]:
    """Return 0 for the row of `target` and 1 for every other row, for `session_affinity`."""
    return [0.0 if row.target == target else 1.0 for row in rows]


def missing_shares(tokens: list[float], whole: float) -> list[float]:
    """Return the share of `whole` tokens that each row lacks, for `prefix_overlap`."""
    return [0.0 if held >= whole else 1 - held / whole for held in tokens]


def add_short_match(shares: list[float], tokens: list[float], weight: float, scale: float) -> list[float]:
    """Return `shares` with the part `weight` of each replaced by what the match lacks in length, for
    `prefix_overlap`.
    """
    lengths = [1 - min(1.0, held / scale) ** 2 for held in tokens]
    return [(1 - weight) * share + weight * lengths[i] for i, share in enumerate(shares)]


def rank_matches(requests: list[int], held: list[float], whole: int, bound: float, most: int) -> list[float]:
    """Return a rank for each row, for `aibrix_prefix`: the negative match in per cent, plus a fraction for the
    requests, if the row has a match and at most `bound` requests; else its requests.
    """
    ranks: list[float] = []
    for i, count in enumerate(requests):
        match = min(100, int(100 * held[i] / whole))
        # one per cent outweighs all requests together: the fraction added for them stays below 1
        ranks.append(count / (most + 1) - match if match and count <= bound else float(count))
    return ranks


def few_waiting(rows: Sequence[Row], most: int, stale_s: float) -> list[bool]:
    """Return whether at most `most` requests wait in each row's engine, for `max_waiting`. True if the engine has
    not reported its queue within `stale_s`.
    """
    few: list[bool] = []
    for row in rows:
        load = row.load
        waiting, age_s = load.waiting, load.metrics_age_s
        few.append(waiting is None or age_s is None or age_s > stale_s or waiting <= most)
    return few


def near_or_first(view: View, share: float, stale_s: float) -> list[bool]:
    """Return which rows hold `share` of the longest run, or have the least wait, for `near_longest`."""
    near = _near_longest(view.rows, share)
    if False not in near:
        return near
    waits = _waits_ms(view, stale_s)
    least, _ = least_and_most(waits)
    return [near[i] or wait == least for i, wait in enumerate(waits)]


def _near_longest(rows: Sequence[Row], share: float) -> list[bool]:
    """Return which rows hold `share` of the longest run on any GPU, or over all tiers of any."""
    fast = slow = 0
    for row in rows:
        if (overlap := row.overlap) is not None:
            fast, slow = max(fast, overlap.expected_tokens), max(slow, tier_tokens(overlap))
    whole = max(fast, slow)
    if whole == 0:
        return [True] * len(rows)
    enough = share * whole
    enough_fast = share * fast or whole + 1.0  # if no GPU holds anything, no run on a GPU is near
    return [
        (overlap := row.overlap) is not None
        and (overlap.expected_tokens >= enough_fast or tier_tokens(overlap) >= enough)
        for row in rows
    ]


def _waits_ms(view: View, stale_s: float) -> list[float]:
    """Return the milliseconds of each row's queue and the requests of others, priced on the nominal instance if
    there is one.
    """
    rows = view.rows
    queued = [row.load.queued_ms for row in rows]
    others = others_waiting(rows, stale_s)
    if not any(others):
        return queued
    whole = view.prompt_tokens or prompt_of(view, pool=False).whole
    nominal = view.nominal
    if nominal is not None:
        each = prefill_ms(nominal, whole, 0)
        return [ours + others[i] * each for i, ours in enumerate(queued)]
    return [ours + others[i] * prefill_ms(rows[i].speed, whole, 0) for i, ours in enumerate(queued)]


def hold_enough(rows: Sequence[Row], tokens: float) -> list[bool]:
    """Return which rows hold at least `tokens` tokens of the prompt on their GPU, for `affinity_gate`."""
    return [(overlap := row.overlap) is not None and sent_tokens(overlap) >= tokens for row in rows]


def lead_ms(costs: list[float], flags: list[bool]) -> float:
    """Return the difference between the least of the flagged costs and the least of all costs, for
    `affinity_gate`.
    """
    flagged, _ = least_and_most([cost for i, cost in enumerate(costs) if flags[i]])
    least, _ = least_and_most(costs)
    return flagged - least


def best_holders_first(rows: Sequence[Row], ttfts: list[float], unknown: int, objective: float) -> list[float]:
    """Return `ttfts` for `dualmap`. If a row that holds the most meets `objective`, rows that hold less cost
    `objective` more.
    """
    held = [unknown if (overlap := row.overlap) is None else sent_tokens(overlap) for row in rows]
    most = max(held)
    least, _ = least_and_most([ttft for i, ttft in enumerate(ttfts) if held[i] == most])
    if least > objective:
        return ttfts
    return [ttft if held[i] == most else ttft + objective for i, ttft in enumerate(ttfts)]


def add_weighted(costs: list[float], more: list[float], weight: float) -> list[float]:
    """Return `costs`, each increased by `weight` times its entry of `more`, for `warm`."""
    return [cost + weight * more[i] for i, cost in enumerate(costs)]


def roomiest(rows: Sequence[Row], costs: Sequence[float], least: float) -> list[int]:
    """Return the indices of the rows that cost `least` and have the most free cache memory, in blocks, by the names of
    their targets, for `best`. All that cost `least` are returned if the free memory of one of them is unknown.
    """
    tied = [i for _, i in sorted([(rows[i].target, i) for i, cost in enumerate(costs) if cost == least])]
    free: list[int] = []
    for i in tied:
        row = rows[i]
        block_tokens, capacity_tokens, held_tokens = row.block_tokens, row.capacity_tokens, row.held_tokens
        if block_tokens is None or capacity_tokens is None or held_tokens is None:
            return tied
        free.append(max(0, capacity_tokens - held_tokens) // block_tokens)
    most = max(free)
    return [i for i, blocks in zip(tied, free, strict=True) if blocks == most]


def charged_blocks(
    rows: Sequence[Row], prompt_tokens: int, unit: int, share_exponent: float, load_exponent: float
) -> list[float]:
    """Return the blocks of `unit` tokens that each row is charged for, for `jsew`."""
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
    """Return the milliseconds to the first token of a prompt of `whole` tokens at each row, for `mooncake_alg1`.
    Each row holds `held` tokens of the prompt, and a prefix that is `ratio` times as long is always fetched from
    its holder.
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
    """Return the cost of each row's queue plus that of a prompt of `whole` tokens, of which the row holds `held`,
    for `smetric`.
    """
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
    """Return the cost of a prompt of `whole` tokens at a target that holds `held` of them, for `smetric`."""
    new = max(0, whole - held)
    return linear * new + attended * new * (whole - new / 2)
