"""Checks against a JSON Schema. The library is loaded where it is used, because importing it takes a second."""

from __future__ import annotations

from typing import Any


def violations(data: Any, schema: dict[str, Any]) -> list[str]:
    """Return what is wrong with `data`, a message each. A wrong schema fails the test."""
    from jsonschema import Draft202012Validator

    Draft202012Validator.check_schema(schema)
    return [str(error) for error in Draft202012Validator(schema).iter_errors(data)]
