"""`warmroute doctor` from the command line: what it prints, and its exit codes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import yaml

from tests.router.cli.conftest import Shell
from tests.router.operate.doctor.conftest import running


async def test_a_healthy_fleet_is_exit_code_0(shell: Shell, tmp_path: Path) -> None:
    async with running({}) as fleet:
        file = shell.file(yaml.safe_dump(fleet.config()))
        said = await asyncio.to_thread(shell, "doctor", file)
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("healthy  (")
    assert "1 engine, 0 routers" in said.out


async def test_a_fault_is_three_lines_and_exit_code_1(shell: Shell) -> None:
    async with running({"prefix_caching": False}) as fleet:
        file = shell.file(yaml.safe_dump(fleet.config()))
        said = await asyncio.to_thread(shell, "doctor", "--passive", file)
        as_json = json.loads((await asyncio.to_thread(shell, "doctor", "--passive", "--json", file)).out)
    assert said.code == 1
    assert said.out.splitlines()[:3] == [
        "FAULT      engine-0: prefix caching is off  [engines.prefix_caching]",
        "      why  no request can hit a cache there",
        "   change  engine: --enable-prefix-caching",
    ]
    assert said.out.splitlines()[3].startswith("1 fault  (")
    (finding,) = as_json["findings"]
    assert (finding["check"], finding["severity"], finding["at"]) == ("engines.prefix_caching", "fault", ["engine-0"])
    assert as_json["healthy"] is False


async def test_the_line_of_a_fault_in_the_configuration_is_named(shell: Shell) -> None:
    file = shell.file("fleet:\n  instances:\n    - url: http://127.0.0.1:1\n")
    said = await asyncio.to_thread(shell, "doctor", file)
    assert said.code == 1
    assert f"   change  {file}:3  start it there" in said.out


def test_wrong_usage_is_exit_code_2(shell: Shell) -> None:
    assert shell("doctor").code == 2
    said = shell("doctor", shell.file("fleet: {engines: 3}\n"))
    assert said.code == 2
    assert "main.yaml:1: fleet" in said.err
    assert "--token-env" in shell("doctor", "--url", "http://127.0.0.1:1", "--token-env", "NOT_THERE").err


async def test_a_router_that_does_not_answer_is_a_fault(shell: Shell) -> None:
    said = await asyncio.to_thread(shell, "doctor", "--url", "http://127.0.0.1:1")
    assert said.code == 1
    assert "http://127.0.0.1:1: " in said.out


async def test_a_fix_is_a_patch_on_standard_output(shell: Shell, tmp_path: Path) -> None:
    async with running({}) as fleet:
        file = shell.file(yaml.safe_dump(fleet.config() | {"limits": {"keepalive_s": 30.0}}))
        said = await asyncio.to_thread(shell, "doctor", "--fix", "--passive", file)
    assert said.code == 1
    assert "limits.keepalive" in said.err
    assert "keepalive_s: 30.0" in file.read_text()
    assert [line for line in said.out.splitlines() if line[0] in "+-"][2:] == [
        "-  keepalive_s: 30.0",
        "+  keepalive_s: 4.0",
    ]
    assert shell("doctor", "--fix", "--url", "http://127.0.0.1:1").code == 2
