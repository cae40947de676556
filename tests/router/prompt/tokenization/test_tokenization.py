"""Tokenization of prompts: who makes the ids, the router or an engine, and when ours are no longer used."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import threading
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from router.backends.fetch import HttpAnswer
from router.backends.remote_tokenizer import EngineTokenizer
from router.clock import SystemClock
from router.config.schema import TokenizerSource
from router.config.schema import TokensConfig as Settings
from router.errors import BadRequest
from router.kvcache.block_keys import Keyring
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.api.size_limits import LARGE_BODY_BYTES, MANY_MARKS, SMALL_BODY_BYTES
from router.prompt.prompt import Chat, Endpoint, Prompt, Text, UnknownIds
from router.prompt.tokenization.local_tokenizer import LocalTokenizer
from router.prompt.tokenization.model_folder import load
from router.prompt.tokenization.renderer import KIMI_K3
from router.prompt.tokenization.threads import QUEUED_PER_THREAD
from router.prompt.tokenization.tokenization import (
    ASSUMED_CONTEXT_TOKENS,
    KEPT_BYTES,
    Tokenization,
    TokenizationReport,
)

KEYRING = Keyring(7)
MEDIA = [{"role": "user", "content": ["one two three", {"type": "image_url", "image_url": {"url": "x"}}]}]


class Engine:
    """A vLLM that tokenises with `local` and generates from the same ids, unless it is silent or told to differ."""

    def __init__(self, local: LocalTokenizer) -> None:
        self.local = local
        self.asked: list[dict[str, Any]] = []  # of /tokenize
        self.generated: list[dict[str, Any]] = []
        self.rendered = 0
        self.silent = self.asleep = self.renders = False
        self.uncounted = 0  # ids that `prompt_tokens` leaves out
        self.names_ids = True  # False: as before vLLM 0.10.2
        self.differs_on: str | None = None  # a word in the question
        self.generates: Callable[[dict[str, Any], list[int]], list[int] | None] = lambda fields, ids: ids  # None: 400
        self.refuses: Callable[[dict[str, Any]], bool] = lambda fields: False  # of /tokenize

    async def __call__(
        self, instance: str, path: str, body: bytes | None = None, *, timeout_s: float, limit_bytes: int = 0
    ) -> HttpAnswer | None:
        if self.silent:
            return None
        if path == "/is_sleeping":
            return HttpAnswer(200, b'{"is_sleeping":true}') if self.asleep else HttpAnswer(404, b"")
        fields = json.loads(body)
        if path.endswith("/render"):
            self.rendered += 1
            if not self.renders:
                return HttpAnswer(403, b"")
        elif path != "/tokenize":
            self.generated.append(fields)
        else:
            self.asked.append(fields)
            if self.refuses(fields):
                return HttpAnswer(400, b"")
        ids: list[int] | None = self.ids(fields)
        if path == "/tokenize":
            return HttpAnswer(200, json.dumps({"count": 1, "max_model_len": 1, "tokens": ids}).encode())
        if (ids := self.generates(fields, ids or [])) is None:
            return HttpAnswer(400, b"")
        if path.endswith("/render"):
            rendered = {"request_id": "r", "token_ids": ids}
            return HttpAnswer(200, json.dumps([rendered] if "prompt" in fields else rendered).encode())
        named = ids if self.names_ids else None
        answer: dict[str, Any] = {"choices": [{"index": 0}], "usage": {"prompt_tokens": len(ids) - self.uncounted}}
        if "prompt" in fields:
            answer["choices"][0]["prompt_token_ids"] = named
        else:
            answer["prompt_token_ids"] = named
        return HttpAnswer(200, json.dumps(answer).encode())

    def ids(self, fields: dict[str, Any]) -> list[int]:
        endpoint = "/v1/chat/completions" if "messages" in fields else "/v1/completions"
        source = read_prompt(endpoint, None, json.dumps(fields).encode(), ReadOptions()).source
        assert isinstance(source, Chat | Text)
        ids = list(self.local.tokenize(source))
        return [*ids, 1] if self.differs_on is not None and self.differs_on in json.dumps(fields) else ids


@pytest.fixture
def engine(local: LocalTokenizer) -> Engine:
    return Engine(local)


@pytest.fixture
def tokens(local: LocalTokenizer, engine: Engine) -> Iterator[Tokenization]:
    room = Tokenization(Settings(budget_ms=60_000.0), {"m": local}, KEYRING, EngineTokenizer(engine), SystemClock())
    yield room
    room.close()


def prompt(fields: dict[str, Any] | None = None, path: str = "/v1/completions") -> Prompt:
    return read_prompt(
        path, None, json.dumps({"model": "m", "prompt": "the fox", **(fields or {})}).encode(), ReadOptions()
    )


async def known(tokens: Tokenization, asked: Prompt, model: str = "m", adapter: str | None = None) -> TokenizedPrompt:
    answer = await tokens.tokenize(asked, model, adapter, {4, 16}, ["a"])
    assert isinstance(answer, TokenizedPrompt)
    return answer


async def test_local_ids_and_keys(tokens: Tokenization, local: LocalTokenizer, engine: Engine) -> None:
    asked = prompt({"prompt": "the quick brown fox jumps " * 5, "cache_salt": "s"})
    answer = await known(tokens, asked, adapter="lora")
    assert answer.ids == local.tokenize(Text("the quick brown fox jumps " * 5, True))
    assert (answer.complete, answer.source, engine.asked) == (True, "local", [])
    root = KEYRING.root("m", "lora", "s")
    assert answer.keys == {size: array("Q", KEYRING.chain(root, answer.ids, size)) for size in (4, 16)}
    assert answer.tokens_ms >= 0 <= answer.keys_ms


async def test_given_ids_need_no_tokenizer(tokens: Tokenization) -> None:
    answer = await known(tokens, prompt({"prompt": [5, 6, 7, 8, 9]}), model="stranger")
    assert (answer.ids, answer.source, answer.complete) == (array("I", [5, 6, 7, 8, 9]), "given", True)
    assert len(answer.keys[4]) == 1


async def test_a_model_without_a_tokenizer_here_asks(
    tokens: Tokenization, engine: Engine, local: LocalTokenizer
) -> None:
    answer = await known(tokens, prompt(), model="stranger")
    assert (answer.source, answer.ids) == ("remote", local.tokenize(Text("the fox", True)))
    assert engine.asked == [{"model": "m", "prompt": "the fox", "add_special_tokens": True}]
    engine.silent = True
    assert await tokens.tokenize(prompt(), "stranger", None, {16}, ["a"]) == UnknownIds("tokenizer_silent")


async def test_unknown_stays_unknown(tokens: Tokenization) -> None:
    assert await tokens.tokenize(prompt({"suffix": "x"}), "m", None, {16}, ["a"]) == UnknownIds("suffix")
    messages = [{"role": "user", "content": "\ud83d\ude00"}]
    continued = {"messages": messages, "continue_final_message": True}
    assert await tokens.tokenize(prompt(continued, "/v1/chat/completions"), "m", None, {16}, ["a"]) == UnknownIds(
        "template_refused"
    )


async def test_before_media(tokens: Tokenization) -> None:
    asked = prompt({"messages": MEDIA}, "/v1/chat/completions")
    assert (await known(tokens, asked)).complete is False
    assert await tokens.tokenize(asked, "stranger", None, {16}, ["a"]) == UnknownIds("media")


async def test_long_prompts_leave_the_loop(
    local: LocalTokenizer, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    where: list[str] = []
    made = local.encode_segment
    monkeypatch.setattr(
        local, "encode_segment", lambda *piece: where.append(threading.current_thread().name) or made(*piece)
    )
    tokens = Tokenization(Settings(inline_chars=100), {"m": local}, KEYRING, EngineTokenizer(engine), SystemClock())
    await known(tokens, prompt())
    await known(tokens, prompt({"prompt": "fox " * 100}))
    tokens.close()
    assert where[0] == threading.main_thread().name
    assert where[1].startswith("warmroute-tokens")


def unread(fields: dict[str, Any], path: str = "/v1/completions") -> Prompt:
    body = json.dumps({"model": "m", **fields}).encode()
    return read_prompt(path, None, body, ReadOptions(want_source=False))


@pytest.mark.parametrize(
    ("body_bytes", "messages", "in_thread"),
    [
        (SMALL_BODY_BYTES, 1900, False),
        (2 * SMALL_BODY_BYTES, 10, False),
        (2 * SMALL_BODY_BYTES, MANY_MARKS // 8 + 100, True),
        (LARGE_BODY_BYTES + 1, 10, True),
    ],
)
async def test_what_takes_long_to_read_is_read_in_a_thread(
    tokens: Tokenization,
    local: LocalTokenizer,
    monkeypatch: pytest.MonkeyPatch,
    body_bytes: int,
    messages: int,
    in_thread: bool,
) -> None:
    where: list[bool] = []
    render = local.render_chunks
    is_main = lambda: threading.current_thread() is threading.main_thread()  # noqa: E731
    monkeypatch.setattr(local, "render_chunks", lambda source: where.append(is_main()) or render(source))
    turns: list[dict[str, Any]] = [{"role": "user", "content": ""}] * (messages - 1)
    short = {"messages": turns, "metadata": ""}
    missing = body_bytes - len(json.dumps({"model": "m", **short}))
    asked = unread({"messages": turns, "metadata": "x" * missing}, "/v1/chat/completions")
    assert len(asked.body) == body_bytes
    await tokens.tokenize(asked, "m", None, {16}, ["a"], context_tokens=1_000_000)
    assert where == [not in_thread]


@pytest.mark.parametrize("model", ["m", "stranger"])
async def test_a_prompt_that_cannot_fit_its_model_is_not_tokenised(
    tokens: Tokenization, engine: Engine, model: str
) -> None:
    """Neither here nor by an engine, and ids that a client sent are not hashed."""
    fits, text, ids = {"prompt": "a" * 1500}, {"prompt": "a" * 1700}, {"prompt": [7] * 101}
    for fields, reason in ((fits, None), (text, "too_long"), (ids, "too_long")):
        engine.asked.clear()
        known = await tokens.tokenize(unread(fields), model, None, {16}, ["a"], context_tokens=100)
        assert getattr(known, "reason", None) == reason
        assert reason is None or engine.asked == []


async def test_an_unknown_context_is_assumed(tokens: Tokenization) -> None:
    longest = {"prompt": [7] * ASSUMED_CONTEXT_TOKENS}
    assert isinstance(await tokens.tokenize(unread(longest), "m", None, {16}, []), TokenizedPrompt)
    longest["prompt"].append(7)
    assert await tokens.tokenize(unread(longest), "m", None, {16}, []) == UnknownIds("too_long")


async def test_a_long_text_is_not_kept_with_its_request(tokens: Tokenization) -> None:
    chat = {"messages": [{"role": "user", "content": "word " * KEPT_BYTES}]}
    for model in ("m", "stranger"):
        asked = unread(chat, "/v1/chat/completions")
        assert isinstance(await tokens.tokenize(asked, model, None, {16}, ["a"]), TokenizedPrompt)
        assert isinstance(asked.source, Chat)
        assert (asked.source.messages, asked.remote_fields) == ([{"role": "user", "content": None}], {})
        asked = unread({"prompt": "word " * KEPT_BYTES})
        assert isinstance(await tokens.tokenize(asked, model, None, {16}, ["a"]), TokenizedPrompt)
        assert asked.source == UnknownIds("dropped")


async def test_a_malformed_prompt_is_refused_when_it_is_read(tokens: Tokenization) -> None:
    for filling in ("", "x" * LARGE_BODY_BYTES):
        with pytest.raises(BadRequest):
            await tokens.tokenize(unread({"prompt": [-1], "metadata": filling}), "m", None, {16}, [])


async def test_the_budget_and_the_queue_are_bounded(
    local: LocalTokenizer, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    made = local.encode_segment
    monkeypatch.setattr(local, "encode_segment", lambda *piece: gate.wait(10) and made(*piece))
    tokens = Tokenization(
        Settings(inline_chars=1, budget_ms=30), {"m": local}, KEYRING, EngineTokenizer(engine), SystemClock()
    )
    waiting = [tokens.tokenize(prompt(), "m", None, {16}, []) for _ in range(QUEUED_PER_THREAD)]
    answers = await asyncio.gather(*waiting)
    reasons = Counter(answer.reason for answer in answers if isinstance(answer, UnknownIds))
    alone = QUEUED_PER_THREAD * 4 // 5  # of one client
    assert reasons == {"tokens_late": alone, "tokens_busy": QUEUED_PER_THREAD - alone}
    gate.set()
    monkeypatch.setattr(local, "encode_segment", made)
    patient = Tokenization(Settings(inline_chars=1), {"m": local}, KEYRING, EngineTokenizer(engine), SystemClock())
    assert isinstance(await patient.tokenize(prompt(), "m", None, {16}, []), TokenizedPrompt)
    tokens.close()
    patient.close()


CHATS = 10  # probes


def report(tokens: Tokenization, model: str = "m") -> TokenizationReport:
    return tokens.report()[model]


async def test_a_good_proof(tokens: Tokenization, engine: Engine) -> None:
    assert await tokens.verify("a", "m") is True
    assert (len(engine.generated), engine.asked, engine.rendered) == (1 + CHATS, [], 1)
    assert {body["max_tokens"] for body in engine.generated} == {1}
    found = report(tokens)
    assert (found.source, found.proofs, found.mismatches, found.proved) == ("local", 1, 0, {"a": "ids"})
    assert tokens.passes("m", "a", await known(tokens, prompt()))
    assert not tokens.passes("m", "b", await known(tokens, prompt()))


async def test_where_the_engine_renders_without_generating_it_need_not_generate(
    tokens: Tokenization, engine: Engine
) -> None:
    engine.renders = True
    assert await tokens.verify("a", "m") is True
    assert (engine.rendered, engine.generated, report(tokens).proved) == (1 + CHATS, [], {"a": "ids"})


async def test_a_differing_probe_is_said_and_sends_us_to_the_engine(
    tokens: Tokenization, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.differs_on = "tool_call_id"
    with caplog.at_level(logging.WARNING):
        assert await tokens.verify("a", "m") is False
    assert "'tool-results'" in caplog.text
    found = report(tokens)
    assert (found.source, found.mismatches, found.refuted) == ("remote", 1, {"a": "tool-results"})
    assert (found.proved, found.trouble) == ({"a": "ids"}, None), "/tokenize was proved at once"
    chat = {"messages": [{"role": "user", "content": "the fox"}]}
    assert (await known(tokens, prompt(chat, "/v1/chat/completions"))).source == "remote"
    assert (await known(tokens, prompt())).source == "local", "the tokenizer is right about texts"
    engine.differs_on = None
    assert await tokens.verify("a", "m") is True
    assert (await known(tokens, prompt(chat, "/v1/chat/completions"))).source == "local"


def gpt_oss(model_dir: Path, folder: Path, wall_s: float) -> LocalTokenizer:
    shutil.copytree(model_dir, folder)
    (folder / "config.json").write_text('{"model_type": "gpt_oss"}')
    return load(TokenizerSource(path=str(folder)), "tokenizers.m", lambda: wall_s)


async def test_another_date_in_the_engine_s_prompts_is_named(model_dir: Path, tmp_path: Path) -> None:
    day_s = 86400.0
    engine = Engine(gpt_oss(model_dir, tmp_path / "engine", 20_000 * day_s))
    ours = gpt_oss(model_dir, tmp_path / "router", 20_001 * day_s)
    tokens = Tokenization(Settings(), {"m": ours}, KEYRING, EngineTokenizer(engine), SystemClock())
    assert await tokens.verify("a", "m") is False
    found = report(tokens)
    assert (found.source, found.refuted, found.dates) == ("unknown", {"a": "date"}, {"a": "2024-10-04"})
    assert found.trouble is not None
    assert found.trouble.startswith("prompts at a have the date 2024-10-04: set VLLM_SYSTEM_START_DATE alike")
    assert tokens.proof_lasts_s("m") == day_s
    engine.local = ours
    assert await tokens.verify("a", "m") is True
    assert (report(tokens).source, report(tokens).trouble) == ("local", None)
    tokens.close()


async def test_another_tokenizer_is_right_about_nothing(tokens: Tokenization, engine: Engine) -> None:
    engine.differs_on = "lazy dogs"
    assert await tokens.verify("a", "m") is False
    assert tokens.source("m", Endpoint.COMPLETIONS) == tokens.source("m", Endpoint.CHAT) == "remote"
    assert report(tokens).refuted == {"a": "text"}


def swapped(fields: dict[str, Any], ids: list[int]) -> list[int]:
    """Chats as other ids, as many: the first two change places."""
    return [ids[1], ids[0], *ids[2:]] if "messages" in fields else ids


def longer(fields: dict[str, Any], ids: list[int]) -> list[int]:
    return [1, *ids] if "messages" in fields else ids


@pytest.mark.parametrize(("renders", "names_ids"), [(swapped, True), (longer, True), (longer, False)])
@pytest.mark.parametrize("model", ["m", "stranger"])
async def test_an_engine_that_generates_from_other_ids_than_its_tokenize_returns(
    tokens: Tokenization, engine: Engine, caplog: pytest.LogCaptureFixture, renders: Any, names_ids: bool, model: str
) -> None:
    """Neither is believed, whether there is a local tokenizer or not; chats are placed without ids and say so."""
    engine.generates, engine.names_ids = renders, names_ids
    with caplog.at_level(logging.WARNING):
        assert await tokens.verify("a", model) is False
        assert await tokens.verify("a", model) is False
    assert caplog.text.count("chats are placed without token ids") == 1
    found = report(tokens, model)
    assert (found.source, found.refuted, found.proved) == ("unknown", {"a": "plain"}, {})
    assert "generates from other ids than its /tokenize returns" in str(found.trouble)
    engine.asked.clear()
    for path in ("/v1/chat/completions", "/v1/messages"):
        chat = prompt({"messages": [{"role": "user", "content": "the fox"}], "max_tokens": 1}, path)
        assert await tokens.tokenize(chat, model, None, {16}, ["a"]) == UnknownIds("renderer")
    assert engine.asked == []
    texts = await known(tokens, prompt(), model)
    assert texts.source == ("local" if model == "m" else "remote")
    assert (await known(tokens, prompt({"prompt": [1, 2, 3]}), model)).source == "given"


async def test_equal_counts_of_other_ids_are_not_seen_where_the_engine_names_none_and_nothing_is_passed(
    tokens: Tokenization, engine: Engine
) -> None:
    engine.generates, engine.names_ids = swapped, False
    assert await tokens.verify("a", "m") is True
    assert (report(tokens).source, report(tokens).proved) == ("local", {"a": "counts"})
    assert not tokens.passes("m", "a", await known(tokens, prompt()))


def literal(fields: dict[str, Any], ids: list[int]) -> list[int]:
    """As an engine that keeps the spellings of special tokens in texts as text: they have more tokens."""
    return [*ids, 1] if "<|im_start|>" in json.dumps(fields.get("messages")) else ids


async def test_spellings_of_special_tokens_that_stay_text(tokens: Tokenization, engine: Engine) -> None:
    """Chats without them are passed; of the others the count is expected to differ, and nobody loses trust by it."""
    engine.generates = literal
    assert await tokens.verify("a", "m") is True
    plain = unread({"messages": [{"role": "user", "content": "the fox"}]}, "/v1/chat/completions")
    spelled = unread({"messages": [{"role": "user", "content": "the <|im_start|>"}]}, "/v1/chat/completions")
    for source, passes in ((plain, True), (spelled, False)):
        answer = await known(tokens, source)
        assert answer.special_text is not passes
        assert tokens.passes("m", "a", answer) is passes
        assert not tokens.check_count("m", source, answer, len(answer.ids) + 1, "a")
        assert (report(tokens).source == "local") is not passes
        await tokens.verify("a", "m")


async def test_a_refusal_by_tokenize_alone_is_no_mismatch(tokens: Tokenization, engine: Engine) -> None:
    engine.refuses = lambda fields: "tool_calls" in json.dumps(fields)
    assert await tokens.verify("a", "stranger") is True
    found = report(tokens, "stranger")
    assert (found.source, found.mismatches, found.proved) == ("remote", 0, {"a": "ids"})


async def test_an_engine_that_refuses_chats_proves_nothing_about_them(tokens: Tokenization, engine: Engine) -> None:
    engine.generates = lambda fields, ids: None if "messages" in fields else ids
    for model, texts in (("m", True), ("stranger", None)):
        assert await tokens.verify("a", model) is texts
        assert (report(tokens, model).mismatches, report(tokens, model).proofs) == (0, 0)
    assert not tokens.passes("m", "a", await known(tokens, prompt()))


async def test_what_an_instance_refuted_goes_with_it(tokens: Tokenization, engine: Engine) -> None:
    engine.differs_on = "the"
    await tokens.verify("a", "m")
    tokens.forget("a")
    assert report(tokens).source == "local"


@pytest.mark.parametrize("asleep", [False, True])
async def test_a_silent_engine_proves_nothing(tokens: Tokenization, engine: Engine, asleep: bool) -> None:
    engine.silent, engine.asleep = not asleep, asleep
    assert await tokens.verify("a", "m") is None
    assert report(tokens) == ("local", "jinja", None, 0, 0, {}, {}, {}, True, None, 0, 0)
    assert not tokens.passes("m", "a", await known(tokens, prompt()))
    assert engine.generated == []


@pytest.mark.parametrize(("model", "endpoint"), [("m", "local"), ("stranger", "remote")])
async def test_a_wrong_count_is_logged_and_forgiven_only_by_a_proof(
    tokens: Tokenization, engine: Engine, caplog: pytest.LogCaptureFixture, model: str, endpoint: str
) -> None:
    again: list[tuple[str, str]] = []
    tokens.on_miscount = lambda *where: again.append(where) is None
    asked = prompt({"messages": [{"role": "user", "content": "the fox"}]}, "/v1/chat/completions")
    ours = await known(tokens, asked, model)
    assert ours.source == endpoint
    assert tokens.check_count(model, asked, ours, len(ours.ids), "a")
    with caplog.at_level(logging.WARNING):
        assert not tokens.check_count(model, asked, ours, len(ours.ids) + 1, "a")
    assert f"counted {len(ours.ids)} prompt tokens, a {len(ours.ids) + 1}" in caplog.text
    assert again == [("a", model)]
    assert tokens.source(model, Endpoint.CHAT) == ("remote" if endpoint == "local" else None)
    assert tokens.source(model, Endpoint.COMPLETIONS) == endpoint
    for _ in range(20):
        await tokens.tokenize(asked, model, None, {16}, ["a"])
        assert tokens.check_count(model, asked, ours, len(ours.ids), "a")
    assert tokens.source(model, Endpoint.CHAT) == ("remote" if endpoint == "local" else None)
    assert await tokens.verify("a", model) is True
    assert tokens.source(model, Endpoint.CHAT) == endpoint


async def test_an_engine_whose_counts_are_not_those_of_its_ids_is_not_judged_by_them(
    tokens: Tokenization, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.uncounted = 1
    with caplog.at_level(logging.WARNING):
        assert await tokens.verify("a", "m") is True
        assert await tokens.verify("a", "m") is True
    assert caplog.text.count("is not the number of its prompts' ids") == 1
    ours = await known(tokens, prompt())
    assert tokens.check_count("m", prompt(), ours, len(ours.ids) - 1, "a")
    assert not tokens.check_count("m", prompt(), ours, len(ours.ids) - 1, "b")


async def test_texts_that_are_counted_otherwise_are_proved_as_chats_are(tokens: Tokenization, engine: Engine) -> None:
    ours = await known(tokens, prompt())
    assert not tokens.check_count("m", prompt(), ours, 1, "a")
    theirs = await known(tokens, prompt())
    assert (theirs.source, tokens.source("m", Endpoint.CHAT)) == ("remote", "local")
    assert not tokens.check_count("m", prompt(), theirs, 1, "a")
    assert await tokens.tokenize(prompt(), "m", None, {16}, ["a"]) == UnknownIds("untrusted")
    assert (await known(tokens, prompt({"prompt": [1, 2, 3]}))).source == "given"
    assert await tokens.verify("a", "m") is True
    assert (await known(tokens, prompt())).source == "local"


async def test_a_folder_says_that_no_chat_can_be_rendered(
    local: LocalTokenizer, engine: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "renderer", KIMI_K3)
    tokens = Tokenization(Settings(), {"m": local}, KEYRING, EngineTokenizer(engine), SystemClock())
    chat = prompt({"messages": [{"role": "user", "content": "the fox"}]}, "/v1/chat/completions")
    assert await tokens.tokenize(chat, "m", None, {16}, ["a"]) == UnknownIds("renderer")
    assert (await known(tokens, prompt())).source == "local"
    with caplog.at_level(logging.WARNING):
        assert await tokens.verify("a", "m") is True
    assert {"prompt" in body for body in engine.generated} == {True}, "no chat would prove anything"
    found = report(tokens)
    why = "the engine renders chats by code (kimi_k3), which /tokenize does not show"
    assert (found.source, found.renderer, found.trouble) == ("unknown", "kimi_k3", why)
    assert caplog.text.count(why) == 1
    assert tokens.renders("m") is None
    tokens.close()


async def test_counts_that_say_nothing(tokens: Tokenization) -> None:
    ours = await known(tokens, prompt())
    cut = await known(tokens, prompt({"messages": MEDIA}, "/v1/chat/completions"))
    for answer, count in [
        (ours, None),
        (cut, 999),
        (ours._replace(source="given"), 999),
        (UnknownIds("x"), 9),
        (None, 9),
    ]:
        assert tokens.check_count("m", prompt(), answer, count, "a")
    assert report(tokens).source == "local"


TOOL = {"type": "function", "function": {"name": "now", "description": "d", "parameters": {"type": "object"}}}
DECLINED = {"messages": [{"role": "user", "content": "the fox"}], "tools": [TOOL], "tool_choice": "none"}


def leaving_tools_out(engine: Engine) -> Callable[[dict[str, Any], list[int]], list[int] | None]:
    """As `--exclude-tools-when-tool-choice-none`, which /tokenize does not know."""

    def generate(fields: dict[str, Any], ids: list[int]) -> list[int] | None:
        declined = fields.get("tool_choice") == "none"
        return engine.ids({name: field for name, field in fields.items() if name != "tools"}) if declined else ids

    return generate


@pytest.mark.parametrize("model", ["m", "stranger"])
@pytest.mark.parametrize("leaves_out", [True, False])
async def test_a_proof_finds_out_whether_declined_tools_are_left_out(
    tokens: Tokenization, engine: Engine, local: LocalTokenizer, model: str, leaves_out: bool
) -> None:
    if leaves_out:
        engine.generates = leaving_tools_out(engine)
    assert await tokens.verify("a", model) is True
    asked = prompt({"model": model, **DECLINED}, "/v1/chat/completions")
    body = {"model": model, **DECLINED}
    answer = await tokens.tokenize(asked, model, None, {16}, ["a"])
    assert isinstance(answer, TokenizedPrompt)
    assert list(answer.ids) == engine.generates(body, engine.ids(body))
    assert report(tokens, model).refuted == {}
    with_tools = await known(tokens, prompt(DECLINED | {"tool_choice": "auto"}, "/v1/chat/completions"), model=model)
    assert (len(with_tools.ids) > len(answer.ids)) is leaves_out


async def test_engines_that_differ_about_declined_tools_cost_those_chats_their_ids(
    tokens: Tokenization, engine: Engine
) -> None:
    assert await tokens.verify("a", "m") is True
    engine.generates = leaving_tools_out(engine)
    assert await tokens.verify("b", "m") is True
    declined = prompt(DECLINED, "/v1/chat/completions")
    assert await tokens.tokenize(declined, "m", None, {16}, ["a"]) == UnknownIds("tools")
    await known(tokens, prompt(DECLINED | {"tool_choice": "auto"}, "/v1/chat/completions"))
    tokens.forget("a")
    await known(tokens, prompt(DECLINED, "/v1/chat/completions"))


async def test_an_engine_with_other_ids_for_declined_tools_is_refuted(tokens: Tokenization, engine: Engine) -> None:
    engine.generates = lambda fields, ids: [*ids, 1] if fields.get("tool_choice") == "none" else ids
    assert await tokens.verify("a", "m") is False
    assert report(tokens).refuted == {"a": "declined-tools"}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", DECLINED),
        ("/v1/responses", {"input": "x", "tools": [TOOL["function"] | {"type": "function"}], "tool_choice": "none"}),
        (
            "/v1/messages",
            {
                "messages": DECLINED["messages"],
                "tools": [{"name": "now", "input_schema": {"type": "object"}}],
                "tool_choice": {"type": "none"},
            },
        ),
    ],
)
def test_declined_tools_of_every_endpoint(path: str, fields: dict[str, Any]) -> None:
    def declines(fields: dict[str, Any]) -> bool:
        source = read_prompt(path, None, json.dumps({"model": "m", **fields}).encode(), ReadOptions()).source
        assert isinstance(source, Chat)
        return source.tools_declined

    assert declines(fields)
    assert not declines(fields | {"tool_choice": "auto"})
    assert not declines({name: field for name, field in fields.items() if name != "tool_choice"})
    assert not declines({name: field for name, field in fields.items() if name != "tools"})
