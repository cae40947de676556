"""A small value that fits a JSON Schema: what an emulated engine passes to a tool that it is forced to call."""

from __future__ import annotations

from typing import Any

SCALARS: dict[str, Any] = {"string": "warm", "integer": 1, "number": 1.5, "boolean": True, "null": None}


def make_example(schema: Any, depth: int = 8) -> Any:
    """Takes the first of alternatives and every property of an object; `$ref` is not followed."""
    if not isinstance(schema, dict) or depth == 0:
        return None
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    for alternatives in ("anyOf", "oneOf", "allOf"):
        if schema.get(alternatives):
            return make_example(schema[alternatives][0], depth - 1)
    kind = schema.get("type", "object")
    if isinstance(kind, list):
        kind = kind[0]
    if kind == "object":
        return {name: make_example(inner, depth - 1) for name, inner in schema.get("properties", {}).items()}
    if kind == "array":
        return [make_example(schema.get("items", {"type": "string"}), depth - 1)]
    return SCALARS.get(kind)
