"""aider, over litellm and the openai package: chat completions, always streamed. It calls no tools but edits files as
the answer says. An error that may pass is retried twice in silence, then with growing pauses for a minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from router.config.sections.listeners import LimitsConfig
from tests.clients.clients import Run, run
from tests.clients.refusals import CASES, StrictRouter
from tests.clients.scripted import say
from tests.fakes.engines import FakeEngine, engine, eventually

pytestmark = [pytest.mark.clients, pytest.mark.asyncio(loop_scope="module")]

EDIT = "Here it is.\n\nhello.txt\n```\nhello world\n```\n"
CHAT = "/v1/chat/completions"
OFF = ("--no-git", "--yes-always", "--no-check-update", "--no-show-release-notes", "--analytics-disable")
PLAIN = (
    "--no-pretty",
    "--no-fancy-input",
    "--no-show-model-warnings",
    "--no-detect-urls",
    "--no-suggest-shell-commands",
)


def script(path: str, body: dict[str, Any]) -> str | None:
    """Edit a file when asked for an edit."""
    return EDIT if "Edit it" in str(body["messages"][-1]["content"]) else None


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(router_of_module: Any) -> AsyncIterator[tuple[Any, FakeEngine]]:
    """A router with three engines that carries answers on, as it does by default, and another engine."""
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(engine()) for _ in range(4)]
        for fake in engines:
            say(fake, script)
        limits = {"continuation_bytes": LimitsConfig().continuation_bytes}
        config = {"limits": limits, "fleet": {"breaker": {"failures": 1_000_000}}}
        yield await stack.enter_async_context(router_of_module(engines[:3], **config)), engines[3]


async def aider(folder: Path, url: str, *texts: str, model: str = "warm-tiny", key: str = "none") -> Run:
    """Type `texts` into it, one after the other, and leave."""
    prices = folder / ".aider" / "caches" / "model_prices_and_context_window.json"  # else it tries to fetch it
    prices.parent.mkdir(parents=True)
    prices.write_text('{"none": {}}')
    env = {"OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": key}
    typed = "".join(f"{text}\n" for text in (*texts, "/exit"))
    return await run("aider", folder, *OFF, *PLAIN, "--model", f"openai/{model}", env=env, typed=typed)


def printed(done: Run) -> str:
    """What it printed after its greeting, without line breaks."""
    assert done.status == 0
    return " ".join(done.output.partition("Repo-map: disabled")[2].split())


async def test_an_edit_and_a_second_turn_that_hits(fleet: tuple[Any, FakeEngine], tmp_path_factory: Any) -> None:
    routed, alone = fleet
    folder, other = tmp_path_factory.mktemp("routed"), tmp_path_factory.mktemp("direct")
    texts = ("Why is the sky blue?", "Edit it.")
    shown = printed(await aider(folder, routed.url, *texts))
    assert shown == printed(await aider(other, alone.url, *texts))
    assert "Applied edit to hello.txt" in shown
    assert (folder / "hello.txt").read_text() == (other / "hello.txt").read_text() == "hello world\n"

    second, first = [await routed.record(record["id"]) for record in await routed.records(2)]
    assert (first["endpoint"], first["stream"], first["status"]) == (CHAT, True, 200)
    assert first["target"] == second["target"]
    assert second["cached_tokens"] > first["prompt_tokens"] * 0.6  # its last instruction moves to the end


async def test_an_engine_dies_in_mid_stream(fleet: tuple[Any, FakeEngine], tmp_path_factory: Any) -> None:
    """Another engine carries the answer on: the user sees no difference."""
    routed, _ = fleet
    folders = [tmp_path_factory.mktemp("run") for _ in range(2)]
    undisturbed = printed(await aider(folders[0], routed.url, "Tell me of the sea."))
    (record,) = await routed.records(1)
    dying = next(fake for fake in routed.engines if fake.address == record["target"].partition("/")[0])
    dying.faults(die_mid_stream=1.0)
    shown = printed(await aider(folders[1], routed.url, "Tell me of the sea."))
    dying.faults(die_mid_stream=0.0)
    (record,) = await routed.records(1)
    assert [attempt["end"] for attempt in (await routed.record(record["id"]))["attempts"]] == ["continued", "ok"]
    # an emulated engine without `max_tokens` counts the length of its answer from where it begins
    assert shown.startswith(undisturbed.partition(" Tokens:")[0])
    assert "received" in shown
    assert "Retrying" not in shown


async def test_all_engines_die_in_mid_stream(fleet: tuple[Any, FakeEngine], tmp_path: Path) -> None:
    """It says what broke, asks again, and has the whole answer when an engine lives."""
    routed, _ = fleet
    for fake in routed.engines:
        fake.faults(die_mid_stream=1.0)
    before = [len(fake.seen(CHAT)) for fake in routed.engines]
    running = asyncio.create_task(aider(tmp_path, routed.url, "Tell me of the moon."))
    # two engines carry on what the first began: a fourth request is the client's second
    await eventually(lambda: sum(len(fake.seen(CHAT)) for fake in routed.engines) >= sum(before) + 4, 60.0)
    for fake in routed.engines:
        fake.faults(die_mid_stream=0.0)
    shown = printed(await running)
    assert "the engine closed the connection" in shown
    assert "received" in shown.rpartition("Retrying")[2]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("too_many_tokens", "has hit a token limit"),  # its own advice
        ("wrong_key", "litellm.AuthenticationError"),
        ("unknown_model", "litellm.NotFoundError"),
        ("large_body", "litellm.BadRequestError"),
    ],
)
async def test_an_error(name: str, error: str, strict: StrictRouter, tmp_path: Path) -> None:
    case = CASES[name]
    shown = printed(await aider(tmp_path, strict.url, case.text, model=case.model, key=case.key))
    assert error in shown
    assert (case.says or "") in shown
    assert "Retrying" not in shown


@pytest.mark.parametrize(
    ("name", "error"),
    [("limit_reached", "litellm.RateLimitError"), ("engine_full", "litellm.ServiceUnavailableError")],
)
async def test_an_error_that_passes(name: str, error: str, strict: StrictRouter, tmp_path: Path) -> None:
    """It says what is wrong, asks again, and has the answer in the end."""
    case = CASES[name]
    relaxing = asyncio.create_task(strict.relax_after(4))
    shown = printed(await aider(tmp_path, strict.url, case.text, model=case.model, key=case.key))
    await relaxing
    await strict.tighten()
    assert error in shown
    assert (case.says or case.words) in shown
    assert "received" in shown.rpartition("Retrying")[2]
