"""Parse YAML into plain data that knows the line of every key, from a file or from a text received over HTTP.

Why not `yaml.safe_load`: it drops line numbers, lets a duplicate key silently replace the first one, follows YAML
1.1, where `off` is a boolean, `1:30` is ninety and `1e3` is text, and has no bounds. Here scalars follow the core
schema of YAML 1.2, without infinities, and the data is built from parser events, so that size, depth and the values
that aliases stand for are bounded before anything is built. What the keys mean is defined in `schema.py`;
`reader.py` applies it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from yaml.parser import Parser
from yaml.reader import Reader
from yaml.scanner import Scanner

from router.errors import MAX_COMPLAINTS, ConfigError, quote_name

YamlPath = tuple[str | int, ...]  # keys and list positions, from the top of the document to a value

TAG = "tag:yaml.org,2002:"


class SizeLimits(NamedTuple):
    """The largest document that is read."""

    max_bytes: int
    max_values: int  # aliases counted as what they stand for: of aliases, a kilobyte can stand for a gigabyte


FILE = SizeLimits(2 * 1024 * 1024, 10_000)
"""A main file, or a list of one or two thousand engines. Twice as many wrong values stop the event loop for 60
ms.
"""
POLICY = SizeLimits(128 * 1024, 5_000)
"""A policy file, or what is sent to the admin API; the shipped policies have up to 1,200 bytes and 20 values."""

SYNTAX_HINTS = {
    "'\\t'": ": indent with spaces, not with tabs",
    "<stream end>": ": the file ends inside a bracket or quotation that was opened further up: close it",
    "mapping values are not allowed": ": indent keys of one section alike, and quote a text that contains `: `",
}
"""What to look for, by a part of PyYAML's message."""

MAX_DEPTH = 32
"""Limit of nesting; no key of the configuration is deeper than 8."""


class YamlProblem(NamedTuple):
    """Something wrong at one place of a document."""

    path: YamlPath
    text: str
    line: int | None = None  # overrides the line of `path`


class YamlDocument(NamedTuple):
    """The parsed content of one text."""

    name: str  # file name, or what messages call the text
    data: Any
    first_line: int  # of `data`; lines count from 1, and 0 with no `lines`: messages name none
    lines: dict[tuple[int, str | int], int]  # by a mapping's or list's id() in `data`, and key or position in it
    folder: Path | None = None  # base of relative paths; None: the text did not come from a file

    def line(self, path: YamlPath) -> int:
        """Return the line of `path`, or of its innermost existing parent."""
        line, inside = self.first_line, self.data
        for step in path:
            if (id(inside), step) not in self.lines:
                break
            line, inside = self.lines[id(inside), step], inside[step]
        return line

    def to_error(self, problems: list[YamlProblem], omitted: int = 0) -> ConfigError:
        """Return one error with a line for each distinct problem, sorted by line number.

        `omitted`: further problems that are not among them.
        """
        located = dict.fromkeys(sorted((p.line or self.line(p.path), format_path(p.path), p.text) for p in problems))
        texts = ((f"{self.name}:{line}" if line else self.name, path, text) for line, path, text in located)
        return ConfigError(*(": ".join(filter(None, parts)) for parts in texts), omitted=omitted)


def load(file: Path, limits: SizeLimits = FILE) -> YamlDocument:
    """Read `file`. Raises ConfigError when it is missing, too large, empty, not YAML, or repeats a key."""
    return parse(read_text(file, limits.max_bytes), str(file), file.absolute().parent, limits)


def parse(text: str, name: str, folder: Path | None = None, limits: SizeLimits = FILE) -> YamlDocument:
    """Parse `text`, called `name` in messages. Raises ConfigError when it is too large, empty, not YAML, or repeats
    a key.
    """
    if len(text) > limits.max_bytes:
        raise ConfigError(f"{name}:1: is larger than {limits.max_bytes:,} bytes")
    builder = _Builder(text, limits.max_values)
    try:
        data = builder.build()
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}:{_describe_syntax_error(error)}") from None
    if not builder.first_line:
        raise ConfigError(f"{name}:1: the {'file' if folder else 'text'} is empty")
    document = YamlDocument(name, data, builder.first_line, builder.lines, folder)
    if builder.problems:
        raise document.to_error(builder.problems, builder.omitted)
    return document


def format_path(path: YamlPath) -> str:
    """Format a path for people: `fleet.instances[0].url`."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{quote_name(step)}" for step in path)
    return "".join(steps).removeprefix(".")


def read_text(file: Path, max_bytes: int = FILE.max_bytes) -> str:
    """Return the text of `file`. Raises ConfigError when it cannot be read, is too large or is not UTF-8."""
    try:
        return read_bytes(file, max_bytes).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: found bytes that are no UTF-8 text (at byte {error.start}), wanted YAML") from None


def read_bytes(file: Path, max_bytes: int = FILE.max_bytes) -> bytes:
    """Return the content of `file`. Raises ConfigError when it cannot be read, is too large or is no regular file:
    a pipe would block the reader, a device never ends.
    """
    try:
        with open(file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise ConfigError(f"{file}: cannot be read: is not a regular file")
            content = opened.read(max_bytes + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"{file}: no such file; correct the path") from None
    except IsADirectoryError:
        raise ConfigError(f"{file}: found a folder, wanted a file") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {(error.strerror or str(error)).lower()}") from None
    if len(content) > max_bytes:
        raise ConfigError(f"{file}: is larger than {max_bytes:,} bytes")
    return content


def _describe_syntax_error(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark or error.context_mark):
        problem = error.problem or error.context or ""
        hint = next((hint for text, hint in SYNTAX_HINTS.items() if text in problem), "")
        return f"{mark.line + 1}: not YAML: {problem} (column {mark.column + 1}){hint}"
    return f"1: not YAML: {' '.join(str(error).split())}"


class _Parser(Reader, Scanner, Parser):
    """The text as events, in the order in which it is written. Raises yaml.YAMLError for characters YAML
    excludes.
    """

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)

    def next_event(self) -> Any:
        """Return the next event. Raises yaml.YAMLError."""
        try:
            return self.get_event()  # type: ignore[no-untyped-call]
        except (ValueError, OverflowError):  # PyYAML lets them through: "\UFFFFFFFF", %YAML with thousands of digits
            raise _syntax_error("a number out of range", self.get_mark()) from None


class _Anchored(NamedTuple):
    value: Any
    values: int  # in it, itself included


class _Builder:
    """Builds plain data from events, collecting lines and problems."""

    def __init__(self, text: str, max_values: int) -> None:
        self.first_line = 0  # of the data; 0: the text is empty
        self.lines: dict[tuple[int, str | int], int] = {}
        self.problems: list[YamlProblem] = []  # the first ones
        self.omitted = 0  # further ones
        self._text = text
        self._max_values = max_values
        self._anchors: dict[str, _Anchored] = {}
        self._in_anchored = False
        self._values = 0

    def build(self) -> Any:
        """Return the data of the only document, None for an empty text. Raises yaml.YAMLError."""
        parser = _Parser(self._text)
        self._next = parser.next_event
        self._next()  # the stream begins
        if isinstance(self._next(), yaml.StreamEndEvent):
            return None
        first = self._next()
        self.first_line = first.start_mark.line + 1
        data = self._build(first, ())
        self._next()  # the document ends
        if not isinstance(end := self._next(), yaml.StreamEndEvent):
            raise _syntax_error("found another document", end.start_mark)
        return data

    def _build(self, event: Any, path: YamlPath) -> Any:
        """Return the value that begins with `event`, and take all its events."""
        before = self._values
        self._count(1, event.start_mark)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, path)
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event, path)
        elif len(path) < MAX_DEPTH:
            outer, self._in_anchored = self._in_anchored, self._in_anchored or event.anchor is not None
            value = self._mapping(path) if isinstance(event, yaml.MappingStartEvent) else self._sequence(path)
            self._in_anchored = outer
        else:
            raise _syntax_error(f"nested more than {MAX_DEPTH} deep", event.start_mark)
        if event.anchor is not None:
            self._anchors[event.anchor] = _Anchored(value, self._values - before)
        return value

    def _count(self, values: int, mark: Any) -> None:
        self._values += values
        if self._values > self._max_values:
            raise _syntax_error(f"more than {self._max_values:,} values in all", mark)

    def _alias(self, event: Any, path: YamlPath) -> Any:
        if self._in_anchored:  # also one inside the very node that it refers to
            self._add_problem(path, "an alias inside a node that has an anchor", event)
            return None
        if event.anchor not in self._anchors:
            raise _syntax_error(f"found undefined alias '{quote_name(event.anchor)}'", event.start_mark)
        value, values = self._anchors[event.anchor]
        self._count(values - 1, event.start_mark)
        return value

    def _sequence(self, path: YamlPath) -> list[Any]:
        found: list[Any] = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            self.lines[id(found), len(found)] = event.start_mark.line + 1
            found.append(self._build(event, (*path, len(found))))
        return found

    def _mapping(self, path: YamlPath) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            key = self._key(event, path)
            if key is not None and key in found:
                first = self.lines[id(found), key]
                self._add_problem((*path, key), f"given twice, first on line {first}: remove one", event)
            if key is None or key in found:
                self._build(self._next(), (*path, ""))
            else:
                self.lines[id(found), key] = event.start_mark.line + 1
                found[key] = self._build(self._next(), (*path, key))
        return found

    def _key(self, event: Any, path: YamlPath) -> str | None:
        """Return the key of a mapping; None, with a problem, when it is not text."""
        is_scalar = isinstance(event, yaml.ScalarEvent)
        key = self._scalar(event, path) if is_scalar else self._build(event, (*path, ""))
        if isinstance(key, str):
            return key
        shown = quote_name(event.value) if is_scalar else "that is a list or has keys of its own"
        self._add_problem(path, f"the key {shown} is not text: write it in quotes", event)
        return None

    def _scalar(self, event: Any, path: YamlPath) -> Any:
        text, tag = event.value, event.tag
        if tag is None or tag == "!":
            kind = _resolve(text) if event.implicit[0] else "str"
        elif (kind := tag.removeprefix(TAG)) == tag or kind not in SCALARS:
            self._add_problem(path, f"the YAML tag {quote_name(tag.replace(TAG, '!!'))} is not supported", event)
            return None
        try:
            return SCALARS[kind].convert(text)
        except ValueError:  # with an explicit tag (`!!int seven`), or half a surrogate pair
            raise _syntax_error(f"{quote_name(text)} is not of kind {kind}", event.start_mark) from None

    def _add_problem(self, path: YamlPath, text: str, event: Any) -> None:
        if len(self.problems) < MAX_COMPLAINTS:
            self.problems.append(YamlProblem(path, text, event.start_mark.line + 1))
        else:
            self.omitted += 1


def _syntax_error(problem: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(None, None, problem, mark)


# scalars: the core schema of YAML 1.2 (https://yaml.org/spec/1.2.2/#103-core-schema) without `.inf` and `.nan`


class _ScalarKind(NamedTuple):
    first: str  # characters that its text may begin with
    pattern: re.Pattern[str]
    convert: Callable[[str], Any]


def _resolve(text: str) -> str:
    """Return the kind of a scalar without quotes and without a tag."""
    for name, kind in SCALARS.items():
        if text[:1] in kind.first and kind.pattern.fullmatch(text):
            return name
    return "str"


def _join_surrogates(text: str) -> str:
    """Join the surrogate pairs that JSON uses beyond 16 bits; a lone surrogate could not be encoded as UTF-8
    later.
    """
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16")


def _integer(text: str) -> int:
    return int(text, 0) if text[:2] in ("0x", "0o") else int(text)


SCALARS = {
    "null": _ScalarKind("~nN", re.compile("~|null|Null|NULL|"), lambda text: None),
    "bool": _ScalarKind("tTfF", re.compile("true|True|TRUE|false|False|FALSE"), lambda text: text.lower() == "true"),
    "int": _ScalarKind(
        "-+0123456789", re.compile("[-+]?[0-9]{1,40}|0x[0-9a-fA-F]{1,40}|0o[0-7]{1,40}"), _integer
    ),
    "float": _ScalarKind(
        "-+.0123456789", re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"), float
    ),
    "str": _ScalarKind("", re.compile("(?!)"), _join_surrogates),
}  # fmt: skip
