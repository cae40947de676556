"""The table of intended differences, read from the page that operators read (docs/reference/http.md)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from tests.paths import ROOT

PAGE = ROOT / "docs" / "reference" / "http.md"
HEADING = "## Differences from an engine"


class AnswerRow(NamedTuple):
    """A kind of request that the router answers otherwise than the engine."""

    engine: frozenset[str]  # statuses; `any`: each one
    router: frozenset[str]

    def allows(self, engine: int, router: int) -> bool:
        return _has(self.engine, engine) and _has(self.router, router)


class Differences(NamedTuple):
    """The tables of the section: `answers` and `bodies` by key, patterns of `headers`."""

    answers: dict[str, AnswerRow]
    bodies: frozenset[str]
    headers: frozenset[str]

    def names_header(self, name: bytes) -> bool:
        """Return whether this header of an answer may differ."""
        return any(fnmatchcase(name.decode("latin-1"), pattern) for pattern in self.headers)


def read_differences() -> Differences:
    """Return the differences that the page lists."""
    text = PAGE.read_text(encoding="utf-8")
    section = text[text.index(HEADING) :]
    end = section.find("\n## ", len(HEADING))
    answers, bodies, headers = (list(_rows(part)) for part in section[: None if end < 0 else end].split("\n### ")[1:])
    return Differences(
        {key: AnswerRow(_statuses(engine), _statuses(router)) for key, _, engine, router, *_ in answers},
        frozenset(key for key, *_ in bodies),
        frozenset(name for names, *_ in headers for name in re.findall(r"[a-z*-]+", names)),
    )


def _rows(part: str) -> Iterator[list[str]]:
    """Yield the cells of each row of a table, the first without its backticks."""
    lines = [line for line in part.splitlines() if line.startswith("| ")][1:]  # without the names of the columns
    for line in lines:
        first, *cells = (cell.strip() for cell in line.strip("| ").split(" | "))
        yield [first.replace("`", ""), *cells]


def _statuses(cell: str) -> frozenset[str]:
    return frozenset(re.findall(r"\d{3}|any", cell))


def _has(statuses: frozenset[str], status: int) -> bool:
    return "any" in statuses or str(status) in statuses
