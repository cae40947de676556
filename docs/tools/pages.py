"""The pages as text: their files, the code blocks in them, and the comment above a block."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
OUTSIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "configs/README.md", "scorers/README.md", "router/README.md")
SHELL = frozenset({"sh", "console"})

FENCE = re.compile(
    r"(?:^ *<!-- (?P<note>[a-z ]+): (?P<value>[^\n]*?) -->\n+)?"
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """One fenced code block. `note` and `value` are the HTML comment directly above it: `<!-- not run: why -->`."""

    page: Path
    line: int
    language: str
    text: str
    note: str | None
    value: str

    @property
    def at(self) -> str:
        """`docs/admission.md:12`, the place of the block's first line."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def list_pages() -> list[Path]:
    """Return every Markdown file that people read: the site's pages, then those beside it."""
    return sorted(DOCS.rglob("*.md")) + [ROOT / name for name in OUTSIDE if (ROOT / name).is_file()]


def read_blocks(page: Path) -> Iterator[Block]:
    """Yield the code blocks of one page, in order."""
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        indent = match["indent"]
        body = "".join(line.removeprefix(indent) for line in match["text"].splitlines(keepends=True))
        line = text.count("\n", 0, match.start("text")) + 1
        yield Block(page, line, match["language"], body, match["note"], match["value"] or "")


def read_all_blocks() -> list[Block]:
    """Return the code blocks of all pages."""
    return [block for page in list_pages() for block in read_blocks(page)]


def strip_code(text: str) -> str:
    """Return a page's text with its code blocks blanked out, so that nothing in them looks like a link or heading."""
    return FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)
