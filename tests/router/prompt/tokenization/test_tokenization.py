"""Tokenization of prompts: who makes the ids, the router or an engine, and when ours are no longer used."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from array import array
from collections.abc import Iterator
from typing import Any

import pytest

from router.backends.fetch import HttpAnswer
from router.backends.remote_tokenizer import EngineTokenizer
from router.clock import SystemClock
from router.config.schema import TokensConfig as Settings
from router.errors import BadRequest
from router.kvcache.block_keys import Keyring
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.api.size_limits import LARGE_BODY_BYTES, MANY_QUOTES, SMALL_BODY_BYTES
from router.prompt.prompt import Chat, Prompt, Text, UnknownIds
from router.prompt.tokenization.local_tokenizer import LocalTokenizer
from router.prompt.tokenization.threads import QUEUED_PER_THREAD
from router.prompt.tokenization.tokenization import AGREEING, ASSUMED_CONTEXT_TOKENS, KEPT_BYTES, Tokenization

KEYRING = Keyring(7)
MEDIA = [{"role": "user", "content": ["one two three", {"type": "image_url", "image_url": {"url": "x"}}]}]


class Engine:
    """A vLLM that tokenises with `local`, unless it is silent or has been told to differ."""

    def __init__(self, local: LocalTokenizer) -> None:
        self.local = local
        self.asked: list[dict[str, Any]] = []
        self.silent = False
        self.differs_on: str | None = None  # a word in the question

    async def __call__(
        self, instance: str, method: str, path: str, body: bytes = b"", *, timeout_s: float, limit_bytes: int = 0
    ) -> HttpAnswer | None:
        fields = json.loads(body)
        self.asked.append(fields)
        if self.silent:
            return None
        endpoint = "/v1/chat/completions" if "messages" in fields else "/v1/completions"
        source = read_prompt(endpoint, None, body, ReadOptions()).source
        assert isinstance(source, Chat | Text)
        ids = list(self.local.tokenize(source))
        if self.differs_on is not None and self.differs_on in json.dumps(fields):
            ids.append(1)
        return HttpAnswer(200, json.dumps({"count": len(ids), "max_model_len": 1, "tokens": ids}).encode())


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
        (2 * SMALL_BODY_BYTES, MANY_QUOTES // 8 + 100, True),
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
    waiting = [tokens.tokenize(prompt(), "m", None, {16}, []) for _ in range(QUEUED_PER_THREAD + 1)]
    answers = await asyncio.gather(*waiting)
    assert sorted(answer.reason for answer in answers if isinstance(answer, UnknownIds)) == (
        ["tokens_busy"] + ["tokens_late"] * QUEUED_PER_THREAD
    )
    gate.set()
    monkeypatch.setattr(local, "encode_segment", made)
    patient = Tokenization(Settings(inline_chars=1), {"m": local}, KEYRING, EngineTokenizer(engine), SystemClock())
    assert isinstance(await patient.tokenize(prompt(), "m", None, {16}, []), TokenizedPrompt)
    tokens.close()
    patient.close()


async def test_a_good_proof(tokens: Tokenization, engine: Engine) -> None:
    assert await tokens.verify("a", "m") is True
    assert len(engine.asked) == 7
    assert tokens.report()["m"].proofs == 1
    assert await tokens.verify("a", "stranger") is None


async def test_a_differing_probe_is_said_and_sends_us_to_the_engine(
    tokens: Tokenization, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.differs_on = "tool_call_id"
    with caplog.at_level(logging.WARNING):
        assert await tokens.verify("a", "m") is False
    assert "'tool-results'" in caplog.text
    report = tokens.report()["m"]
    assert (report.source, report.mismatches, report.refuted) == ("remote", 1, {"a": "tool-results"})
    assert (await known(tokens, prompt())).source == "remote"
    engine.differs_on = None
    assert await tokens.verify("a", "m") is True
    assert (await known(tokens, prompt())).source == "local"


async def test_what_an_instance_refuted_goes_with_it(tokens: Tokenization, engine: Engine) -> None:
    engine.differs_on = "the"
    await tokens.verify("a", "m")
    tokens.forget("a")
    assert tokens.report()["m"].source == "local"


async def test_a_silent_engine_proves_nothing(tokens: Tokenization, engine: Engine) -> None:
    engine.silent = True
    assert await tokens.verify("a", "m") is None
    assert tokens.report()["m"] == ("local", 0, 0, {}, 0, True, None, 0, 0)


async def test_a_wrong_count_is_said_and_forgiven_only_by_agreement(
    tokens: Tokenization, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    ours = await known(tokens, prompt())
    assert tokens.check_count("m", ours, len(ours.ids))
    with caplog.at_level(logging.WARNING):
        assert not tokens.check_count("m", ours, len(ours.ids) + 1)
    assert "local tokenizer counted" in caplog.text
    assert await tokens.verify("a", "m") is True
    for _ in range(AGREEING):
        assert (await known(tokens, prompt())).source == "remote"
    assert (await known(tokens, prompt())).source == "local"


async def test_a_disagreeing_prompt_starts_the_agreement_anew(tokens: Tokenization, engine: Engine) -> None:
    ours = await known(tokens, prompt())
    tokens.check_count("m", ours, 1)
    await known(tokens, prompt())
    assert tokens.report()["m"].must_agree == AGREEING - 1
    engine.differs_on = "fox"
    await known(tokens, prompt())
    assert tokens.report()["m"].must_agree == AGREEING


async def test_counts_that_say_nothing(tokens: Tokenization) -> None:
    ours = await known(tokens, prompt())
    cut = await known(tokens, prompt({"messages": MEDIA}, "/v1/chat/completions"))
    for answer, count in [
        (ours, None),
        (cut, 999),
        (ours._replace(source="remote"), 999),
        (UnknownIds("x"), 9),
        (None, 9),
    ]:
        assert tokens.check_count("m", answer, count)
    assert tokens.report()["m"].source == "local"
