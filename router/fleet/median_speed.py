"""The fleet's typical instance, as a `Speed`: the same work must have the same price everywhere.

Pricing a prompt by the candidate's own speed says how long it will take *there*; pricing it by the typical instance
says how much work it is (`View.nominal`). Each coefficient is the median over the instances, so that one that is
stuck, or whose fit went astray, moves nothing. Instances without samples carry the configured prior, which is a guess
about all of them: as soon as one has samples, only those that have them count, for the prefill curve, for each link and
for the decode step separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, TypeVar

from router.fleet.recursive_least_squares import round_to_six_digits
from scorers.contract import Decode, Speed, Transfer

Part = TypeVar("Part", Speed, Transfer, Decode)


def median_speed(speeds: Sequence[Speed]) -> Speed | None:
    """Return the median of one speed per instance, or None if there is no instance. `samples` is the sum over the
    instances, `age_s` the least.
    """
    if len(speeds) <= 1:
        return speeds[0] if speeds else None
    links = ("cpu", "disk", "pool", "pool_disk", "peer")
    medians: dict[str, Any] = {link: _take_median([getattr(speed, link) for speed in speeds], 2) for link in links}
    curve = _take_median(speeds, 3)
    if curve is None:
        return None
    return curve._replace(**medians, decode=_take_median([speed.decode for speed in speeds], 3))


def _take_median(parts: Sequence[Part | None], coefficients: int) -> Part | None:
    """Return a part with the medians of the first fields of `parts`; None if all are None."""
    known = [part for part in parts if part is not None]
    learned: list[Any] = [part for part in known if part.samples] or list(known)
    if not learned:
        return None
    fields: list[Any] = [round_to_six_digits(median([part[i] for part in learned])) for i in range(coefficients)]
    fields.append(sum(part.samples for part in learned))
    fields.append(min((part.age_s for part in learned if part.age_s is not None), default=None))
    made: Part = type(learned[0])(*fields, *learned[0][len(fields) :])
    return made
