"""The fleet's typical instance, as a `Speed`: work that is the same everywhere must have the same price everywhere.

Pricing a prompt by the candidate's own speed says how long it will take *there*; pricing it by the typical instance
says how much work it is (`View.nominal`). Each coefficient is the median over the instances, so that one that is
stuck, or whose fit went astray, moves nothing. Instances that have shown nothing carry the configured prior, which is
a guess about all of them: as soon as one has shown something, only those that have are asked, for the prefill curve,
for each link and for the decode step separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TypeVar

from router.fleet.recursive_least_squares import round_to_six_digits
from scorers.contract import Decode, Speed, Transfer

Part = TypeVar("Part", Speed, Transfer, Decode)


def median_speed(speeds: Sequence[Speed]) -> Speed | None:
    """Of one speed per instance; `samples` is their sum, `age_s` the least. None: there is no instance."""
    if len(speeds) <= 1:
        return speeds[0] if speeds else None
    curves = _told(speeds)
    return Speed(
        _middle([curve.base_ms for curve in curves]),
        _middle([curve.us_per_token for curve in curves]),
        _middle([curve.ns_per_token_context for curve in curves]),
        _samples(curves),
        _age_s(curves),
        cpu=_link([speed.cpu for speed in speeds]),
        disk=_link([speed.disk for speed in speeds]),
        pool=_link([speed.pool for speed in speeds]),
        pool_disk=_link([speed.pool_disk for speed in speeds]),
        peer=_link([speed.peer for speed in speeds]),
        decode=_decode([speed.decode for speed in speeds]),
    )


def _link(all_links: Sequence[Transfer | None]) -> Transfer | None:
    links = _told([link for link in all_links if link is not None])
    if not links:
        return None
    return Transfer(
        _middle([link.base_ms for link in links]),
        _middle([link.us_per_token for link in links]),
        _samples(links),
        _age_s(links),
    )


def _decode(all_steps: Sequence[Decode | None]) -> Decode | None:
    steps = _told([step for step in all_steps if step is not None])
    if not steps:
        return None
    return Decode(
        _middle([step.base_ms for step in steps]),
        _middle([step.us_per_request for step in steps]),
        _middle([step.ns_per_context_token for step in steps]),
        _samples(steps),
        _age_s(steps),
    )


def _told(parts: Sequence[Part]) -> Sequence[Part]:
    """Those that were learned, if any were."""
    return [part for part in parts if part.samples] or parts


def _middle(coefficients: list[float]) -> float:
    return round_to_six_digits(median(coefficients))


def _samples(parts: Sequence[Part]) -> int:
    return sum(part.samples for part in parts)


def _age_s(parts: Sequence[Part]) -> float | None:
    return min((part.age_s for part in parts if part.age_s is not None), default=None)
