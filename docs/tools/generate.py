"""`make reference`: writes every page, schema and diagram that is made from the code."""

from __future__ import annotations

from pathlib import Path

from docs.tools import diagrams, reference
from docs.tools.pages import DOCS, ROOT
from router.config.generated_docs import render_files as render_schemas


def generated() -> dict[Path, str]:
    """What each generated file must hold."""
    pages = {DOCS / "reference" / f"{name}.md": text for name, text in reference.pages().items()}
    drawn = {DOCS / "img" / f"{name}.svg": text for name, text in diagrams.drawings().items()}
    return pages | drawn | render_schemas(ROOT / "configs")


def stale() -> list[Path]:
    """Generated files that are missing or not what the code says, relative to the repository."""
    return [
        file.relative_to(ROOT)
        for file, text in generated().items()
        if not file.is_file() or file.read_text(encoding="utf-8") != text
    ]


def main() -> None:
    for file, text in generated().items():
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
