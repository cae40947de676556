"""Codex CLI, which speaks /v1/responses and always streams: `codex exec`, as in a script.

Its events are a line of JSON each: an `item.completed` per message and command, then `turn.completed` with usage, or
`turn.failed` with what it tells its user.
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

from tests.clients.clients import run
from tests.clients.refusals import CASES, StrictRouter
from tests.clients.scripted import ToolCall, say
from tests.fakes.engines import engine, eventually

pytestmark = [pytest.mark.clients, pytest.mark.asyncio(loop_scope="module")]

LARGE: dict[str, Any] = {"blocks": 16384, "max_model_len": 262_144}  # its instructions are some 12,000 tokens
RESPONSES = "/v1/responses"
ANSWER = "All is done."
CONFIG = """
model = "{model}"
model_provider = "router"
check_for_update_on_startup = false
analytics.enabled = false
[model_providers.router]
name = "router"
base_url = "{url}/v1"
env_key = "KEY"
wire_api = "responses"
request_max_retries = {retries}
stream_max_retries = {retries}
supports_websockets = {websockets}
"""


def script(path: str, body: dict[str, Any]) -> str | ToolCall | None:
    """Run a command, then say so."""
    items = body["input"] if isinstance(body["input"], list) else []
    ran = any(item.get("type") == "function_call_output" for item in items)
    return ANSWER if ran else ToolCall("exec_command", {"cmd": "echo tool-ran"})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(router_of_module: Any) -> AsyncIterator[tuple[Any, Any]]:
    """A router with three engines, and another engine."""
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(engine(**LARGE)) for _ in range(4)]
        for fake in engines:
            say(fake, script)
        yield await stack.enter_async_context(router_of_module(engines[:3])), engines[3]


async def codex(
    folder: Path,
    url: str,
    text: str = "Say hello.",
    *,
    model: str = "warm-tiny",
    key: str = "none",
    retries: int = 0,
    websockets: bool = False,
) -> tuple[int, list[dict[str, Any]]]:
    """Run it on a prompt; return its exit status and its events."""
    home = folder / ".codex"
    home.mkdir()
    settings = {"model": model, "url": url, "retries": retries, "websockets": str(websockets).lower()}
    (home / "config.toml").write_text(CONFIG.format(**settings))
    words = ("exec", "--skip-git-repo-check", "--json", "--dangerously-bypass-approvals-and-sandbox", text)
    done = await run("codex", folder, *words, env={"KEY": key})
    return done.status, [json.loads(line) for line in done.output.splitlines() if line.startswith("{")]


def items(events: list[dict[str, Any]], type: str) -> list[dict[str, Any]]:
    """The completed items of a type, without their ids."""
    found = [event["item"] for event in events if event["type"] == "item.completed"]
    return [{name: value for name, value in item.items() if name != "id"} for item in found if item["type"] == type]


async def test_a_tool_call_and_a_second_turn_that_hits(fleet: tuple[Any, Any], tmp_path_factory: Any) -> None:
    routed, alone = fleet
    status, events = await codex(tmp_path_factory.mktemp("routed"), routed.url)
    right_status, right = await codex(tmp_path_factory.mktemp("direct"), alone.url)
    assert (status, right_status) == (0, 0)
    assert (
        items(events, "agent_message") == items(right, "agent_message") == [{"type": "agent_message", "text": ANSWER}]
    )
    (command,) = items(events, "command_execution")
    assert items(right, "command_execution") == [command]
    assert (command["aggregated_output"], command["exit_code"]) == ("tool-ran\n", 0)

    newest = await routed.records(2)
    second, first = [await routed.record(record["id"]) for record in newest]
    assert first["endpoint"] == second["endpoint"] == RESPONSES
    assert first["target"] == second["target"]
    assert first["session"] == second["session"] is not None
    assert second["cached_tokens"] > first["prompt_tokens"] * 0.9
    usage = events[-1]["usage"]
    assert usage["cached_input_tokens"] == first["cached_tokens"] + second["cached_tokens"]
    assert usage["input_tokens"] == first["prompt_tokens"] + second["prompt_tokens"]


async def test_an_engine_dies_in_mid_stream(fleet: tuple[Any, Any], tmp_path: Path) -> None:
    """No other engine can carry on an answer of /v1/responses: Codex says so."""
    routed, _ = fleet
    for fake in routed.engines:
        fake.faults(die_mid_stream=1.0)
    status, events = await codex(tmp_path, routed.url)
    for fake in routed.engines:
        fake.faults(die_mid_stream=0.0)
    assert (status, events[-1]["type"]) == (1, "turn.failed")
    assert "the engine closed the connection" in events[-1]["error"]["message"]


async def test_it_asks_again_when_an_engine_dies_in_mid_stream(fleet: tuple[Any, Any], tmp_path: Path) -> None:
    """With retries, as by default, the user sees the whole answer once an engine lives."""
    routed, _ = fleet
    for fake in routed.engines:
        fake.faults(die_mid_stream=1.0)
    before = sum(len(fake.seen(RESPONSES)) for fake in routed.engines)
    running = asyncio.create_task(codex(tmp_path, routed.url, retries=10))
    await eventually(lambda: sum(len(fake.seen(RESPONSES)) for fake in routed.engines) >= before + 2, 60.0)
    for fake in routed.engines:
        fake.faults(die_mid_stream=0.0)
    status, events = await running
    assert status == 0
    assert any(event["type"] == "error" and "Reconnecting" in event["message"] for event in events)
    assert items(events, "agent_message") == [{"type": "agent_message", "text": ANSWER}]


async def test_it_goes_on_by_post_when_there_is_no_websocket(fleet: tuple[Any, Any], tmp_path: Path) -> None:
    routed, _ = fleet
    status, events = await codex(tmp_path, routed.url, websockets=True)
    assert status == 0
    assert items(events, "agent_message") == [{"type": "agent_message", "text": ANSWER}]
    assert [item for item in items(events, "error") if "WebSockets" in item["message"]] == []


SHOWN = {"unknown_model": "does not exist", "limit_reached": "last status: 429 Too Many Requests"}  # not code and text


@pytest.mark.parametrize("name", [name for name in CASES if name != "engine_slow"])  # its streams begin at once
async def test_an_error(name: str, strict: StrictRouter, tmp_path: Path) -> None:
    case = CASES[name]
    status, events = await codex(tmp_path, strict.url, case.text, model=case.model, key=case.key)
    assert (status, events[-1]["type"]) == (1, "turn.failed")
    message = events[-1]["error"]["message"]
    if name in SHOWN:
        assert SHOWN[name] in message
    else:
        assert str(case.status) in message
        assert (case.says or case.words) in message
