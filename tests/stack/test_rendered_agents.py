"""Agents of models that vLLM renders by code, on two real engines: each later turn is sent to the engine that has the
earlier ones, and the engine re-uses as many tokens as the router predicts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from router.lab.local_stack.install import Models
from router.lab.local_stack.supervisor import RunningStack
from tests.stack.behind import Asked, Behind, running
from tests.stack.bodies import CHAT, CHAT_TOOL, COMPLETIONS, Json, call, result
from tests.stack.children import until
from tests.stack.engines import BLOCK_BYTES, MODEL, Engine, small_stack
from tests.stack.mode_models import DEEPSEEK, MEASURED, MODES, add_weights, make_mode_folder
from tests.stack.prompts import prose, user

pytestmark = pytest.mark.stack

AGENTS, TURNS = 6, 4
OFTEN = ("harmony", "deepseek_v4", "mistral_v13", "kimi_k2")  # the others take minutes, and differ in details
WITHOUT_REASONING = ("mistral_v3", "mistral_v7", "mistral_v11")
DATE = "2026-01-01"  # of the engines' start, which gpt-oss prompts contain


class Agent:
    """A client that calls a tool in every other turn, and sends its reasoning back if the model takes it."""

    def __init__(self, name: str, *, reasons: bool) -> None:
        self.name = name
        self.reasons = reasons
        self.messages: list[Json] = [{"role": "system", "content": prose(f"agent {name}", 400)}]
        self.asked: list[Asked] = []

    def turn(self, behind: Behind) -> None:
        """Send the next request, and note a scripted answer: a tool call, or a final answer and the next question."""
        number = len(self.asked)
        if number % 2 == 0:
            self.messages.append(user(prose(f"question {number} of {self.name}", 100)))
        body = {"messages": self.messages, "tools": [CHAT_TOOL], "max_tokens": 2, "temperature": 0}
        self.asked.append(behind.send(CHAT, body))
        behind.hear(behind.engine(self.asked[-1].instance))
        thought: Json = {"role": "assistant"}
        if self.reasons:
            thought["reasoning"] = prose(f"thought {number} of {self.name}", 60)
        if number % 2 == 0:
            id = f"call0000{number}"
            self.messages += [{**thought, "tool_calls": [call('{"city": "Bern"}', id=id)]}, result("12 °C", id)]
        else:
            self.messages.append({**thought, "content": prose(f"answer {number} of {self.name}", 60)})


@pytest.fixture
def behind(request: pytest.FixtureRequest, models: Models, tmp_path: Path) -> Iterator[Behind]:
    """The router in its default configuration before two engines of one mode, both proved."""
    mode = request.param
    folder, options = make_mode_folder(mode, tmp_path)
    add_weights(folder, models.tiny)
    arguments = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", *options]
    other = {"model": str(folder), "engine_args": arguments, "kv_cache_bytes": 400 * BLOCK_BYTES}
    with ExitStack() as opened:
        patch = opened.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("VLLM_SYSTEM_START_DATE", DATE)
        stack = opened.enter_context(RunningStack(small_stack(models, tmp_path, **other)))
        pair = [opened.enter_context(Engine(stack, server.name)) for server in stack.engines]
        for engine in pair:
            engine.wait()
        renderer = mode if mode in DEEPSEEK else "auto"
        settings: Json = {"tokenizers": {MODEL: {"path": str(folder), "renderer": renderer}}}
        behind = opened.enter_context(running(Behind("router", pair, folder, settings, tmp_path)))
        behind.wait()
        for engine in pair:
            until(f"{engine.name} is proved", lambda: proof(behind, engine) == "ids")  # noqa: B023
        yield behind


def proof(behind: Behind, engine: Engine) -> str | None:
    """Return what agreed in the proof at an engine; None if there is none."""
    found: str | None = (behind.instance(engine.name)["tokenizer"] or {}).get("proved", {}).get(engine.name)
    return found


@pytest.mark.parametrize(
    ("behind", "mode"),
    [pytest.param(mode, mode, marks=() if mode in OFTEN else pytest.mark.long, id=mode) for mode in MODES],
    indirect=["behind"],
)
def test_later_turns_are_at_home_and_deliver_what_is_predicted(behind: Behind, mode: str) -> None:
    agents = [Agent(str(number), reasons=mode not in WITHOUT_REASONING) for number in range(AGENTS)]
    for _ in range(TURNS):
        for agent in agents:
            agent.turn(behind)
    requests = [asked for agent in agents for asked in agent.asked]
    assert [asked for asked in requests if asked.record["tokens_from"] != "local"] == []
    assert [asked for asked in requests if not asked.kept] == []
    later = [turns for agent in agents for turns in pairwise(agent.asked)]
    home = [asked for before, asked in later if asked.instance == before.instance]
    reused_tokens = sum(asked.cached or 0 for _, asked in later)
    measured = MEASURED["modes"][mode]
    assert (len(home), reused_tokens) == (measured["at_home"], measured["reused_tokens"])
    text = {"prompt": prose("plain text <|im_end|> [INST]", 600), "max_tokens": 1, "temperature": 0}
    for again in (False, True):
        asked = behind.ask(COMPLETIONS, text)
        assert bool(asked.cached) is again
