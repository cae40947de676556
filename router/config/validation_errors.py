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
from router.errors import HIDDEN, list_names, quote_name

SECRET_KEYS = {"hash", "token_hash", "url", "jwks_url", "endpoint", "replay_endpoint"}
SECRET_KEYS |= {"api_key_env", "key_secret_env", "secret_env", "token_env"}

EXPECTATIONS: dict[str, Callable[[dict[str, Any]], str]] = {
    "model_type": lambda limits: "keys with values",
    "dict_type": lambda limits: "keys with values",
    "list_type": lambda limits: "a list, with a dash before each entry",
    "bool_type": lambda limits: "true or false",
    "bool_parsing": lambda limits: "true or false",
    "ip_any_network": lambda limits: "a network such as 10.0.0.0/8",
    "int_type": lambda limits: "a whole number",
    "int_parsing": lambda limits: "a whole number",
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
    "too_short": lambda limits: f"at least {limits['min_length']}",
    "too_long": lambda limits: f"at most {limits['max_length']}",
    "json_invalid": lambda limits: f"JSON ({limits['error']})",
}
"""The wanted kind of value, by pydantic's error type."""

SECTIONS = {"model_type", "dict_type"}
USUAL_KEYS = {"listen", "fleet"}  # of a main file, as examples

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


def describe_wanted(finding: ErrorDetails) -> str:
    """Return the kind of value that is wanted where pydantic found something else: `a whole number`, `at most 1000`."""
    kind, limits = finding["type"], finding.get("ctx", {})
    return EXPECTATIONS[kind](limits) if kind in EXPECTATIONS else finding["msg"].removeprefix("Input should be ")


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
    wanted = describe_wanted(finding)
    if finding["type"] in SECTIONS and (inside := _fields_at(kind, (*path, ""))):
        wanted = _describe_keys(inside, finding["input"], name)
    is_needed = field is not None and field.is_required()
    if finding["input"] is None and path and finding["type"] in SECTIONS | {"list_type"}:
        change = f"write {wanted}, indented below it{'' if is_needed else ', or remove the line'}"
        return YamlProblem(path, f"nothing stands below it: {change}")
    if finding["input"] is None and field is not None and not is_needed:
        meaning += "; give one, or remove the line: then its default counts"
    if finding["type"] in SECTIONS and isinstance(finding["input"], list):
        wanted += ", without dashes or brackets"
    found = _describe_value(finding["input"], name)
    if finding["type"] in ("too_short", "too_long"):
        found = f"{len(finding['input'])} entries"
    return YamlProblem(path, f"found {found}, wanted {wanted}{meaning}")


def _describe_keys(fields: dict[str, FieldInfo], found: Any, name: str) -> str:
    """Return which keys are wanted in place of `found`, the value of key `name`: it may be that of the only one that is
    needed.
    """
    needed = [key for key, field in fields.items() if field.is_required()]
    if len(needed) == 1 and isinstance(found, str) and not _may_be_secret(found, name):
        return f"keys such as `{needed[0]}: {quote_name(found)}`"
    usual = sorted(fields, key=lambda key: key not in USUAL_KEYS)[:2]
    return f"keys such as {' and '.join(f'`{key}:`' for key in needed or usual)}"


def _locate(data: Any, path: YamlPath, text: str) -> YamlProblem:
    """Return the problem of the section at `path`, at the key or entry of a list (`shadows.1`) that `text` begins
    with, if it has that key.
    """
    inner = data
    for step in path:
        inner = {} if isinstance(inner, dict) and step not in inner else inner[step]
    keys, _, problem = text.partition(": ")
    steps: YamlPath = ()
    for key in keys.split("."):
        step = int(key) if isinstance(inner, list) and key.isdecimal() else key
        if step not in (range(len(inner)) if isinstance(inner, list) else inner if isinstance(inner, dict) else ()):
            return YamlProblem(path, text)
        inner = inner[step]
        steps = (*steps, step)
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
        return "keys with values"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if isinstance(value, int | float):
        return f"the number {value}"
    return HIDDEN if _may_be_secret(value, name) else f'the text "{quote_name(value)}"'


def _may_be_secret(value: str, name: str) -> bool:
    return name in SECRET_KEYS or ("://" in value and "@" in value)
