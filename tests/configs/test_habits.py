"""The files that keep the checkout in order agree with each other."""

from __future__ import annotations

import re
import subprocess

import yaml

from tests.paths import ROOT

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def test_pre_commit_does_what_make_check_does() -> None:
    recipe = MAKEFILE.partition("\ncheck:")[2].partition("\n\n")[0].splitlines()[1:]
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert repo["repo"] == "local"
    checks = [line.strip() for line in recipe if not line.startswith("\t@")]  # the others only inform
    assert [hook["entry"] for hook in repo["hooks"]] == [check.replace("$(BIN)", ".venv/bin") for check in checks]
    assert all(hook["language"] == "system" and not hook["pass_filenames"] for hook in repo["hooks"])


def test_make_alone_lists_every_target() -> None:
    shown = subprocess.run(["make", "-s"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, flags=re.MULTILINE)[0].split()
    assert sorted(line.split()[0] for line in shown.splitlines()) == sorted(targets)


def test_the_license_is_apache_2() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
