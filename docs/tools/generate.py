"""Write every page, schema and diagram that is made from the code: `make reference`."""

from __future__ import annotations

from pathlib import Path

from docs.tools import diagrams, reference
from docs.tools.chart_schema import VALUES_SCHEMA, render_values_schema
from docs.tools.config_keys import render_files as render_schemas
from docs.tools.pages import DOCS, ROOT

END_NOTICE = "<!-- Made by `make reference` from the code, up to the end of the page. -->\n"


def generate() -> dict[Path, str]:
    """Return the text of each generated file."""
    pages = {DOCS / "reference" / f"{name}.md": text for name, text in reference.render_pages().items()}
    for name, end in reference.render_ends().items():
        page = DOCS / f"{name}.md"
        begin, notice, _ = page.read_text(encoding="utf-8").partition(END_NOTICE)
        assert notice, f"{page} has no line {END_NOTICE!r}, behind which its end is made"
        pages[page] = begin + notice + end
    drawn = {DOCS / "img" / f"{name}.svg": text for name, text in diagrams.render_all().items()}
    schemas = render_schemas(ROOT / "configs") | {VALUES_SCHEMA: render_values_schema()}
    return pages | drawn | schemas


def list_stale() -> list[Path]:
    """Return the generated files that are missing or out of date, relative to the repository."""
    return [
        file.relative_to(ROOT)
        for file, text in generate().items()
        if not file.is_file() or file.read_text(encoding="utf-8") != text
    ]


def main() -> None:
    for file, text in generate().items():
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
