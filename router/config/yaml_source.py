"""A YAML text as plain data that remembers on which line each key stands; the text of a file, or one that was sent.

Why not `yaml.safe_load`: it forgets lines, lets a second key silently win over the first, and follows YAML 1.1, where
`off` is a boolean, `1:30` is ninety and `1e3` is text. Here the scalars are those of YAML 1.2's core schema, without
infinities. Knows nothing of what the keys mean: that is `schema.py`, and `read.py` brings both together.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import Any, NamedTuple

import yaml

from router.errors import ConfigError

Path = tuple[str | int, ...]  # from the top of the document to a value: keys and list positions

TAG = "tag:yaml.org,2002:"

MOST_VALUES = 200_000
"""In one document: aliases of aliases make a gigabyte out of a kilobyte."""


class YamlProblem(NamedTuple):
    """Something wrong at a place of a document."""

    path: Path
    text: str
    line: int | None = None  # where it is known better than by the path


class YamlDocument(NamedTuple):
    """What one text holds. `lines` counts from 1 and has an entry for every path in `data`."""

    name: str  # the file, or what else the text is called in messages
    data: Any
    lines: dict[Path, int]
    folder: FilePath | None = None  # where its relative paths begin; None: it came from nowhere

    def line(self, path: Path) -> int:
        """The line of `path`, or of the nearest thing around it that is there."""
        while path not in self.lines:
            path = path[:-1]
        return self.lines[path]

    def refusal(self, problems: list[YamlProblem]) -> ConfigError:
        """All of them in one error, one per line, from the top of the file to its end."""
        placed = sorted((p.line or self.line(p.path), format_path(p.path), p.text) for p in problems)
        return ConfigError(
            "\n".join(f"{self.name}:{line}: {path}: {text}" if path else f"{self.name}:{line}: {text}"
                      for line, path, text in dict.fromkeys(placed))
        )  # fmt: skip


def load(file: FilePath) -> YamlDocument:
    """Reads `file`. Raises `ConfigError` when it is missing, empty, not YAML, or has a key twice."""
    return parse(read_text(file), str(file), file.absolute().parent)


def parse(text: str, name: str, folder: FilePath | None = None) -> YamlDocument:
    """As `load`, of a text that is called `name` in messages."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            raise ConfigError(f"{name}:1: the {'file' if folder else 'text'} is empty")
        reading = _Reading(loader)
        document = YamlDocument(name, reading.plain(node, (), ()), reading.lines, folder)
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}:{_syntax(error)}") from None
    except RecursionError:
        raise ConfigError(f"{name}:1: not YAML: nested too deeply") from None
    if reading.problems:
        raise document.refusal(reading.problems)
    return document


def format_path(path: Path) -> str:
    """A path for people: `fleet.instances[0].url`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def read_text(file: FilePath) -> str:
    """The text of a file of the operator's. Raises `ConfigError`."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: is not UTF-8 text (byte {error.start})") from None


def _syntax(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark or error.context_mark):
        return f"{mark.line + 1}: not YAML: {error.problem or error.context} (column {mark.column + 1})"
    return f"1: not YAML: {' '.join(str(error).split())}"


class _Reading:
    """From YAML's nodes to plain data, noting lines and what is wrong on the way."""

    def __init__(self, loader: _Loader) -> None:
        self._loader = loader
        self.lines: dict[Path, int] = {}
        self.problems: list[YamlProblem] = []

    def plain(self, node: yaml.Node, path: Path, around: tuple[yaml.Node, ...]) -> Any:
        """`node` as plain data; `around` are the nodes that contain it, outermost first."""
        line = node.start_mark.line + 1
        self.lines.setdefault(path, line)
        if len(self.lines) > MOST_VALUES:
            raise yaml.MarkedYAMLError(None, None, f"more than {MOST_VALUES:,} values in all", node.start_mark)
        if any(node is outer for outer in around):
            self.problems.append(YamlProblem(path, "an alias inside the thing that it names", line))
        elif isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, (*around, node))
        elif isinstance(node, yaml.SequenceNode):
            return [self.plain(item, (*path, i), (*around, node)) for i, item in enumerate(node.value)]
        elif node.tag in _Loader.yaml_constructors:
            return self._loader.construct_object(node)
        else:
            self.problems.append(
                YamlProblem(path, f"the YAML tag {node.tag.replace(TAG, '!!')} means nothing here", line)
            )
        return None

    def _mapping(self, node: yaml.MappingNode, path: Path, around: tuple[yaml.Node, ...]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = self._loader.construct_object(key_node) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str):
                shown = key_node.value if isinstance(key_node, yaml.ScalarNode) else "that is a list or mapping"
                self.problems.append(YamlProblem(path, f"the key {shown} is not text: write it in quotes", line))
            elif key in found:
                first = self.lines[(*path, key)]
                self.problems.append(YamlProblem((*path, key), f"given twice, first on line {first}", line))
            else:
                self.lines[(*path, key)] = line
                found[key] = self.plain(value_node, (*path, key), around)
        return found


class _Loader(yaml.SafeLoader):
    """The core schema of YAML 1.2 (https://yaml.org/spec/1.2.2/#103-core-schema) without `.inf` and `.nan`."""


_Loader.yaml_implicit_resolvers = {}
_Loader.yaml_constructors = {}


def _scalar(kind: str, pattern: str, first: list[str], made: Callable[[str], Any]) -> None:
    def construct(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> Any:
        text = str(loader.construct_scalar(node))
        try:
            return made(text)
        except ValueError:  # only by an explicit tag: `!!int seven`
            shown = text.encode(errors="replace").decode()
            raise yaml.MarkedYAMLError(None, None, f"{shown} is not of kind {kind}", node.start_mark) from None

    if pattern:
        _Loader.add_implicit_resolver(TAG + kind, re.compile(f"^(?:{pattern})$"), first)
    _Loader.add_constructor(TAG + kind, construct)


def _text(text: str) -> str:
    """JSON writes what is beyond 16 bits as two halves; a half alone is no character and could not be written out."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16")


def _integer(text: str) -> int:
    return int(text, 0) if text[:2] in ("0x", "0o") else int(text)


DIGITS = "0123456789"
_scalar("null", "~|null|Null|NULL|", ["~", "n", "N", ""], lambda text: None)
_scalar("bool", "true|True|TRUE|false|False|FALSE", list("tTfF"), lambda text: text.lower() == "true")
_scalar("int", "[-+]?[0-9]{1,40}|0x[0-9a-fA-F]{1,40}|0o[0-7]{1,40}", list("-+" + DIGITS), _integer)
_scalar("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", list("-+." + DIGITS), float)
_scalar("str", "", [], _text)
