"""The speed of the fleet's typical instance, as a `Speed`: the same work must have the same price everywhere.

A prompt's price by the candidate's own speed is the time that it will take at *that candidate*; its price by the
typical instance is the amount of work (`View.nominal`). Each coefficient is the median over the instances, so that
a stuck instance or a bad fit does not change it. Instances without samples have the configured prior, which is a
guess about all of them: as soon as any instance has samples, only instances with samples count. This applies
separately to the prefill curve, each link and the decode step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, TypeVar

from router.fleet.instance import Instance, Target
from router.fleet.recursive_least_squares import round_to_six_digits
from scorers.contract import Decode, Speed, Transfer

NEAR = 0.02
OF_ROLE = "base_ms", "us_per_token", "ns_per_token_context", "samples", "age_s", "decode"
PARTS = "cpu", "disk", "pool", "pool_disk", "peer", "decode"
MAX_AGE_S = 1.0  # of a median; computing one takes 0.1 ms for 64 instances

Part = TypeVar("Part", Speed, Transfer, Decode)


def median_speed(speeds: Sequence[Speed]) -> Speed | None:
    """Return the median of `speeds`, one per instance; None if there is no instance. `samples` is the sum over the
    instances, `age_s` the minimum.
    """
    if len(speeds) <= 1:
        return speeds[0] if speeds else None
    links = ("cpu", "disk", "pool", "pool_disk", "peer")
    medians: dict[str, Any] = {link: _take_median([getattr(speed, link) for speed in speeds], 2) for link in links}
    curve = _take_median(speeds, 3)
    if curve is None:
        return None
    return curve._replace(**medians, decode=_take_median([speed.decode for speed in speeds], 3))


class NominalSpeeds:
    """The median speed by model, updated from time to time and passed to the instances by role: instances that were
    not measured, or cannot be distinguished from their peers, assume this speed.
    """

    def __init__(self) -> None:
        self._known: dict[str | None, tuple[float, Speed | None]] = {}  # by model: computed at, value
        self._assumed: dict[tuple[str, str], Speed] = {}  # by base model and role

    def get(self, model: str | None, targets: Sequence[Target], now: float) -> Speed | None:
        """Return the median speed of `targets`, the targets of the model that get requests; None if there are no
        targets. The value and its ages are up to `MAX_AGE_S` old.
        """
        known = self._known.get(model)
        if known is not None and now - known[0] <= MAX_AGE_S:
            return known[1]
        instances = {target.instance.id: target.instance for target in targets}.values()
        speeds = {instance: instance.latency_model.own(now) for instance in instances}
        speed = median_speed(list(speeds.values()))
        if (
            model is not None and speed is not None and len(speeds) > 1 and next(iter(speeds)).base == model
        ):  # not an adapter, which only some instances have
            self._hand_out(model, speed, speeds)
        if targets:  # unknown model names come from clients: storing them would leak memory
            self._known[model] = now, speed
        return speed

    def _hand_out(self, model: str, nominal: Speed, speeds: Mapping[Instance, Speed]) -> None:
        """Let instances assume the typical speed of their role, with the links of all roles. A value close to the
        last one is not passed on, because each instance would have to be priced again.
        """
        roles: dict[str, list[Instance]] = {}
        for instance in speeds:
            roles.setdefault(instance.config.role, []).append(instance)
        for role, peers in roles.items():
            of_role = median_speed([speeds[instance] for instance in peers])
            assert of_role is not None, "a role has an instance"
            typical = nominal._replace(**{name: getattr(of_role, name) for name in OF_ROLE})
            before = self._assumed.get((model, role))
            if before is None or not is_near(before, typical):
                self._assumed[model, role] = before = typical
            for instance in peers:
                for target in list(instance.targets.values())[:1]:  # ranks share hardware
                    target.assume(before)

    def clear(self) -> None:
        """Forget the values, because other targets serve the models now."""
        self._known.clear()


def is_near(one: Speed, other: Speed) -> bool:
    """Return whether two speeds are equal within `NEAR`, and have samples in the same parts."""
    return _is_near_part(one[:4], other[:4]) and all(
        a is b or (a is not None and b is not None and _is_near_part(a, b))
        for a, b in ((getattr(one, name), getattr(other, name)) for name in PARTS)
    )


def _is_near_part(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Return whether the coefficients are equal within `NEAR`, and both parts or neither have samples."""
    count = 2 if isinstance(one, Transfer) else 3
    near = all(abs(a - b) <= NEAR * abs(a) for a, b in zip(one[:count], other[:count], strict=True))
    return near and bool(one[count]) == bool(other[count])


def _take_median(parts: Sequence[Part | None], coefficients: int) -> Part | None:
    """Return a part with the medians of the first `coefficients` fields of `parts`; None if all parts are None."""
    known = [part for part in parts if part is not None]
    learned: list[Any] = [part for part in known if part.samples] or list(known)
    if not learned:
        return None
    fields: list[Any] = [round_to_six_digits(median([part[i] for part in learned])) for i in range(coefficients)]
    fields.append(sum(part.samples for part in learned))
    fields.append(min((part.age_s for part in learned if part.age_s is not None), default=None))
    made: Part = type(learned[0])(*fields, *learned[0][len(fields) :])
    return made
