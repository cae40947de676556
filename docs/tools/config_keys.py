"""The list of configuration keys and the JSON Schemas, generated from `schema.py` so that they cannot drift from it.

`make reference` writes what `render_files` returns (for editors and other checkers) and makes the page of all keys
from `iter_keys`; tests fail when a file is out of date.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from router.config.schema import Config, PluginConfig, PolicyConfig
from router.config.sections.gameday import GamedayFile
from router.config.sections.simulation import ProfileFile, TroubleFile

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SCHEMAS: dict[str, type[BaseModel]] = {
    "warmroute": Config,
    "policy": PolicyConfig,
    "profile": ProfileFile,
    "trouble": TroubleFile,
    "gameday": GamedayFile,
}


class ConfigKey(NamedTuple):
    """One configuration key: `fleet.instances[].url`, `tokenizers.<name>.path`."""

    path: str
    kind: str
    default: str
    meaning: str


def render_json_schema(model: type[BaseModel]) -> str:
    """Return the JSON Schema of `model` as text."""
    return json.dumps({"$schema": DIALECT, **unwrap_descriptions(model.model_json_schema())}, indent=2) + "\n"


def unwrap_descriptions(schema: Any) -> Any:
    """Return a schema whose descriptions have no line breaks of the docstrings that they come from."""
    if isinstance(schema, dict):
        return {
            key: " ".join(value.split())
            if key == "description" and isinstance(value, str)
            else unwrap_descriptions(value)
            for key, value in schema.items()
        }
    return [unwrap_descriptions(value) for value in schema] if isinstance(schema, list) else schema


def iter_keys(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[ConfigKey]:
    """Yield every key below `model`, in the order of `schema.py`."""
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        section, step = _find_section(field.annotation)
        if field.description is not None:
            meaning = " ".join(field.description.split())
            yield ConfigKey(path, _describe_type(field.annotation), _format_default(field), meaning)
        if section is not None:
            yield from iter_keys(section, f"{path}{step}.")


def render_files(folder: Path) -> dict[Path, str]:
    """Return the text of every generated file in `folder`."""
    return {folder / f"{name}.schema.json": render_json_schema(model) for name, model in SCHEMAS.items()}


def _find_section(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """Return the section inside a field's type, and what a path adds to reach it: "", "[]" or ".<name>"."""
    if get_origin(annotation) is None and isinstance(annotation, type):
        return (annotation, "") if issubclass(annotation, BaseModel) else (None, "")
    step = {list: "[]", dict: ".<name>"}.get(get_origin(annotation), "")
    for inner in get_args(annotation):
        section, deeper = _find_section(inner)
        if section is not None:
            return section, step + deeper
    return None, ""


KINDS: dict[Any, str] = {str: "text", int: "whole number", float: "number", bool: "true or false", Any: "anything"}


def _describe_type(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in KINDS:
        return KINDS[annotation]
    if origin is Annotated:
        return _describe_type(arguments[0])
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in arguments)
    if origin is list:
        return f"list of {_describe_type(arguments[0])}"
    if origin is dict:
        return f"{_describe_type(arguments[1])} by name"
    if origin is None:
        return "plug-in" if issubclass(annotation, PluginConfig) else "section"
    return " or ".join(_describe_type(choice) for choice in arguments if choice is not NoneType)


def _format_default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    if field.default is None:
        return "`null`"
    if isinstance(field.default, BaseModel):
        return f"`{json.dumps(field.default.model_dump())}`"
    return f"`{json.dumps(field.default)}`"
