"""The generated pages, schemas and diagrams are what the code says today."""

from __future__ import annotations

import re
import sys

import pytest

from docs.tools.generate import generate, list_stale
from docs.tools.pages import DOCS
from scorers.admission.contract import AdmissionRule
from scorers.contract import Plugin
from scorers.registry import BUILTINS, load_registry

PLUGINS = [(name, load_registry().find(kind, name)) for kind, names in BUILTINS.items() for name in names]


def test_generated_files_are_current() -> None:
    """If not: run `make reference`."""
    assert [str(file) for file in list_stale()] == []


def test_generating_twice_gives_the_same() -> None:
    assert generate() == generate()


def test_tables_have_as_many_cells_in_every_row() -> None:
    for file, text in generate().items():
        if file.suffix == ".md":
            for table in re.findall(r"(?:^\|.*\|\n)+", text, flags=re.MULTILINE):
                widths = {re.sub(r"\\\|", "", line).count("|") for line in table.splitlines()}
                assert len(widths) == 1, f"{file}: {table}"


@pytest.mark.parametrize(("name", "plugin"), PLUGINS)
def test_every_plug_in_has_its_row(name: str, plugin: type[Plugin]) -> None:
    page = (DOCS / "reference/plugins.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| `{name}` \|.*$", page, re.MULTILINE)
    of = sys.modules[plugin.__module__] if issubclass(plugin, AdmissionRule) else plugin
    assert " ".join(str(of.__doc__).partition("\n\n")[0].split()).replace("|", "\\|") in row
