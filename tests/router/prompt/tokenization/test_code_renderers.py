"""Chats of models that vLLM renders by code: what vLLM 0.32 made of the same requests, ids or refusals."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import unicodedata
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from router.backends.remote_tokenizer import EngineTokenizer
from router.clock import SystemClock
from router.config.schema import TokenizerSource, TokensConfig
from router.errors import BadRequest, ExtraMissing
from router.kvcache.block_keys import Keyring
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.prompt import Chat
from router.prompt.tokenization.chat_template import UnrenderableChat
from router.prompt.tokenization.deepseek import DeepseekV4, DeepseekV32
from router.prompt.tokenization.harmony import HarmonyRenderer, StartDate
from router.prompt.tokenization.message_renderer import MessageRenderer
from router.prompt.tokenization.mistral import MistralRenderer, load_file
from router.prompt.tokenization.model_folder import load
from router.prompt.tokenization.tokenization import Tokenization
from tests.fakes.tekken import tekken

DATA = Path(__file__).parent / "data"
DEEPSEEK = {"deepseek_v32": DeepseekV32(), "deepseek_v4": DeepseekV4(), "deepseek_v41": DeepseekV4(v41=True)}
MISTRAL = ("v3", "v7", "v11", "v13", "v15")
CHAT = "/v1/chat/completions"


async def no_engine(*args: object, **options: object) -> None:
    """Answers nothing."""


NO_ENGINE = EngineTokenizer(no_engine)


def vectors(name: str) -> dict[str, dict[str, Any]]:
    cases: dict[str, dict[str, Any]] = json.loads((DATA / f"vllm-0.32-{name}.json").read_text())["cases"]
    return cases


def rendered(render: Callable[[Chat], Any], body: dict[str, Any], path: str = CHAT) -> Any:
    """What `render` makes of the request; None if it is refused."""
    try:
        source = read_prompt(path, "application/json", json.dumps(body).encode(), ReadOptions()).source
        return render(source) if isinstance(source, Chat) else None
    except (BadRequest, UnrenderableChat):
        return None


def ids_of(renderer: MessageRenderer, chat: Chat) -> list[int]:
    prompt = renderer.segment(chat)
    return [*prompt.head, *(id for segment in prompt.segments for id in renderer.encode(segment)), *prompt.tail]


@cache
def harmony() -> HarmonyRenderer:
    return HarmonyRenderer(StartDate("2026-11-25", lambda: 0.0))


@pytest.mark.parametrize("name", vectors("harmony"))
def test_harmony(name: str) -> None:
    case = vectors("harmony")[name]
    assert rendered(lambda chat: ids_of(harmony(), chat), case["body"], case["path"]) == case["ids"]


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], MistralRenderer]:
    """Makes a renderer of a version, with the vocabulary that the library has as an example."""
    folder = tmp_path_factory.mktemp("mistral")

    @cache
    def make(version: str) -> MistralRenderer:
        file = folder / f"{version}-tekken.json"
        file.write_text(json.dumps(tekken(version)))
        return MistralRenderer(load_file(file))

    return make


@pytest.mark.parametrize("version", MISTRAL)
def test_mistral(version: str, mistral: Callable[[str], MistralRenderer]) -> None:
    for name, case in vectors("mistral").items():
        assert rendered(lambda chat: ids_of(mistral(version), chat), case["body"]) == case[version], name


@pytest.mark.parametrize("model", DEEPSEEK)
def test_deepseek(model: str) -> None:
    for name, case in vectors("deepseek").items():
        text = rendered(lambda chat: "".join(DEEPSEEK[model].render_chunks(chat, {})), case["body"])
        assert (None if text is None else unicodedata.normalize("NFC", text)) == case[model], name


IMAGE = {"type": "image_url", "image_url": {"url": "http://a.b/c.png"}}


@pytest.mark.parametrize("model", [*DEEPSEEK, "mistral"])
def test_a_chat_with_an_image_has_no_ids(model: str, mistral: Callable[[str], MistralRenderer]) -> None:
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, IMAGE]}]}
    render = mistral("v13").segment if model == "mistral" else lambda chat: DEEPSEEK[model].render_chunks(chat, {})
    assert rendered(render, body) is None


def segments(name: str) -> list[bytes]:
    found: list[bytes] = rendered(harmony().segment, vectors("harmony")[name]["body"]).segments
    return found


def test_within_a_tool_loop_a_turn_is_the_beginning_of_the_next_one() -> None:
    earlier, later = segments("agent4"), segments("agent7")
    assert later[: len(earlier)] == earlier


def test_the_reasoning_before_a_final_answer_is_dropped_and_the_turns_are_equal_up_to_it() -> None:
    earlier, later = segments("agent7"), segments("agent9")
    first = next(n for n, segment in enumerate(earlier) if b'"channel":"analysis"' in segment)
    assert later[:first] == earlier[:first]
    assert later[first] == earlier[first + 1]
    assert not any(b'"channel":"analysis"' in segment for segment in later)


def test_a_folder_of_gpt_oss_is_rendered_by_harmony_and_a_next_turn_costs_what_is_new(
    model_dir: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(model_dir, tmp_path / "gpt-oss")
    (folder / "config.json").write_text('{"model_type": "gpt_oss"}')
    wall = datetime(2026, 11, 25, tzinfo=UTC).timestamp()
    local = load(TokenizerSource(path=str(folder)), "tokenizers.m", lambda: wall)
    tokens = Tokenization(TokensConfig(), {"m": local}, Keyring(7), NO_ENGINE, SystemClock())
    for name in ("agent4", "agent7"):
        case = vectors("harmony")[name]
        prompt = read_prompt(CHAT, "application/json", json.dumps(case["body"]).encode(), ReadOptions())
        known = asyncio.run(tokens.tokenize(prompt, "m", None, {16}, []))
        assert isinstance(known, TokenizedPrompt)
        assert (known.ids.tolist(), known.source, known.complete) == (case["ids"], "local", True)
    report = tokens.report()["m"]
    both = [len(vectors("harmony")[name]["ids"]) for name in ("agent4", "agent7")]
    assert report.renderer == "harmony"
    assert report.remembered_tokens > both[0] - 10  # all of the first turn but its last header
    assert report.remembered_tokens + report.tokenised_tokens <= sum(both)
    tokens.close()


def test_the_date_in_prompts_is_the_pinned_one_or_changes_at_midnight() -> None:
    wall = datetime(2026, 11, 25, 23, 59, tzinfo=UTC).timestamp()
    pinned, daily = StartDate("2026-01-01", lambda: wall), StartDate(None, lambda: wall)
    assert (pinned.today(), pinned.lasts_s()) == ("2026-01-01", None)
    assert (daily.today(), daily.lasts_s()) == ("2026-11-25", 60.0)
    body = {"messages": [{"role": "user", "content": "Current date: 2020-02-02\n"}]}
    ids = rendered(lambda chat: ids_of(HarmonyRenderer(daily), chat), body)
    assert HarmonyRenderer(pinned).find_date(ids) == "2026-11-25"
    assert HarmonyRenderer(pinned).find_date(ids[30:]) != "2026-11-25"


def test_a_missing_library_is_named_with_its_extra(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(model_dir, tmp_path / "gpt-oss")
    (folder / "config.json").write_text('{"model_type": "gpt_oss"}')
    monkeypatch.delitem(sys.modules, "router.prompt.tokenization.harmony", raising=False)
    monkeypatch.setitem(sys.modules, "openai_harmony", None)
    with pytest.raises(ExtraMissing, match=r"tokenizers\.m: .*pip install 'warmroute\[harmony\]'"):
        load(TokenizerSource(path=str(folder)), "tokenizers.m", lambda: 0.0)


def test_the_renderer_can_be_named(model_dir: Path) -> None:
    local = load(TokenizerSource(path=str(model_dir), renderer="deepseek_v4"), "tokenizers.m", lambda: 0.0)
    assert local.renderer.name == "deepseek_v4"
