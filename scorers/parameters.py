"""Plug-in parameters: the fields of a plug-in's dataclass, checked strictly against a policy file.

The check is strict because a policy with a silently ignored misspelt parameter would look as if it did not work.
Values come from YAML, so their types are few: bool, int, float, str, a `Literal` of those, each optional or not.
The `check_...` functions are for a plug-in's `__post_init__`: they reject values out of bounds with a message for
the author of the policy file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields
from difflib import get_close_matches
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

MAX_NAME_CHARS = 256  # longer names are cut before the slow comparison with the known ones
REQUIRED = "required"
"""Placeholder for the default of a parameter that has none."""


class ParameterError(ValueError):
    """A parameter has no possible value. `str()` says what is wrong."""

    def __init__(self, parameter: str, problem: str) -> None:
        super().__init__(problem)
        self.parameter = parameter


class Parameter(NamedTuple):
    """Name, type and default of one plug-in parameter."""

    name: str
    type: Any
    default: object

    @property
    def type_name(self) -> str:
        """The type in words: `a number`, `a whole number or null`, `'a' or 'b'`."""
        return _type_name(self.type)


def parameters(plugin: type[Any]) -> dict[str, Parameter]:
    """Return the parameters of a plug-in (a dataclass) by name."""
    hints = get_type_hints(plugin)
    return {f.name: Parameter(f.name, hints[f.name], _default(f)) for f in fields(plugin) if f.init}


def check_parameters(plugin: type[Any], params: Mapping[str, object]) -> dict[str, Any]:
    """Return `params` as keyword arguments of `plugin`. Raises ValueError for a missing one, ParameterError for a wrong
    one."""
    known = parameters(plugin)
    for name in params:
        if name not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise ParameterError(name, f"unknown parameter {name!r}{suggest(name, known)}; {has}")
    for parameter in known.values():
        if parameter.default is REQUIRED and parameter.name not in params:
            raise ValueError(f"parameter {parameter.name!r}: missing, wanted {parameter.type_name}")
    return {name: _convert(known[name], value) for name, value in params.items()}


def check_at_least(least: float, **values: float) -> None:
    """Raise ParameterError for the first parameter below `least`."""
    for name, value in values.items():
        if value < least:
            raise ParameterError(name, f"{name}: found {value}, wanted at least {least}")


def check_above_0(**values: float) -> None:
    """Raise ParameterError for the first parameter that is 0 or less."""
    for name, value in values.items():
        if value <= 0:
            raise ParameterError(name, f"{name}: found {value}, wanted more than 0")


def check_shares(**values: float) -> None:
    """Raise ParameterError for the first parameter outside [0, 1]."""
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise ParameterError(name, f"{name}: found {value}, wanted a share from 0 to 1")


def suggest(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` if a known name is spelt like `name`, else an empty string."""
    close = get_close_matches(name[:MAX_NAME_CHARS], list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


NAMES: dict[Any, str] = {float: "a number", int: "a whole number", bool: "true or false", str: "text", NoneType: "null"}


def _default(field: Field[Any]) -> object:
    if field.default is not MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not MISSING else REQUIRED


def _convert(parameter: Parameter, value: Any) -> Any:
    if not _fits(value, parameter.type):
        problem = f"parameter {parameter.name!r}: found {value!r}, wanted {parameter.type_name}"
        raise ParameterError(parameter.name, problem)
    return float(value) if parameter.type is float else value


def _fits(value: Any, expected: Any) -> bool:
    """Return whether `value` has the type. A bool is no number, .nan and .inf are no floats, and an int is a
    float.
    """
    if get_origin(expected) in (Union, UnionType):
        return any(_fits(value, one) for one in get_args(expected))
    if get_origin(expected) is Literal:
        return value in get_args(expected)
    if isinstance(value, bool):
        return expected is bool
    if expected is float:
        return isinstance(value, int | float) and isfinite(value)
    return isinstance(value, get_origin(expected) or expected)


def _type_name(expected: Any) -> str:
    if get_origin(expected) in (Union, UnionType):
        return " or ".join(_type_name(one) for one in get_args(expected))
    if get_origin(expected) is Literal:
        return " or ".join(repr(one) for one in get_args(expected))
    if expected in NAMES:
        return NAMES[expected]
    return expected.__name__ if isinstance(expected, type) else str(expected)
