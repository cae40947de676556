from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from router.testbed.emulator.schema_example import make_example

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": ["integer", "null"]},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
        "where": {"anyOf": [{"type": "object", "properties": {"city": {"type": "string"}}}, {"type": "null"}]},
        "kind": {"const": "person"},
        "weight": {"type": "number"},
        "tall": {"type": "boolean"},
    },
    "required": ["name", "age", "tags", "where", "kind", "weight", "tall"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("schema", [PERSON, {}, {"type": "string"}, {"type": "array"}, {"type": "null"}])
def test_fits_its_schema(schema: dict[str, Any]) -> None:
    jsonschema.validate(make_example(schema), schema)


def test_a_schema_that_contains_itself_ends() -> None:
    endless: dict[str, Any] = {"type": "object", "properties": {}}
    endless["properties"]["child"] = endless
    assert str(make_example(endless)).count("child") == 8
