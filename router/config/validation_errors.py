"""Translate pydantic's findings for the operator: which key, what was found, what is wanted, what was probably
meant.

The value of a key that may hold a secret by mistake (a token pasted in place of its hash, a password inside a URL)
is never repeated, because these lines end up in logs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from difflib import get_close_matches
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from router.config.yaml_source import YamlPath, YamlProblem
from router.errors import list_names, quote_name

SECRET_KEYS = {"hash", "token_hash", "url", "jwks_url", "endpoint", "replay_endpoint"}
SECRET_KEYS |= {"api_key_env", "key_secret_env", "secret_env", "token_env"}

EXPECTATIONS: dict[str, Callable[[dict[str, Any]], str]] = {
    "model_type": lambda limits: "a mapping",
    "dict_type": lambda limits: "a mapping",
    "list_type": lambda limits: "a list",
    "bool_type": lambda limits: "true or false",
    "ip_any_network": lambda limits: "a network such as 10.0.0.0/8",
    "int_type": lambda limits: "a whole number",
    "int_from_float": lambda limits: "a whole number",
    "float_type": lambda limits: "a number",
    "finite_number": lambda limits: "a finite number",
    "string_type": lambda limits: "text",
    "literal_error": lambda limits: str(limits["expected"]),
    "greater_than": lambda limits: f"more than {limits['gt']:g}",
    "greater_than_equal": lambda limits: f"at least {limits['ge']:g}",
    "less_than": lambda limits: f"less than {limits['lt']:g}",
    "less_than_equal": lambda limits: f"at most {limits['le']:g}",
    "string_too_short": lambda limits: f"at least {limits['min_length']} characters",
    "string_too_long": lambda limits: f"at most {limits['max_length']} characters",
    "too_short": lambda limits: f"at least {limits['min_length']} of them",
    "too_long": lambda limits: f"at most {limits['max_length']} of them",
}
"""The expected kind of value, by pydantic's error type."""

RENAMED_KEYS = {"door": "admission", "ledger": "decision_log", "hand_ids": "token_id_passthrough"}
"""Present names of keys, by the name in earlier versions."""


def translate_errors(data: Any, kind: Any, error: ValidationError, most: int | None = None) -> list[YamlProblem]:
    """Return one problem per finding of `error`, raised when `data` was validated as `kind`, a model or list of
    one.

    Each costs up to a millisecond, so only the first `most` are translated; None: all.
    """
    return [_to_problem(data, kind, finding) for finding in error.errors(include_url=False)[:most]]


def describe_unknown(what: str, name: str, known: Collection[str]) -> str:
    """Return `unknown key "prot": did you mean "port"?`, or list `known` when no name is close."""
    name = quote_name(name)
    close = get_close_matches(name, known, n=1)
    hint = f'did you mean "{quote_name(close[0])}"?' if close else f"known here: {list_names(known) or 'none'}"
    return f'unknown {what} "{name}": {hint}'


def _to_problem(data: Any, kind: Any, finding: ErrorDetails) -> YamlProblem:
    path = _resolve_path(data, finding["loc"])
    fields = _fields_at(kind, path)
    name = str(path[-1]) if path else ""
    limits = finding.get("ctx", {})
    if finding["type"] == "extra_forbidden":
        if RENAMED_KEYS.get(name) in fields:
            return YamlProblem(path, f'the key "{name}" is now called "{RENAMED_KEYS[name]}"')
        return YamlProblem(path, describe_unknown("key", name, fields))
    field = fields.get(name)
    meaning = f" ({' '.join(field.description.split())})" if field is not None and field.description else ""
    if finding["type"] == "missing":
        return YamlProblem(path, f"missing{meaning}")
    if finding["type"] == "value_error":
        return _locate(data, path, str(limits["error"]))
    wanted = EXPECTATIONS[finding["type"]](limits) if finding["type"] in EXPECTATIONS else finding["msg"]
    if required := [key for key, inner in _fields_at(kind, (*path, "")).items() if inner.is_required()]:
        wanted += f" with {' and '.join(required)}" if wanted == "a mapping" else ""
    if finding["input"] is None and field is not None and not field.is_required():
        meaning += "; without the key, its default counts"
    return YamlProblem(path, f"found {_describe_value(finding['input'], name)}, wanted {wanted}{meaning}")


def _locate(data: Any, path: YamlPath, text: str) -> YamlProblem:
    """Return the problem of the section at `path`, at the key that `text` begins with, if it has that key."""
    inner = data
    for step in path:
        inner = {} if isinstance(inner, dict) and step not in inner else inner[step]
    keys, _, problem = text.partition(": ")
    steps = keys.split(".")
    for step in steps:
        if not isinstance(inner, dict) or step not in inner:
            return YamlProblem(path, text)
        inner = inner[step]
    return YamlProblem((*path, *steps), problem)


def _resolve_path(data: Any, location: YamlPath) -> YamlPath:
    """Return pydantic's `location` without the names of union branches, which do not exist in the file."""
    path: YamlPath = ()
    for i, step in enumerate(location):
        if isinstance(data, dict) and (step in data or i == len(location) - 1):
            data = data.get(step)
        elif isinstance(data, list) and isinstance(step, int) and step < len(data):
            data = data[step]
        else:
            continue
        path = (*path, step)
    return path


def _fields_at(kind: Any, path: YamlPath) -> dict[str, FieldInfo]:
    """Return the fields of the section that contains the last step of `path`."""
    kinds = [kind]
    for step in path[:-1]:
        kinds = [inner for outer in kinds for inner in _types_inside(outer, step)]
    return {name: field for kind in kinds for model in _models_in(kind) for name, field in model.model_fields.items()}


def _types_inside(kind: Any, step: str | int) -> Iterator[Any]:
    """Yield the types that a value of type `kind` may have at `step`."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is list:
        yield arguments[0]
    elif origin is dict:
        yield arguments[1]
    elif origin is None and isinstance(kind, type) and issubclass(kind, BaseModel):
        if step in kind.model_fields:
            yield kind.model_fields[str(step)].annotation
    else:
        for choice in arguments:
            yield from _types_inside(choice, step)


def _models_in(kind: Any) -> Iterator[type[BaseModel]]:
    if get_origin(kind) is None and isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    elif get_origin(kind) not in (list, dict):
        for choice in get_args(kind):
            yield from _models_in(choice)


def _describe_value(value: Any, name: str) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if isinstance(value, int | float):
        return f"the number {value}"
    may_be_secret = name in SECRET_KEYS or ("://" in value and "@" in value)
    return "other text" if may_be_secret else f'the text "{quote_name(value)}"'
