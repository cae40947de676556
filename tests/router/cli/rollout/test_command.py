"""How `warmroute rollout` asks its router, and what a command is started with."""

from __future__ import annotations

from typing import Any

import pytest

from router.cli.rollout import command
from router.cli.rollout.command import AdminRouter, command_starter
from router.clock import ManualClock
from router.errors import ConfigError, WarmrouteError
from router.operate.rollout.engine import EngineReading


class Client:
    """An admin API that fails as often as it is told to."""

    def __init__(self) -> None:
        self.failures: list[WarmrouteError] = []
        self.calls = 0

    def get(self, *path: str) -> dict[str, Any]:
        self.calls += 1
        if self.failures:
            raise self.failures.pop()
        return {"instances": []}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The clock that its pauses move on."""
    manual = ManualClock(100.0)
    monkeypatch.setattr(command.time, "sleep", manual.advance)
    return manual


def test_a_router_that_failed_is_asked_again_until_the_patience_is_over(clock: ManualClock) -> None:
    client = Client()
    router = AdminRouter(client, "", clock)  # type: ignore[arg-type]
    assert router.engines() == []
    client.failures = [WarmrouteError("no answer")] * 5
    assert router.engines() == []
    assert clock.now() == pytest.approx(102.5)
    client.failures = [WarmrouteError("no answer")] * 1000
    with pytest.raises(WarmrouteError, match="no answer"):
        router.engines()
    assert clock.now() == pytest.approx(132.5)


def test_one_that_never_answered_or_knows_no_such_engine_is_not_asked_again(clock: ManualClock) -> None:
    client = Client()
    router = AdminRouter(client, "", clock)  # type: ignore[arg-type]
    client.failures = [WarmrouteError("cannot connect")]
    with pytest.raises(WarmrouteError, match="cannot connect"):
        router.engines()
    router.engines()
    client.failures = [ConfigError("no such instance")]
    with pytest.raises(ConfigError):
        router.engines()
    assert client.calls == 3


def test_the_command_gets_the_engine_in_words_and_environment(tmp_path: Any) -> None:
    engine = EngineReading("e1", "http://e1:8000", "ready", 1, ("m",), 0, {}, 0, None)
    written = tmp_path / "out"
    start = command_starter(f"sh -c 'echo {{id}} {{url}} $WARMROUTE_INSTANCE $WARMROUTE_URL > {written}'")
    assert start(engine).wait() == 0
    assert written.read_text() == "e1 http://e1:8000 e1 http://e1:8000\n"
    start = command_starter(f"sh -c 'echo {{pod}} > {written}'")
    assert start(engine._replace(pod="ns/vllm-0")).wait() == 0
    assert written.read_text() == "vllm-0\n"
    with pytest.raises(ConfigError, match="e1 is no pod"):
        start(engine)
    for wrong in ("", "'"):
        with pytest.raises(ConfigError, match="--command"):
            command_starter(wrong)
    with pytest.raises(WarmrouteError, match="stays drained"):
        command_starter("/no/such/program")(engine)
