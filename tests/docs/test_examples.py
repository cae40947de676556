"""The examples in the pages: what can be checked is checked, what can run is run, and what cannot says why.

Shell blocks run in a folder of their own, where `configs` is that of the repository and `warmroute` is this code. They
find an embedded fleet at the addresses that the pages use, of router and engines; its real ones are put in their place.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
import yaml

from docs.tools import examples
from docs.tools.pages import ROOT, SHELL, Block, read_all_blocks, read_blocks
from router.cli.serve.command import FIRST_STEPS
from router.errors import ConfigError
from router.lab.local_stack.preflight import free_ports
from tests.docs.embedded import embedded_fleet

pytestmark = pytest.mark.xdist_group("examples")  # one fleet for all of them

CHECKED = [block for block in read_all_blocks() if block.language not in SHELL]
RUN = [block for block in read_all_blocks() if block.language in SHELL and block.note != "not run"]
SHORT = 20  # words; one sentence depends on what the fleet did before

SHIM = """\
#!/usr/bin/env bash
case "$1" in
  load) exec {python} -m router "$@" --url {url} ;;
  policy | experiment | profile | drain | undrain) exec {python} -m router "$@" --admin {admin} ;;
  *) exec {python} -m router "$@" ;;
esac
"""


class RunningFleet(NamedTuple):
    """An embedded fleet and the folder in which examples run."""

    folder: Path
    port: int
    admin_port: int
    engines: tuple[str, ...] = ()  # their addresses

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """One block's commands; the first that fails ends it."""
        moved = command.replace(":8000", f":{self.port}").replace(":8001", f":{self.admin_port}")
        for number, engine in enumerate(self.engines, start=1):
            moved = moved.replace(f"http://10.0.0.{number}:8100", engine)
        path = f"{self.folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", moved],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFleet]:
    folder = tmp_path_factory.mktemp("examples")
    (folder / "configs").symlink_to(ROOT / "configs")
    running = RunningFleet(folder, *free_ports(2))
    config = yaml.safe_load((ROOT / "configs/quickstart.yaml").read_text(encoding="utf-8"))
    config["listen"]["port"], config["admin"]["port"] = running.port, running.admin_port
    config["policies_dir"] = str(ROOT / "configs/policies")
    config["records"] = {"decision_log": {"folder": str(folder / "decisions")}}
    shim = folder / "bin/warmroute"
    shim.parent.mkdir()
    url, admin = f"http://127.0.0.1:{running.port}", f"http://127.0.0.1:{running.admin_port}"
    shim.write_text(SHIM.format(python=sys.executable, url=url, admin=admin), encoding="utf-8")
    shim.chmod(0o755)
    with embedded_fleet(config, folder) as log:
        engines = re.findall(r"engine-\d+  (http://\S+)", log.read_text())
        running = running._replace(engines=tuple(engines))
        first = httpx.post(f"{url}/v1/completions", json={"model": "warm-tiny", "prompt": "Hello."}, timeout=30)
        assert first.status_code == 200, first.text  # examples may ask for the newest record: there is one
        yield running


def commands_and_output(block: Block) -> tuple[str, str]:
    """A `console` block's commands, without their prompts, and the output below them; a `sh` block is all commands."""
    if block.language == "sh":
        return block.text, ""
    commands: list[str] = []
    output: list[str] = []
    goes_on = False
    for line in block.text.splitlines():
        if goes_on or line.startswith("$ "):
            commands.append(line.removeprefix("$ "))
            goes_on = line.endswith("\\")
        else:
            output.append(line)
    return "\n".join(commands), "\n".join(output)


def words(text: str) -> set[str]:
    return set(re.findall(r"\b[a-z]{4,}\b", text.lower()))


@pytest.mark.parametrize("block", CHECKED, ids=lambda block: block.at)
def test_it_checks(block: Block) -> None:
    assert list(examples.check(block)) == []


def test_the_checks_notice() -> None:
    with pytest.raises(ConfigError, match="prot"):
        examples.check_yaml("listen: {prot: 1}\n")
    with pytest.raises(ConfigError, match="warmer"):
        examples.check_yaml("active: warmer\n")
    with pytest.raises(ConfigError, match="queue_dept"):
        examples.check_yaml("scorers: [{name: queue_dept}]\n")
    with pytest.raises(ConfigError, match="url"):
        examples.check_yaml("- {}\n", "list of instances")


@pytest.mark.skipif(shutil.which("curl") is None, reason="the pages use curl")
@pytest.mark.parametrize("block", RUN, ids=lambda block: block.at)
def test_it_runs(block: Block, fleet: RunningFleet) -> None:
    """The output has at least nine tenths of the words that the page shows; figures and targets differ."""
    commands, shown = commands_and_output(block)
    done = fleet.run(commands)
    assert done.returncode == 0, done.stdout + done.stderr
    missing = words(shown) - words(done.stdout + done.stderr)
    if len(words(shown)) >= SHORT:
        assert len(missing) <= 0.1 * len(words(shown)), f"no longer printed: {sorted(missing)}"


@pytest.mark.parametrize("page", ["README.md", "docs/get-started/embedded-fleet.md"])
def test_the_second_turn_is_a_hit(page: str, fleet: RunningFleet) -> None:
    """The two turns of a chat run as printed, and the second finds most of the first in the cache."""
    (code,) = [block.text for block in read_blocks(ROOT / page) if block.language == "python"]
    (fleet.folder / "turns.py").write_text(code.replace(":8000", f":{fleet.port}"), encoding="utf-8")
    done = fleet.run(f"{sys.executable} turns.py")
    assert done.returncode == 0, done.stderr
    (_, first_tokens, _), (_, tokens, cached) = [line.split() for line in done.stdout.splitlines()]
    assert int(tokens) > int(first_tokens)
    assert int(cached) > 0.8 * int(first_tokens)


def test_the_page_shows_what_the_fleet_prints() -> None:
    shown = [block.text for block in read_blocks(ROOT / "docs/get-started/embedded-fleet.md") if "Ready." in block.text]
    assert shown == [FIRST_STEPS.format(port=8000, admin=8001, model="warm-tiny").lstrip("\n")]


def test_what_is_not_run_says_why() -> None:
    """A new block that does not run has to be counted here, with its reason beside it in the page."""
    shell = [block for block in read_all_blocks() if block.language in SHELL]
    assert all(len(block.value) >= 10 for block in shell if block.note == "not run")
    skipped: dict[str, int] = {}
    for block in shell:
        if block.note == "not run":
            name = str(block.page.relative_to(ROOT))
            skipped[name] = skipped.get(name, 0) + 1
    assert skipped == NOT_RUN


NOT_RUN = {
    "docs/operate/doctor.md": 2,  # a configuration of its own
    "README.md": 1,
    "docs/features/models.md": 1,  # takes a minute; tests/e2e/test_aliases.py runs the same
    "docs/features/shared-pool.md": 1,
    "docs/get-started/embedded-fleet.md": 1,
    "docs/get-started/real-stack.md": 1,
    "docs/get-started/your-fleet.md": 2,
    "docs/measurements/autoscaling.md": 2,  # minutes
    "docs/measurements/index.md": 2,
    "docs/measurements/router-speed.md": 1,
    "docs/measurements/routers.md": 1,  # an hour
    "docs/operate/tenants.md": 2,  # a configuration of its own; test_tenants.py runs it
    "docs/operate/upgrades.md": 3,  # restarts engines
    "docs/operate/game-days.md": 2,
    "docs/operate/kubernetes.md": 5,
    "docs/operate/picker-conformance.md": 2,
    "docs/operate/records.md": 4,
    "docs/plan/capacity.md": 4,
    "docs/plan/simulate.md": 1,
    "docs/policies/experiments.md": 1,
    "docs/policies/write-a-scorer.md": 1,
}
