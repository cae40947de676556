"""opencode, over the AI SDK's provider for compatible servers: chat completions, always streamed. `opencode run`, as in
a script. A second request gives each conversation its title, and what may pass is retried without end.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from router.config.sections.listeners import LimitsConfig
from tests.clients.clients import run
from tests.clients.refusals import CASES, StrictRouter
from tests.clients.scripted import ToolCall, say
from tests.fakes.engines import FakeEngine, engine

pytestmark = [pytest.mark.clients, pytest.mark.asyncio(loop_scope="module")]

LARGE: dict[str, Any] = {"blocks": 16384, "max_model_len": 262_144}  # its tools are some 10,000 tokens
CHAT = "/v1/chat/completions"
ANSWER = "All is done."
OFF = ("AUTOUPDATE", "DEFAULT_PLUGINS", "LSP_DOWNLOAD", "MODELS_FETCH", "SHARE")


def script(path: str, body: dict[str, Any]) -> str | ToolCall | None:
    """Run a command when asked to work, then say so. Titles and talks are left to the engine."""
    work = any("Work" in str(message.get("content")) for message in body["messages"] if message["role"] == "user")
    if not work or not body.get("tools"):
        return None
    ran = any(message["role"] == "tool" for message in body["messages"])
    return ANSWER if ran else ToolCall("bash", {"command": "echo tool-ran", "description": "Says that it ran"})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(router_of_module: Any) -> AsyncIterator[tuple[Any, FakeEngine]]:
    """A router with three engines that carries answers on, as it does by default, and another engine."""
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(engine(**LARGE)) for _ in range(4)]
        for fake in engines:
            say(fake, script)
        limits = {"continuation_bytes": LimitsConfig().continuation_bytes}
        config = {"limits": limits, "fleet": {"breaker": {"failures": 1_000_000}}}
        yield await stack.enter_async_context(router_of_module(engines[:3], **config)), engines[3]


async def opencode(
    folder: Path, url: str, text: str, *, model: str = "warm-tiny", key: str = "none"
) -> list[dict[str, Any]]:
    """Run it on a prompt; return its events."""
    (project := folder / "project").mkdir()
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1", "apiKey": key},
        "models": {model: {}},
    }
    settings = {"model": f"router/{model}", "provider": {"router": provider}, "autoupdate": False}
    env = {f"OPENCODE_DISABLE_{name}": "1" for name in OFF} | {"OPENCODE_CONFIG_CONTENT": json.dumps(settings)}
    words = ("run", "--format", "json", "--dir", str(project), text)
    done = await run("opencode", folder, *words, env=env)
    return [json.loads(line) for line in done.output.splitlines() if line.startswith("{")]


def parts(events: list[dict[str, Any]], type: str) -> list[dict[str, Any]]:
    """The parts of its answer that are of this type."""
    return [event["part"] for event in events if event["type"] == type]


def shown(events: list[dict[str, Any]]) -> Any:
    """What its user sees: commands with their output, and texts."""
    states = [part["state"] for part in parts(events, "tool_use")]
    commands = [(state["status"], state["input"]["command"], state["output"]) for state in states]
    return commands, [part["text"] for part in parts(events, "text")]


async def answers(routed: Any, count: int = 50) -> list[dict[str, Any]]:
    """The finished records of its requests with tools, which are large, oldest first."""
    large = [record["id"] for record in await routed.records(count) if record["prompt_tokens_counted"] > 5_000]
    return [await routed.record(id) for id in reversed(large)]


async def test_a_tool_call_and_a_second_turn_that_hits(
    fleet: tuple[Any, FakeEngine], tmp_path_factory: pytest.TempPathFactory
) -> None:
    routed, alone = fleet
    events = await opencode(tmp_path_factory.mktemp("routed"), routed.url, "Work.")
    right = await opencode(tmp_path_factory.mktemp("direct"), alone.url, "Work.")
    assert shown(events) == shown(right) == ([("completed", "echo tool-ran", "tool-ran\n")], [ANSWER])

    first, second = await answers(routed)
    assert first["target"] == second["target"]
    assert first["session"] == second["session"] is not None
    assert second["cached_tokens"] > first["prompt_tokens"] * 0.9
    counted = [part["tokens"] for part in parts(events, "step_finish")]
    assert [one["cache"]["read"] for one in counted] == [first["cached_tokens"], second["cached_tokens"]]
    assert [one["total"] - one["output"] for one in counted] == [first["prompt_tokens"], second["prompt_tokens"]]


async def test_an_engine_dies_in_mid_stream(
    fleet: tuple[Any, FakeEngine], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Another engine carries the answer on: the user sees no difference."""
    routed, _ = fleet
    await opencode(tmp_path_factory.mktemp("first"), routed.url, "Talk to me.")
    *_, last = await answers(routed)  # the engine that knows the tools is chosen again
    dying = next(fake for fake in routed.engines if fake.address == last["target"].partition("/")[0])
    dying.faults(die_mid_stream=1.0)
    events = await opencode(tmp_path_factory.mktemp("second"), routed.url, "Talk to me.")
    dying.faults(die_mid_stream=0.0)
    *_, record = await answers(routed)
    assert [attempt["end"] for attempt in record["attempts"]] == ["continued", "ok"]
    (text,) = parts(events, "text")
    assert len(text["text"].split()) == record["output_tokens"] - 1  # a word per token, and the end
    assert [part["reason"] for part in parts(events, "step_finish")] == ["stop"]


async def test_all_engines_die_in_mid_stream(fleet: tuple[Any, FakeEngine], tmp_path: Path) -> None:
    """It says what broke."""
    routed, _ = fleet
    for fake in routed.engines:
        fake.faults(die_mid_stream=1.0)
    events = await opencode(tmp_path, routed.url, "Talk to me of the sea.")
    for fake in routed.engines:
        fake.faults(die_mid_stream=0.0)
    assert "the engine closed the connection" in json.dumps(events[-1]["error"])


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("too_many_tokens", "APIError"),
        ("wrong_key", "APIError"),
        ("unknown_model", "APIError"),
        ("large_body", "ContextOverflowError"),
    ],
)
async def test_an_error(name: str, error: str, strict: StrictRouter, tmp_path: Path) -> None:
    case = CASES[name]
    events = await opencode(tmp_path, strict.url, case.text, model=case.model, key=case.key)
    first = events[0]["error"]
    assert first["name"] == error
    # It requests more output tokens than the model's context has, which vLLM finds before it counts the prompt's.
    words = "max_model_len" if name == "too_many_tokens" else case.says or case.words
    assert words in first["data"]["message"]
    if error == "APIError":
        assert (first["data"]["statusCode"], first["data"]["isRetryable"]) == (case.status, False)


@pytest.mark.parametrize("name", ["limit_reached", "engine_full"])
async def test_an_error_that_passes(name: str, strict: StrictRouter, tmp_path: Path) -> None:
    """It asks again, and has the answer in the end."""
    case = CASES[name]
    relaxing = asyncio.create_task(strict.relax_after(2))
    events = await opencode(tmp_path, strict.url, case.text, model=case.model, key=case.key)
    await relaxing
    await strict.tighten()
    assert [part["reason"] for part in parts(events, "step_finish")] == ["stop"]
