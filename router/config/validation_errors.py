"""What pydantic found wrong, in the operator's words: which key, what stands there, what is wanted, what was meant.

Values of keys that may hold a secret by mistake (a token pasted where its hash belongs, a password inside a URL) are
never repeated: these lines end up in logs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from difflib import get_close_matches
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from router.config.yaml_source import Path, YamlProblem

SECRET_KEYS = {"hash", "url", "endpoint", "replay_endpoint"}

EXPECTATIONS: dict[str, Callable[[dict[str, Any]], str]] = {
    "model_type": lambda limits: "a mapping",
    "dict_type": lambda limits: "a mapping",
    "list_type": lambda limits: "a list",
    "int_type": lambda limits: "a whole number",
    "int_from_float": lambda limits: "a whole number",
    "float_type": lambda limits: "a number",
    "finite_number": lambda limits: "a finite number",
    "string_type": lambda limits: "text",
    "literal_error": lambda limits: str(limits["expected"]),
    "greater_than": lambda limits: f"more than {limits['gt']:g}",
    "greater_than_equal": lambda limits: f"at least {limits['ge']:g}",
    "less_than_equal": lambda limits: f"at most {limits['le']:g}",
    "string_pattern_mismatch": lambda limits: f"text like {limits['pattern']}",
    "too_short": lambda limits: f"at least {limits['min_length']} of them",
}


RENAMED_KEYS = {"door": "admission", "ledger": "decision_log", "hand_ids": "token_id_passthrough"}
"""Keys of earlier versions, by the name that each has now."""


def translate_errors(data: Any, kind: Any, error: ValidationError) -> list[YamlProblem]:
    """One problem per finding of `error`, which arose from reading `data` as `kind` (a model or a list of one)."""
    return [_to_problem(data, kind, finding) for finding in error.errors(include_url=False)]


def describe_unknown(what: str, name: str, known: Collection[str]) -> str:
    """`unknown key "prot": did you mean "port"?`, or which ones there are."""
    close = get_close_matches(name, known, n=1)
    hint = f'did you mean "{close[0]}"?' if close else f"known here: {', '.join(sorted(known)) or 'none'}"
    return f'unknown {what} "{name}": {hint}'


def _to_problem(data: Any, kind: Any, finding: ErrorDetails) -> YamlProblem:
    path = _path_in(data, finding["loc"])
    known = _fields_beside(kind, path)
    name = str(path[-1]) if path else ""
    limits = finding.get("ctx", {})
    if finding["type"] == "extra_forbidden":
        if RENAMED_KEYS.get(name) in known:
            return YamlProblem(path, f'the key "{name}" is now called "{RENAMED_KEYS[name]}"')
        return YamlProblem(path, describe_unknown("key", name, known))
    if finding["type"] == "missing":
        return YamlProblem(path, f"missing{_meaning(known.get(name))}")
    if finding["type"] == "value_error":
        return YamlProblem(path, str(limits["error"]))
    wanted = EXPECTATIONS[finding["type"]](limits) if finding["type"] in EXPECTATIONS else finding["msg"]
    return YamlProblem(
        path, f"found {_describe_value(finding['input'], name)}, wanted {wanted}{_meaning(known.get(name))}"
    )


def _path_in(data: Any, loc: Path) -> Path:
    """pydantic's location without the names of union branches, which stand for nothing in the file."""
    path: Path = ()
    for i, step in enumerate(loc):
        if isinstance(data, dict) and (step in data or i == len(loc) - 1):
            data = data.get(step)
        elif isinstance(data, list) and isinstance(step, int) and step < len(data):
            data = data[step]
        else:
            continue
        path = (*path, step)
    return path


def _fields_beside(kind: Any, path: Path) -> dict[str, FieldInfo]:
    """The fields of the section in which the last step of `path` stands."""
    kinds = [kind]
    for step in path[:-1]:
        kinds = [inner for outer in kinds for inner in _inside(outer, step)]
    return {name: field for kind in kinds for model in _models(kind) for name, field in model.model_fields.items()}


def _inside(kind: Any, step: str | int) -> Iterator[Any]:
    """The types that a value of type `kind` may have at `step`."""
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
            yield from _inside(choice, step)


def _models(kind: Any) -> Iterator[type[BaseModel]]:
    if get_origin(kind) is None and isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    elif get_origin(kind) not in (list, dict):
        for choice in get_args(kind):
            yield from _models(choice)


def _meaning(field: FieldInfo | None) -> str:
    return f" ({field.description})" if field is not None and field.description else ""


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
    return "other text" if name in SECRET_KEYS else f'the text "{value}"'
