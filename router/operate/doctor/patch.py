"""Make a unified diff of a configuration that changes single values and keeps all comments.

A value is replaced in place; a missing key is added at the end of the innermost section that exists. An edit that
cannot be made in this way, or that makes the configuration invalid, is left out.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from router.config.reader import parse_config
from router.config.yaml_source import YamlPath
from router.errors import ConfigError
from router.operate.doctor.finding import Edit

PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
RESERVED = frozenset(("null", "true", "false"))


def make_patch(text: str, file: Path, edits: Iterable[Edit]) -> str:
    """Return the diff that makes these edits in `text`, the content of `file`; empty if none can be made."""
    changed = text
    for edit in dict.fromkeys((edit.path, json.dumps(edit.value)) for edit in edits):
        candidate = apply_edit(changed, Edit(edit[0], json.loads(edit[1])))
        if candidate is not None and _is_valid(candidate, file):
            changed = candidate
    before, after = (part.splitlines(keepends=True) for part in (_ended(text), _ended(changed)))
    return "".join(difflib.unified_diff(before, after, str(file), str(file)))


def apply_edit(text: str, edit: Edit) -> str | None:
    """Return the text with one value changed or added. None if that cannot be done."""
    node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    rest = list(edit.path)
    while rest and (inner := _child(node, rest[0])) is not None:
        node = inner
        rest.pop(0)
    if node is None:
        return None
    if not rest:
        return _replace(text, node, _dump(edit.value))
    if not all(isinstance(step, str) for step in rest):
        return None
    if isinstance(node, yaml.ScalarNode) and node.value in ("", "null", "~"):
        value = _dump(_nest(rest, edit.value))
        return _replace(text, node, value if node.value else f" {value}")
    if not isinstance(node, yaml.MappingNode):
        return None
    return _add(text, node, f"{_dump(rest[0])}: {_dump(_nest(rest[1:], edit.value))}")


def _child(node: Any, step: str | int) -> Any:
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == step), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step]
    return None


def _replace(text: str, node: yaml.Node, value: str) -> str:
    start, end = node.start_mark.index, node.end_mark.index
    tail: str = text[start:end]
    return text[:start] + value + tail[len(tail.rstrip()) :] + text[end:]


def _add(text: str, node: yaml.MappingNode, entry: str) -> str:
    """Add an entry to a mapping: behind its last line, or inside its braces."""
    if node.flow_style:
        end: int = node.end_mark.index - 1
        head: str = text[:end].rstrip()
        return head + (", " if node.value else "") + entry + text[end:]
    first, last = node.value[0][0], node.value[-1][1]
    end = last.start_mark.index + len(text[last.start_mark.index : last.end_mark.index].rstrip())
    line_end = text.find("\n", end)
    line_end = len(text) if line_end < 0 else line_end
    indent = " " * int(first.start_mark.column)
    return f"{text[:line_end]}\n{indent}{entry}{text[line_end:]}"


def _nest(keys: YamlPath | list[Any], value: Any) -> Any:
    for key in reversed(keys):
        value = {key: value}
    return value


def _dump(value: Any) -> str:
    """Return the value in YAML's flow style: JSON without needless quotes."""
    if isinstance(value, str) and PLAIN.fullmatch(value) and value.lower() not in RESERVED:
        return value
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_dump(key)}: {_dump(inner)}" for key, inner in value.items()) + "}"
    return json.dumps(value)


def _is_valid(text: str, file: Path) -> bool:
    try:
        parse_config(text, str(file), file.absolute().parent)
    except ConfigError:
        return False
    return True


def _ended(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"
