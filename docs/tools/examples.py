"""Checks the examples in pages: YAML by the router's own reader, JSON, TOML and Python by their parsers.

A comment directly above a block changes what is done with it:

    <!-- kind: part of a profile -->     YAML that is no main file, policy, experiment, profile or fault file by itself;
                                         also: list of instances, values of the chart, manifests
    <!-- from: router/FILE.py -->        Python that is a verbatim part of that file
    <!-- not checked: WHY -->            no check at all
    <!-- not run: WHY -->                a shell block that `tests/docs/test_examples.py` must not run

Files, folders and environment variables that an example names are made in a scratch folder first, because the reader
insists that they exist.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from docs.tools.chart_schema import VALUES_SCHEMA
from docs.tools.pages import ROOT, SHELL, Block
from router.clock import SystemClock
from router.config.reader import load_policies, read_any, read_config, read_instances
from router.config.schema import Config, PolicyConfig
from router.errors import ConfigError
from router.scheduling.policy.policy import build_policies, build_policy

NOTES = frozenset({"kind", "from", "not checked", "not run"})
SHOWN_ONLY = frozenset({"", "text", "promql", "make"})
KNOWN = SHOWN_ONLY | SHELL | {"yaml", "json", "toml", "python"}
ABSOLUTE_PATH = re.compile(r'(?P<key>\w+):(?P<gap> +"?)(?P<path>/[\w./-]+)')
ENVIRONMENT = re.compile(r'\w+_env: +"?(\w+)')
CONTENTS = {
    "file": "[]\n",
    "keys_file": f"{'0' * 64} somebody\n",
}  # of files that are parsed, by the key that names them
FOLDERS = frozenset({"folder", "policies_dir", "logs_dir"})
TOKENIZER = ROOT / "router/lab/emulator/data"


def problems(found: list[Block]) -> list[str]:
    """Return one line per problem, with the block's page and line."""
    return [f"{block.at}: {why}" for block in found for why in check(block)]


def check(block: Block) -> Iterator[str]:
    """Yield what is wrong with one block."""
    if block.note is not None and block.note not in NOTES:
        yield f'unknown comment "{block.note}": one of {", ".join(sorted(NOTES))}'
    if block.language not in KNOWN:
        yield f'unknown language "{block.language}": one of {", ".join(sorted(KNOWN))}'
    if block.note in ("not checked", "not run"):
        if len(block.value) < 10:
            yield "say why"
        return
    if block.note == "from":
        if block.text not in (ROOT / block.value).read_text(encoding="utf-8"):
            yield f"{block.value} no longer contains this"
        return
    try:
        if block.language == "yaml":
            check_yaml(block.text, block.value)
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "toml":
            tomllib.loads(block.text)
        elif block.language == "python":
            compile(block.text, block.at, "exec")
    except (ConfigError, SyntaxError, ValueError, yaml.YAMLError) as wrong:
        yield str(wrong)


def check_yaml(text: str, kind: str = "") -> None:
    """Read an example as the router would, or Helm, or Kubernetes. Raises `ConfigError`."""
    if kind == "values of the chart":
        _check_values(yaml.safe_load(text))
        return
    if kind == "manifests":
        if not all({"apiVersion", "kind", "metadata"} <= document.keys() for document in yaml.safe_load_all(text)):
            raise ConfigError("a manifest has apiVersion, kind and metadata")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "configs/profiles", folder / "profiles")
        known = dict(os.environ)
        os.environ.update(dict.fromkeys(ENVIRONMENT.findall(text), "for the check only"))
        try:
            _read(folder, ABSOLUTE_PATH.sub(lambda found: _made(folder, found), text), kind)
        finally:
            os.environ.clear()
            os.environ.update(known)


def _made(folder: Path, found: re.Match[str]) -> str:
    """Create a file or folder of the kind that the key wants inside `folder`, and return the text that names it."""
    path = folder / found["path"].lstrip("/")
    if found["key"] == "path":
        shutil.copytree(TOKENIZER, path, dirs_exist_ok=True)
    elif found["key"] in FOLDERS:
        path.mkdir(parents=True, exist_ok=True)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_content(found["key"]), encoding="utf-8")
    return f"{found['key']}:{found['gap']}{path}"


def _content(key: str) -> str:
    """Return what a file under `key` has to contain."""
    if key in ("ca_file", "cert_file"):
        return _make_pair()[1].decode()
    return _make_pair()[0].decode() if key == "key_file" else CONTENTS.get(key, "")


@cache
def _make_pair() -> tuple[bytes, bytes]:
    """Return a private key and its certificate."""
    from router.picker.credentials import make_self_signed  # here: most examples need none

    return make_self_signed(SystemClock().wall())


def _read(folder: Path, text: str, kind: str) -> None:
    file = folder / "example.yaml"
    file.write_text(text, encoding="utf-8")
    data = yaml.safe_load(text)
    match kind:
        case "part of a profile":
            whole = yaml.safe_load((folder / "profiles/plain.yaml").read_text(encoding="utf-8"))
            _write(file, whole | data)
            read_any(file)
        case "list of instances":
            read_instances(file)
        case "":
            _read_whole(file, data)
        case _:
            raise ConfigError(f'unknown kind of YAML "{kind}"')


def _check_values(values: dict[str, Any]) -> None:
    """Check values of the Helm chart by its schema. Raises ConfigError."""
    import jsonschema  # here: it takes a second to load

    try:
        jsonschema.validate(values, json.loads(VALUES_SCHEMA.read_text(encoding="utf-8")))
    except jsonschema.ValidationError as wrong:
        raise ConfigError(f"{wrong.json_path}: {wrong.message}") from None


def _read_whole(file: Path, data: dict[str, Any]) -> None:
    """Read a policy, experiment, profile, fault or game day file, or a main one; it gets engines if it names none."""
    if not isinstance(data, dict):
        raise ConfigError("no mapping: a comment above the block may say what it is, `<!-- kind: ... -->`")
    sections = Config.model_fields.keys()
    if sections.isdisjoint(data) or data.keys() & {"scorers", "faults"}:
        checked = read_any(file)
        if isinstance(checked, PolicyConfig):
            build_policy("example", checked)
        return
    if data.keys().isdisjoint({"fleet", "stack"}):
        with file.open("a", encoding="utf-8") as rest:
            rest.write("\nfleet: {embedded: {}}\n")
    build_policies(load_policies(read_config(file)))


def _write(file: Path, data: Any) -> None:
    file.write_text(yaml.safe_dump(data), encoding="utf-8")
