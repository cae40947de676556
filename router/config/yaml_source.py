"""Parse YAML into plain data that knows the line of every key, from a file or from a text received over HTTP.

Why not `yaml.safe_load`: it drops line numbers, lets a duplicate key silently replace the first one, and follows YAML
1.1, where `off` is a boolean, `1:30` is ninety and `1e3` is text. Here scalars follow the core schema of YAML 1.2,
without infinities. What the keys mean is defined in `schema.py`; `reader.py` applies it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from router.errors import ConfigError

YamlPath = tuple[str | int, ...]  # keys and list positions, from the top of the document to a value

TAG = "tag:yaml.org,2002:"

MAX_VALUES = 200_000
"""Limit per document: with aliases of aliases, a kilobyte of text becomes a gigabyte of values."""


class YamlProblem(NamedTuple):
    """Something wrong at one place of a document."""

    path: YamlPath
    text: str
    line: int | None = None  # overrides the line of `path`


class YamlDocument(NamedTuple):
    """The parsed content of one text. `lines` counts from 1 and has an entry for every path in `data`."""

    name: str  # file name, or what messages call the text
    data: Any
    lines: dict[YamlPath, int]
    folder: Path | None = None  # base of relative paths; None: the text did not come from a file

    def line(self, path: YamlPath) -> int:
        """Return the line of `path`, or of its innermost existing parent."""
        while path not in self.lines:
            path = path[:-1]
        return self.lines[path]

    def to_error(self, problems: list[YamlProblem]) -> ConfigError:
        """Return one error with a line for each distinct problem, sorted by line number."""
        located = sorted((p.line or self.line(p.path), format_path(p.path), p.text) for p in problems)
        return ConfigError(
            "\n".join(f"{self.name}:{line}: {path}: {text}" if path else f"{self.name}:{line}: {text}"
                      for line, path, text in dict.fromkeys(located))
        )  # fmt: skip


def load(file: Path) -> YamlDocument:
    """Read `file`. Raises `ConfigError` when it is missing, empty, not YAML, or repeats a key."""
    return parse(read_text(file), str(file), file.absolute().parent)


def parse(text: str, name: str, folder: Path | None = None) -> YamlDocument:
    """Parse `text`, called `name` in messages. Raises ConfigError when it is empty, not YAML, or repeats a key."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            raise ConfigError(f"{name}:1: the {'file' if folder else 'text'} is empty")
        converter = _Converter(loader)
        document = YamlDocument(name, converter.convert(node, (), ()), converter.lines, folder)
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}:{_describe_syntax_error(error)}") from None
    except RecursionError:
        raise ConfigError(f"{name}:1: not YAML: nested too deeply") from None
    if converter.problems:
        raise document.to_error(converter.problems)
    return document


def format_path(path: YamlPath) -> str:
    """Format a path for people: `fleet.instances[0].url`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def read_text(file: Path) -> str:
    """Return the text of `file`. Raises ConfigError when it cannot be read or is not UTF-8."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: is not UTF-8 text (byte {error.start})") from None


def _describe_syntax_error(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark or error.context_mark):
        return f"{mark.line + 1}: not YAML: {error.problem or error.context} (column {mark.column + 1})"
    return f"1: not YAML: {' '.join(str(error).split())}"


class _Converter:
    """Convert YAML nodes to plain data, collecting lines and problems."""

    def __init__(self, loader: _Loader) -> None:
        self._loader = loader
        self.lines: dict[YamlPath, int] = {}
        self.problems: list[YamlProblem] = []

    def convert(self, node: yaml.Node, path: YamlPath, parents: tuple[yaml.Node, ...]) -> Any:
        """Return `node` as plain data. `parents` are the nodes that contain it, outermost first."""
        line = node.start_mark.line + 1
        self.lines.setdefault(path, line)
        if len(self.lines) > MAX_VALUES:
            raise yaml.MarkedYAMLError(None, None, f"more than {MAX_VALUES:,} values in all", node.start_mark)
        if any(node is parent for parent in parents):
            self.problems.append(YamlProblem(path, "an alias inside the node that it refers to", line))
        elif isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, (*parents, node))
        elif isinstance(node, yaml.SequenceNode):
            return [self.convert(item, (*path, i), (*parents, node)) for i, item in enumerate(node.value)]
        elif node.tag in _Loader.yaml_constructors:
            return self._loader.construct_object(node)
        else:
            tag = node.tag.replace(TAG, "!!")
            self.problems.append(YamlProblem(path, f"the YAML tag {tag} is not supported", line))
        return None

    def _mapping(self, node: yaml.MappingNode, path: YamlPath, parents: tuple[yaml.Node, ...]) -> dict[str, Any]:
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
                found[key] = self.convert(value_node, (*path, key), parents)
        return found


class _Loader(yaml.SafeLoader):
    """The core schema of YAML 1.2 (https://yaml.org/spec/1.2.2/#103-core-schema) without `.inf` and `.nan`."""


_Loader.yaml_implicit_resolvers = {}
_Loader.yaml_constructors = {}


def _add_scalar(kind: str, pattern: str, first: list[str], convert: Callable[[str], Any]) -> None:
    """Register a scalar type. `first` lists the characters that its text may begin with."""

    def construct(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> Any:
        text = str(loader.construct_scalar(node))
        try:
            return convert(text)
        except ValueError:  # only with an explicit tag: `!!int seven`
            shown = text.encode(errors="replace").decode()
            raise yaml.MarkedYAMLError(None, None, f"{shown} is not of kind {kind}", node.start_mark) from None

    if pattern:
        _Loader.add_implicit_resolver(TAG + kind, re.compile(f"^(?:{pattern})$"), first)
    _Loader.add_constructor(TAG + kind, construct)


def _join_surrogates(text: str) -> str:
    """Join the surrogate pairs that JSON uses beyond 16 bits; a lone surrogate could not be encoded as UTF-8 later."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16")


def _integer(text: str) -> int:
    return int(text, 0) if text[:2] in ("0x", "0o") else int(text)


DIGITS = "0123456789"
_add_scalar("null", "~|null|Null|NULL|", ["~", "n", "N", ""], lambda text: None)
_add_scalar("bool", "true|True|TRUE|false|False|FALSE", list("tTfF"), lambda text: text.lower() == "true")
_add_scalar("int", "[-+]?[0-9]{1,40}|0x[0-9a-fA-F]{1,40}|0o[0-7]{1,40}", list("-+" + DIGITS), _integer)
_add_scalar("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", list("-+." + DIGITS), float)
_add_scalar("str", "", [], _join_surrogates)
