"""The pages: links and paths in them lead somewhere, and the site builds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from docs.tools.pages import OUTSIDE, ROOT, list_pages, strip_code

LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")
REPOSITORY_PATH = re.compile(r"`((?:router|scorers|tests|configs|docs)/[\w./-]+)`")


def anchors(page: Path) -> set[str]:
    """The ids of a page's headings, as MkDocs makes them."""
    headings = re.findall(r"^#+ (.+)$", strip_code(page.read_text(encoding="utf-8")), flags=re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower() for heading in headings]
    return {re.sub(r"[-\s]+", "-", heading) for heading in plain}


@pytest.mark.parametrize("page", [ROOT / name for name in OUTSIDE], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_files_beside_the_site(page: Path) -> None:
    for target, anchor in LINK.findall(strip_code(page.read_text(encoding="utf-8"))):
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(file), f"{page.name}: {target}#{anchor}"


@pytest.mark.parametrize("page", list_pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_of_the_repository_that_pages_name(page: Path) -> None:
    for path in REPOSITORY_PATH.findall(strip_code(page.read_text(encoding="utf-8"))):
        assert list(ROOT.glob(path.rstrip("/").replace("NAME", "*"))), f"{page.name}: {path}"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 250


def build(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Build a site as `make docs` does."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder / "site"), *options],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_site_builds(tmp_path: Path) -> None:
    """Generated files are current, examples right, links alive and pages listed; nothing is fetched from elsewhere."""
    built = build(tmp_path)
    assert built.returncode == 0, built.stderr
    index = (tmp_path / "site/index.html").read_text(encoding="utf-8")
    assert not re.findall(r'(?:src|href)="https?://[^"]*"', index)


def test_a_dead_link_a_dead_anchor_and_an_unlisted_page_stop_the_build(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text("# One\n\n[dead](gone.md) [anchor](#gone)\n", encoding="utf-8")
    (docs / "unlisted.md").write_text("# Two\n", encoding="utf-8")
    settings = {"site_name": "x", "docs_dir": str(docs), "nav": [{"One": "index.md"}]}
    validation = re.search(
        r"^validation:\n(?:  .*\n)+", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert validation is not None
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(settings) + validation[0], encoding="utf-8")
    built = build(tmp_path, "--config-file", str(tmp_path / "mkdocs.yml"))
    assert built.returncode == 1
    assert all(name in built.stderr for name in ("gone.md", "#gone", "unlisted.md")), built.stderr
