"""The systemd units, as far as they can be seen without systemd."""

from __future__ import annotations

import re
import shlex

import pytest
from typer.main import get_command

from router.cli.main import app
from router.cli.serve.run import HOLD_S, TAKE_OVER_S
from router.config.schema import Config
from tests.paths import ROOT

UNITS = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "deploy/systemd").iterdir()}
SERVICES = [name for name in UNITS if name.endswith(".service")]


def settings(unit: str, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", UNITS[unit], re.MULTILINE)


def test_there_are_units() -> None:
    assert sorted(UNITS) == ["warmroute.service", "warmroute.socket", "warmroute@.service"]


@pytest.mark.parametrize("unit", SERVICES)
def test_the_command_exists(unit: str) -> None:
    program, command, *words = shlex.split(settings(unit, "ExecStart")[0])
    serve = get_command(app).get_command(None, command)  # type: ignore[attr-defined]
    known = {option for parameter in serve.params for option in parameter.opts}
    assert program.endswith("/bin/warmroute")
    assert {word for word in words if word.startswith("-")} <= known


@pytest.mark.parametrize(("unit", "wait_s"), [("warmroute.service", HOLD_S), ("warmroute@.service", TAKE_OVER_S)])
def test_the_router_has_the_time_that_it_takes(unit: str, wait_s: float) -> None:
    assert settings(unit, "Type") == ["notify"]
    assert float(settings(unit, "TimeoutStartSec")[0]) >= wait_s + 30
    assert float(settings(unit, "TimeoutStopSec")[0]) >= Config().limits.grace_s + 15


def test_the_sockets_are_those_of_the_configuration() -> None:
    config = Config()
    own = [f"{config.listen.host}:{config.listen.port}", f"{config.admin.host}:{config.admin.port}"]
    assert settings("warmroute.socket", "ListenStream") == own
