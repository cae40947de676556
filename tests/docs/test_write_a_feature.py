"""The worked example of "Write a feature", added to a copy of the router as its page says."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx
import yaml

from docs.tools.pages import ROOT, read_blocks
from router.lab.local_stack.preflight import free_ports
from tests.docs.embedded import embedded_fleet

PAGE, EXAMPLE = ROOT / "docs/design/write-a-feature.md", Path(__file__).parent / "forbidden_words"


def copy_with_the_feature(folder: Path) -> Path:
    """Copy the router, and change it by the page: a folder, a section, and what its blocks say of two files."""
    for package in ("router", "scorers", "configs"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    of_schema, of_wiring = [block.text for block in read_blocks(PAGE) if block.note == "not checked"]
    imported, field = of_schema.split("\n\n")
    insert(folder / "router/config/schema.py", "from router.config.sections.pool", f"{imported}\n")
    insert(folder / "router/config/schema.py", "    log: LogConfig", field)
    insert(folder / "router/wiring.py", '    ("admission.feature:', of_wiring)
    shutil.copy(EXAMPLE / "section.py", folder / "router/config/sections/forbidden_words.py")
    own = folder / "router/features/forbidden_words"
    own.mkdir()
    (own / "__init__.py").touch()
    shutil.copy(EXAMPLE / "feature.py", own)
    return folder


def insert(file: Path, before: str, text: str) -> None:
    """Insert lines before the first one that begins with `before`."""
    found = file.read_text(encoding="utf-8")
    assert f"\n{before}" in found
    file.write_text(found.replace(f"\n{before}", f"\n{text}{before}", 1), encoding="utf-8")


def test_a_forbidden_word_is_refused_counted_and_shown(tmp_path: Path) -> None:
    port, admin_port = free_ports(2)
    config = yaml.safe_load((ROOT / "configs/quickstart.yaml").read_text(encoding="utf-8"))
    config["listen"]["port"], config["admin"]["port"] = port, admin_port
    config["policies_dir"] = str(ROOT / "configs/policies")
    config["forbidden_words"] = {"words": ["Xyzzy"]}
    public, admin = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}"
    code = copy_with_the_feature(tmp_path / "code")
    with embedded_fleet(config, tmp_path, code), httpx.Client(base_url=public, timeout=30.0) as http:
        asked = [
            http.post("/v1/completions", json={"model": "warm-tiny", "prompt": text, "max_tokens": 1})
            for text in ("Say xyzzy.", "Say nothing.")
        ]
        assert [answer.status_code for answer in asked] == [400, 200]
        assert asked[0].json()["error"]["code"] == "forbidden_word"
        assert 'warmroute_forbidden_words_total{word="Xyzzy"} 1.0' in http.get("/metrics").text
        assert httpx.get(f"{admin}/admin/forbidden-words").json() == {"refused": {"Xyzzy": 1}}
        assert httpx.get(f"{admin}/admin/openapi.json").json()["paths"]["/admin/forbidden-words"]
