"""The generated forms of the reference."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from docs.tools.config_keys import iter_keys, render_files, render_json_schema
from router.config.schema import Config, PolicyConfig


def test_keys_are_dotted_through_lists_and_names() -> None:
    paths = [key.path for key in iter_keys()]
    for path in ("listen.tls.cert_file", "fleet.instances[].kv_events[].rank", "tokenizers.<name>.path", "active"):
        assert path in paths
    assert "policies.<name>.scorers[].weight" in paths
    assert len(paths) == len(set(paths))


def test_every_key_has_a_meaning() -> None:
    undescribed = [
        name
        for model in Config.model_json_schema()["$defs"].items()
        for name, field in model[1].get("properties", {}).items()
        if "description" not in field and "$ref" not in field
    ]
    assert undescribed == []


def test_kinds_and_defaults() -> None:
    by_path = {key.path: key for key in iter_keys()}
    assert by_path["listen.port"][1:3] == ("whole number", "`8000`")
    assert by_path["fleet.instances[].url"][1:3] == ("text", "**required**")
    assert by_path["seed"][1:3] == ("whole number", "`null`")
    assert by_path["log.level"].kind == "`debug`, `info`, `warning`, `error`"
    assert by_path["policies.<name>.picker"].kind == "plug-in"


def test_the_schemas_accept_and_refuse() -> None:
    schema = json.loads(render_json_schema(Config))
    jsonschema.validate({"fleet": {"instances": [{"url": "http://a", "kv_events": "off"}]}}, schema)
    with pytest.raises(jsonschema.ValidationError, match="prot"):
        jsonschema.validate({"listen": {"prot": 1}}, schema)
    policy = json.loads(render_json_schema(PolicyConfig))
    jsonschema.validate({"scorers": [{"name": "queue_depth", "weight": 2, "half": 3}]}, policy)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"scorers": []}, policy)


def test_every_kind_of_file_has_a_schema(tmp_path: Path) -> None:
    schemas = {f"{name}.schema.json" for name in ("warmroute", "policy", "profile", "trouble", "gameday")}
    assert {file.name for file in render_files(tmp_path)} == schemas
