"""The command: exit codes, and what is said where. What runs a router or an engine is run in `tests/e2e`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from router.config.reader import read_policy_file
from router.config.schema import PolicyConfig
from scorers.build import is_compiled
from tests.paths import CONFIGS
from tests.router.cli.conftest import Shell

OURS = sorted({*CONFIGS.glob("**/*.yaml")} - {*CONFIGS.glob("mooncake/*")})  # the others are for other programs
POLICY = "scorers: [{name: random}]\n"
MAIN = "fleet: {instances: [{url: 'http://10.0.0.1:8000'}]}\npolicies: {warm: {scorers: [{name: random}]}}\n"


# words


def test_help_names_every_command(shell: Shell) -> None:
    said = shell("--help")
    assert said.code == 0
    for command in ("serve", "init", "fleet", "stack", "policies", "engine", "check"):
        assert command in said.out


@pytest.mark.parametrize("group", ["", "experiment", "policies", "policy", "workload"])
def test_help_loads_little_and_cuts_no_line_short(group: str) -> None:
    code = "import sys; from router.cli.main import app; app(standalone_mode=False); print(*sys.modules)"
    command = [sys.executable, "-c", code, *group.split(), "--help"]
    found = subprocess.run(command, env=os.environ | {"COLUMNS": "80"}, capture_output=True)
    _usage, *lines, modules = found.stdout.decode().splitlines()
    assert "..." not in "".join(lines)
    unneeded = {"rich", "router.app"} if group else {"asyncio", "msgspec", "pydantic", "rich", "router.app"}
    assert not unneeded & set(modules.split())


@pytest.mark.parametrize("command", ["serve", "init", "fleet", "stack", "policies", "engine", "check"])
def test_every_command_has_help(shell: Shell, command: str) -> None:
    said = shell(command, "--help")
    assert said.code == 0
    assert command in said.out


@pytest.mark.parametrize(
    "words",
    [[], ["sevre"], ["serve"], ["serve", "--config", "/no/such/file"], ["check"], ["check", "/no/such/file"],
     ["engine", "--port", "x"], ["serve", "--prot", "1"]],
)  # fmt: skip
def test_a_wrong_command_is_2(shell: Shell, words: list[str]) -> None:
    said = shell(*words)
    assert said.code == 2
    assert said.out + said.err != ""
    assert "Traceback" not in said.err


def test_the_version(shell: Shell) -> None:
    build = "compiled" if is_compiled() else "pure Python"
    assert shell("--version") == (0, f"warmroute {version('warmroute')} ({build})\n", "")


def test_the_shell_completion_is_printed(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the shell that is named: typer would look for one among the parent processes, and tests need not have one."""
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    said = shell("--show-completion", "bash")
    assert said.code == 0
    assert "complete" in said.out


# check


def test_check_prints_a_main_file_with_every_default(shell: Shell) -> None:
    said = shell("check", shell.file(MAIN))
    assert (said.code, said.err) == (0, "")
    shown = yaml.safe_load(said.out)
    assert shown["listen"]["port"] == 8000
    assert shown["fleet"]["instances"][0]["kv_events"] == "auto"
    assert shown["policies"]["warm"]["picker"] == {"name": "best"}


def test_what_check_prints_is_as_good_as_what_it_read(shell: Shell) -> None:
    first = shell("check", shell.file(MAIN))
    assert shell("check", shell.file(first.out, "again.yaml")) == first


def test_check_prints_a_policy_file(shell: Shell) -> None:
    file = shell.file(POLICY, "mine.yaml")
    said = shell("check", file)
    assert said.code == 0
    assert PolicyConfig.model_validate(yaml.safe_load(said.out)) == read_policy_file(file)


@pytest.mark.parametrize(
    "file",
    sorted({*CONFIGS.glob("**/*.yaml")} - {*CONFIGS.glob("mooncake/*"), *CONFIGS.glob("prometheus/*")}),
    ids=lambda file: file.name,
)
def test_our_own_files_pass(shell: Shell, file: Path) -> None:
    said = shell("check", file)
    assert (said.code, said.err) == (0, "")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("listen: {prot: 1}\n" + MAIN, ["main.yaml:1: listen.prot", "port"]),
        (MAIN + "active: nobody\n", ["active", "nobody"]),
        (
            "scorers: [{name: prefix_overlapp}]\n",
            ["main.yaml:1: scorers[0]: ", "'prefix_overlapp'", "prefix_overlap"],
        ),
        ("scorers: [{name: random, sed: 1}]\n", ["random", "sed"]),
        ("scorers: []\n", ["scorers"]),
        (MAIN.replace("random", "rondam"), ["policies.warm", "rondam"]),
        ("fleet: [", ["main.yaml"]),
        ("", ["main.yaml"]),
    ],
)
def test_a_wrong_file_is_2_and_says_where(shell: Shell, text: str, says: list[str]) -> None:
    said = shell("check", shell.file(text))
    assert (said.code, said.out) == (2, "")
    assert [word for word in says if word not in said.err] == []
    assert "Traceback" not in said.err


def test_what_is_said_is_not_taken_for_markup(shell: Shell) -> None:
    said = shell("check", shell.file("scorers: [{name: '[red]x[/red]'}]\n"))
    assert said.code == 2
    assert "[red]x[/red]" in said.err


# serve, fleet, engine: what they refuse before anything runs


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "no engines: give URLs or --config FILE; for simulated engines: warmroute fleet"),
        (["http://a:1", "-c", CONFIGS / "production.yaml"], "give engine URLs or --config, not both"),
        (
            ["10.0.0.1:8100"],
            "10.0.0.1:8100: found no scheme, wanted http:// or https:// before the host: http://10.0.0.1:8100",
        ),
        (["http://a:1", "http://a:1/"], 'found the address of instance "a:1" again'),
        (["http://a:1", "--tokenizer", "m"], "--tokenizer: found 'm', wanted MODEL=PATH"),
        (["http://a:1", "--tokenizer", "m=/no/such"], "--tokenizer m: no such folder: /no/such"),
        (["-c", CONFIGS / "production.yaml", "--tokenizer", "m=/x"], "--tokenizer: only beside engine URLs"),
        (["http://a:1", "--policy", "wram"], '--policy: unknown policy "wram": did you mean "warm"?'),
    ],
)
def test_serve_refuses_what_it_cannot_start_with(shell: Shell, words: list[str | Path], says: str) -> None:
    said = shell("serve", *words)
    assert (said.code, said.out) == (2, "")
    assert says in said.err


def test_serve_without_engines_names_the_other_command(shell: Shell) -> None:
    text = "fleet: {embedded: {engines: 1}}\npolicies: {warm: {scorers: [{name: random}]}}\n"
    said = shell("serve", "--config", shell.file(text))
    assert said.code == 2
    assert "warmroute fleet" in said.err


def test_fleet_without_an_embedded_section_is_refused(shell: Shell) -> None:
    said = shell("fleet", "-c", shell.file(MAIN))
    assert said.code == 2
    assert "fleet.embedded" in said.err


def test_what_needs_a_stack_section_says_so(shell: Shell) -> None:
    said = shell("stack", "-c", shell.file(MAIN))
    assert said.code == 2
    assert "stack: missing, and `warmroute stack` needs it" in said.err


def test_a_stack_whose_router_has_no_port_does_not_start(shell: Shell) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        text = f"listen: {{port: {port}}}\nstack: {{}}\npolicies: {{warm: {{scorers: [{{name: random}}]}}}}\n"
        said = shell("stack", "-c", shell.file(text))
    assert (said.code, said.out) == (1, "")
    assert said.err == f"port {port} is in use: stop what listens there, or change listen.port\n"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("{", "--options"),
        ("[]", "--options"),
        ('{"block_tokns": 4}', "block_tokns"),
        ('{"block_tokens": 0}', "block_tokens"),
        ('{"faults": {"slow": 0}}', "faults.slow"),
    ],
)
def test_bad_engine_options_are_2_and_named(shell: Shell, options: str, says: str) -> None:
    said = shell("engine", "--options", options)
    assert (said.code, said.out) == (2, "")
    assert "--options" in said.err
    assert says in said.err


def test_an_engine_without_its_tokenizer_failed_while_running(shell: Shell) -> None:
    said = shell("engine", "--options", '{"tokenizer": "/no/such/folder"}')
    assert (said.code, said.out) == (1, "")
    assert "warmroute engine: " in said.err
    assert "Traceback" not in said.err
