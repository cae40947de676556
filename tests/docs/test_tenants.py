"""The worked example of the page about tenants, run as it is printed against an embedded fleet of its own."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from docs.tools.pages import DOCS, SHELL, read_blocks
from router.lab.local_stack.preflight import free_ports
from tests.docs.embedded import embedded_fleet
from tests.docs.test_examples import RunningFleet, commands_and_output

SHIM = """\
#!/usr/bin/env bash
exec {python} -m router "$@" --admin http://127.0.0.1:{admin}
"""
MEASURED = re.compile(r"\d{4}-\d\d-\d\d|\d+\.\d+s?|retry-after: \d+|again in \d+ s|1m0s")
"""Of the output: days, GPU time, times to wait."""


def mask(output: str) -> list[str]:
    """Return the lines as they are in every run."""
    return [MEASURED.sub("#", line.rstrip()) for line in output.splitlines() if line.strip()]


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page uses curl")
def test_the_worked_example_prints_what_the_page_shows(tmp_path: Path) -> None:
    blocks = list(read_blocks(DOCS / "operate/tenants.md"))
    (keys, example) = [block for block in blocks if block.language in SHELL]
    (settings,) = [block.text for block in blocks if "embedded" in block.text and block.language == "yaml"]
    running = RunningFleet(tmp_path, *free_ports(2))
    settings = settings.replace("8000", str(running.port)).replace("8001", str(running.admin_port))
    config = yaml.safe_load(settings.replace("/tmp/", f"{tmp_path}/"))
    shim = tmp_path / "bin/warmroute"
    shim.parent.mkdir()
    shim.write_text(SHIM.format(python=sys.executable, admin=running.admin_port), encoding="utf-8")
    shim.chmod(0o755)
    assert running.run(keys.text.replace("/tmp/", f"{tmp_path}/")).returncode == 0
    with embedded_fleet(config, tmp_path):
        commands, shown = commands_and_output(example)
        done = running.run(commands)
        assert done.returncode == 0, done.stdout + done.stderr
        assert mask(done.stdout) == mask(shown)
