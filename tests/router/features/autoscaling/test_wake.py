"""Which asks for an instance become calls: one at a time for a model, the next after a pause."""

from __future__ import annotations

import asyncio

import pytest

from router.clock import ManualClock
from router.config import schema
from router.config.sections.autoscaling import WakeModelConfig
from router.config.sections.discovery import KubernetesApiConfig, KubernetesConfig
from router.errors import ConfigError
from router.features.autoscaling.starters import DeploymentStarter, WebhookStarter
from router.features.autoscaling.wake import CALLS_AT_ONCE, WakeCaller, build_starter
from router.tasks import Tasks


class Starter:
    """A starter whose calls end when the test says so."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, asyncio.Future[str | None]]] = []

    async def start(self, model: str, waiting: int) -> str | None:
        future: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self.calls.append((model, waiting, future))
        return await future

    async def end(self, number: int, trouble: str | None = None) -> None:
        self.calls[number][2].set_result(trouble)
        await settle()


class Scene:
    def __init__(self) -> None:
        self.clock = ManualClock(50.0)
        self.starter = Starter()
        self.tasks = Tasks("test")
        self.caller = WakeCaller({"m": self.starter, "big-*": self.starter}, 30.0, self.tasks, self.clock)
        self.ends: list[tuple[str, bool]] = []
        self.caller.on_end.append(lambda *end: self.ends.append(end))

    async def ask(self, model: str, waiting: int = 1) -> None:
        self.caller.ask(model, waiting)
        await settle()

    @property
    def called(self) -> list[str]:
        return [model for model, _, _ in self.starter.calls]


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_call_for_a_model_at_a_time_and_the_next_after_a_pause() -> None:
    scene = Scene()
    await scene.ask("m", 7)
    await scene.ask("m")
    await scene.ask("big-one")
    assert [(model, waiting) for model, waiting, _ in scene.starter.calls] == [("m", 7), ("big-one", 1)]
    scene.clock.advance(100.0)
    await scene.ask("m")  # the call still runs
    await scene.starter.end(0)
    await scene.ask("m")
    scene.clock.advance(29.0)
    await scene.ask("m")
    assert scene.called == ["m", "big-one"]
    scene.clock.advance(2.0)
    await scene.ask("m")
    assert scene.called == ["m", "big-one", "m"]
    await scene.tasks.close()


async def test_how_calls_end_is_counted_and_said() -> None:
    scene = Scene()
    await scene.ask("m")
    await scene.ask("big-one")
    await scene.starter.end(0)
    await scene.starter.end(1, "the webhook answered 500")
    assert scene.ends == [("m", False), ("big-one", True)]
    assert scene.caller.calls == {("m", "accepted"): 1, ("big-*", "failed"): 1}


async def test_nothing_is_called_where_keda_starts_instances() -> None:
    clock, tasks, starter = ManualClock(50.0), Tasks("test"), Starter()
    caller = WakeCaller({"big-*": None, "*": starter}, 30.0, tasks, clock)
    for model in ("big-one", "m"):
        caller.ask(model, 1)
    await settle()
    assert [model for model, _, _ in starter.calls] == ["m"], "the first pattern that matches counts"
    await tasks.close()


async def test_names_that_clients_make_up_cannot_cause_calls_without_end() -> None:
    scene = Scene()
    for number in range(CALLS_AT_ONCE + 5):
        await scene.ask(f"big-{number}")
    assert len(scene.called) == CALLS_AT_ONCE
    await scene.ask("unknown")
    await scene.starter.end(0)
    await scene.ask("unknown")
    assert "unknown" not in scene.called
    await scene.tasks.close()


def test_a_starter_of_each_kind(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAKE_TOKEN", "secret")
    hook = WakeModelConfig.model_validate({"webhook": {"url": "http://scaler/wake", "token_env": "WAKE_TOKEN"}})
    assert isinstance(build_starter(hook, schema.FleetConfig()), WebhookStarter)
    deployment = WakeModelConfig.model_validate({"deployment": {"name": "vllm"}})
    api = KubernetesApiConfig(url="http://127.0.0.1:1", token_file=str(tmp_path / "token"), ca_file=None)
    kubernetes = KubernetesConfig(namespace="llm", selector="app=vllm", api=api)
    assert isinstance(build_starter(deployment, schema.FleetConfig(kubernetes=kubernetes)), DeploymentStarter)
    assert build_starter(WakeModelConfig(), schema.FleetConfig()) is None
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match="so this is no pod"):
        build_starter(deployment, schema.FleetConfig())
