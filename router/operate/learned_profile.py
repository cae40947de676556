"""The engine profile of a running fleet, from what its router has learned, for simulations of that fleet.

The router learns two lines per instance (`router/fleet/latency_model.py`); a profile has one step that does both:

    a lone prefill    base + us_per_token x new + ns x pairs                step = step_ms + the longer of
    a decode step     base + us_per_request x requests + ns x context         computing and reading

The slopes are taken as they are. What the fixed parts of both lines have in common is `step_ms`, and what a decode
step has beyond it is the reading of the weights. Engines report the size of their caches, but neither their limits
per step nor the bytes of a token: for those, and for a line without enough samples, another profile stands in. Each
value says where it comes from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from router.config.sections.simulation import ProfileFile
from router.errors import ConfigError, WarmrouteError
from router.fleet.latency_model import CURVE_SAMPLES

Coefficients: TypeAlias = tuple[float, float, float]
LineKind = Literal["prefill", "decode"]

SAMPLES: Mapping[LineKind, str] = {"prefill": "lone prefills", "decode": "streamed answers"}
COUNTED: Mapping[LineKind, str] = {
    "prefill": "of streamed answers, with no other prefill at the engine",
    "decode": "at an engine to which no other worker or replica sends",
}
SLOPES: Mapping[LineKind, tuple[str, str]] = {
    "prefill": ("us_per_token", "ns_per_pair"),
    "decode": ("us_per_decode", "ns_per_context_token"),
}
FLAGS = {"batched_tokens": "--max-num-batched-tokens", "max_seqs": "--max-num-seqs"}
UNLIKE = 1.5  # an engine's time for a prompt over the median's, or the reverse: another kind of engine
PROMPT_TOKENS = 2048  # of that prompt


class DecodeAnswer(msgspec.Struct):
    base_ms: float
    us_per_request: float
    ns_per_context_token: float
    samples: int


class SpeedAnswer(msgspec.Struct):
    base_ms: float
    us_per_token: float
    ns_per_token_context: float
    samples: int


class DeviationAnswer(msgspec.Struct):
    prefill: Coefficients
    decode_alone: Coefficients


class TargetAnswer(msgspec.Struct):
    """A target of `GET /admin/instances`, as far as a profile needs it."""

    id: str
    capacity_tokens: int | None
    speed: SpeedAnswer
    decode_alone: DecodeAnswer
    speed_deviation: DeviationAnswer


class InstanceAnswer(msgspec.Struct):
    """An instance of `GET /admin/instances`, as far as a profile needs it."""

    id: str
    models: list[str]
    targets: list[TargetAnswer]


class LearnedLine(NamedTuple):
    """A fitted line of one instance, or the median of several."""

    coefficients: Coefficients  # the fixed part in ms, then the two slopes
    deviations: Coefficients  # one standard deviation of each
    samples: int
    instances: int = 1


class LearnedProfile(NamedTuple):
    file: ProfileFile
    notes: tuple[str, ...]  # what is not learned or uncertain, and what to do about it


def read_instances(answer: Mapping[str, Any], model: str | None = None) -> list[InstanceAnswer]:
    """Return the instances of `GET /admin/instances` that serve `model`. None: all instances, which must have a
    model in common.

    Raises ConfigError when `model` is unknown or has to be given, WarmrouteError for an answer of another form or
    without instances.
    """
    try:
        found = [one for one in msgspec.convert(answer["instances"], list[InstanceAnswer]) if one.models]
    except (KeyError, msgspec.ValidationError) as error:
        raise WarmrouteError(f"GET /admin/instances: not the answer of a router of this version: {error}") from error
    if not found:
        raise WarmrouteError("no engine of the router has reported a model yet: see `warmroute doctor`")
    names = ", ".join(sorted({name for one in found for name in one.models}))
    if model is None:
        if not set.intersection(*(set(one.models) for one in found)):
            raise ConfigError(f"the engines have no model in common: choose one with --model: {names}")
        return found
    found = [one for one in found if model in one.models]
    if not found:
        raise ConfigError(f"--model: no engine serves {model}; they serve {names}")
    return found


def learn_profile(instances: Sequence[InstanceAnswer], stand_in: ProfileFile, name: str, about: str) -> LearnedProfile:
    """Return the profile of the median instance, with values of profile `name`, which is `stand_in`, for what was not
    learned. Raises WarmrouteError when the prefill speed was not learned; decode steps are learned after it.
    """
    prefill, decode = _learned_line(instances, "prefill"), _learned_line(instances, "decode")
    if prefill is None:
        raise WarmrouteError(
            f"the router has not learned how fast its engines are: {_describe_lack(instances, 'prefill')}; try again "
            "when it has served more requests, or send it some with `warmroute load`"
        )
    own = _fixed_parts(prefill, decode) | _slopes("prefill", prefill) | _kv_tokens(instances)
    notes = [] if decode is not None else [f"Decode steps are not learned yet: {_describe_lack(instances, 'decode')}."]
    if decode is not None:
        own |= _slopes("decode", decode)
    notes += _describe_doubts({"prefill": prefill, "decode": decode})
    notes += _describe_differences(instances, prefill)
    others = [field for field, value in stand_in if field not in own and field != "about" and value is not None]
    document: dict[str, Any] = {"about": about}
    document |= {field: {"value": value, "source": source} for field, (value, source) in own.items()}
    for field in others:
        known = getattr(stand_in, field)
        document[field] = {"value": known.value, "source": f"not known, so that of {name}: {known.source}"}
    flags = ", ".join(f"{field} ({FLAGS[field]})" for field in others if field in FLAGS)
    notes.append(f"Of profile {name}: {', '.join(others)}. Correct in the file what you know: {flags}.")
    return LearnedProfile(ProfileFile.model_validate(document), tuple(notes))


def _line(target: TargetAnswer, kind: LineKind) -> LearnedLine:
    speed, decode = target.speed, target.decode_alone
    if kind == "prefill":
        curve = speed.base_ms, speed.us_per_token, speed.ns_per_token_context
        return LearnedLine(curve, target.speed_deviation.prefill, speed.samples)
    steps = decode.base_ms, decode.us_per_request, decode.ns_per_context_token
    return LearnedLine(steps, target.speed_deviation.decode_alone, decode.samples)


def _lines(instances: Sequence[InstanceAnswer], kind: LineKind) -> dict[str, LearnedLine]:
    """Return the line of each instance; its ranks have one in common."""
    return {one.id: _line(one.targets[0], kind) for one in instances if one.targets}


def _learned_line(instances: Sequence[InstanceAnswer], kind: LineKind) -> LearnedLine | None:
    """Return the median of the instances with enough samples; None if there is none."""
    known = [line for line in _lines(instances, kind).values() if line.samples >= CURVE_SAMPLES]
    if not known:
        return None
    return LearnedLine(
        _medians([line.coefficients for line in known]),
        _medians([line.deviations for line in known]),
        sum(line.samples for line in known),
        len(known),
    )


def _medians(rows: Sequence[Coefficients]) -> Coefficients:
    first, second, third = (median(column) for column in zip(*rows, strict=True))
    return first, second, third


def _source(kind: LineKind, line: LearnedLine, place: int) -> str:
    return (
        f"learned from {line.samples:,} {SAMPLES[kind]} at {_count(line.instances, 'instance')}, "
        f"± {_show(line.deviations[place])}"
    )


def _describe_lack(instances: Sequence[InstanceAnswer], kind: LineKind) -> str:
    most = max((line.samples for line in _lines(instances, kind).values()), default=0)
    return f"{most} {SAMPLES[kind]} were measured at one engine at most, {CURVE_SAMPLES} are needed ({COUNTED[kind]})"


def _slopes(kind: LineKind, line: LearnedLine) -> dict[str, tuple[float, str]]:
    return {
        field: (_round(line.coefficients[place]), _source(kind, line, place))
        for place, field in enumerate(SLOPES[kind], 1)
    }


def _fixed_parts(prefill: LearnedLine, decode: LearnedLine | None) -> dict[str, tuple[float, str]]:
    """Return `step_ms`, and `weights_ms` if decode steps were learned."""
    step_ms, source = prefill.coefficients[0], f"fixed part of a prefill, {_source('prefill', prefill, 0)}"
    if decode is None:
        return {"step_ms": (_round(step_ms), source)}
    decode_ms = decode.coefficients[0]
    of_decode = f"fixed part of a decode step, {_show(decode_ms)} ms, {_source('decode', decode, 0)}"
    if decode_ms <= step_ms:  # what a prefill has beyond it is in no step: HTTP, the queue before the engine
        return {"step_ms": (_round(decode_ms), of_decode), "weights_ms": (0.0, "not told apart from step_ms")}
    return {
        "step_ms": (_round(step_ms), source),
        "weights_ms": (_round(decode_ms - step_ms), f"{of_decode}, less step_ms"),
    }


def _describe_doubts(lines: Mapping[LineKind, LearnedLine | None]) -> list[str]:
    """Return a remark on the slopes that may be off by themselves."""
    doubtful = [
        f"{field} {_show(line.coefficients[place])} ± {_show(line.deviations[place])}"
        for kind, line in lines.items()
        if line is not None
        for place, field in enumerate(SLOPES[kind], 1)
        if line.deviations[place] >= line.coefficients[place]
    ]
    return [f"Uncertain, as the traffic so far hardly shows it: {', '.join(doubtful)}."] if doubtful else []


def _kv_tokens(instances: Sequence[InstanceAnswer]) -> dict[str, tuple[float, str]]:
    sizes = [target.capacity_tokens for one in instances for target in one.targets if target.capacity_tokens]
    if not sizes:
        return {}
    unlike = "" if min(sizes) == max(sizes) else f", the median of {min(sizes):,} to {max(sizes):,}"
    return {"kv_tokens": (round(median(sizes)), f"reported by {_count(len(sizes), 'target')}{unlike}")}


def _describe_differences(instances: Sequence[InstanceAnswer], prefill: LearnedLine | None) -> list[str]:
    """Return remarks on what one profile cannot say: instances of several kinds, and instances of several ranks."""
    notes = []
    if prefill is not None:
        typical_ms = _prompt_ms(prefill)
        times = {
            id: _prompt_ms(line) / typical_ms
            for id, line in _lines(instances, "prefill").items()
            if line.samples >= CURVE_SAMPLES
        }
        unlike = [f"{id} {ratio:.2g}" for id, ratio in times.items() if not 1 / UNLIKE < ratio < UNLIKE]
        if unlike:
            notes.append(
                f"Instances differ, and the profile is of the median one: times its time for {PROMPT_TOKENS:,} "
                f"prompt tokens, {', '.join(unlike)}."
            )
    ranks = max(len(one.targets) for one in instances)
    if ranks > 1:
        notes.append(f"The profile is of one rank, and instances have up to {ranks}: simulate ranks as instances.")
    return notes


def _prompt_ms(line: LearnedLine) -> float:
    base_ms, us_per_token, ns_per_pair = line.coefficients
    return base_ms + us_per_token * PROMPT_TOKENS / 1e3 + ns_per_pair * PROMPT_TOKENS**2 / 2e6


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _show(value: float) -> str:
    """Return two significant digits, without an exponent."""
    return f"{float(f'{value:.2g}'):,g}"


def _round(value: float) -> float:
    return float(f"{value:.4g}")
