"""What is made of an answer that passes by, and of a prefill half's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from router.clock import ManualClock
from router.config.schema import PolicyConfig, WeightedPluginConfig
from router.fleet.instance import ServedModel
from router.prompt.prompt import Endpoint, Prompt, UnknownIds
from router.prompt.usage import Usage
from router.proxy.disaggregated import PrefillResult
from router.proxy.engine_connection import ExchangeFailure
from router.proxy.relay import EngineRefusal, RelayBroken, RelayDeadline, RelayFinished, RelayNotStarted, RelayRejected
from router.request.response_observer import ResponseObserver
from router.scheduling.policy.policy import build_policy
from router.scheduling.policy.record import Attempt, PrefillRecord, Record, Stages
from tests.suites.views import a_row, a_view

CHUNK = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'
LAST = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":1}}\n\ndata: [DONE]\n\n'
PREFILLED = b"""{"id": "chatcmpl-1", "choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}}],
 "usage": {"prompt_tokens": 40, "total_tokens": 41, "completion_tokens": 1,
           "prompt_tokens_details": {"cached_tokens": 16}},
 "kv_transfer_params": {"do_remote_prefill": true, "remote_block_ids": [[1, 2, 3]]}}"""
DECISION = build_policy("p", PolicyConfig(scorers=[WeightedPluginConfig(name="round_robin")])).decide(
    a_view(a_row("a"))
)


class Scene:
    def __init__(self, leg: PrefillRecord | None = None) -> None:
        self.record = Record("r-0", 0, 0.0, 0.0, "/v1/chat/completions", "m", True, "unknown", None, Stages())
        self.ticket = SimpleNamespace(
            record=self.record,
            end="client_gone",
            status=None,
            target=SimpleNamespace(id="a/0"),
            attempt=Attempt(DECISION, None, None, prefill=leg),
        )
        self.told: list[Any] = []
        core = SimpleNamespace(prefilled=lambda _, *told: self.told.append(told))
        tokens = SimpleNamespace(observed=lambda *_: True)
        prompt = Prompt(Endpoint.CHAT, Endpoint.CHAT.value, "m", b"", UnknownIds("not_needed"), stream=True)
        about = UnknownIds("not_needed")
        self.watch = ResponseObserver(
            self.ticket, prompt, ServedModel("m", None), about, core, tokens, ManualClock(100.0)
        )  # type: ignore[arg-type]


def test_who_hangs_up_on_the_last_word_got_all_they_wanted() -> None:
    scene = Scene()
    for chunk in (CHUNK, LAST):
        assert scene.watch.feed(chunk) == chunk
    scene.watch.left()
    assert (scene.ticket.end, scene.record.prompt_tokens, scene.record.output_tokens) == ("ok", 7, 1)


def test_who_hangs_up_before_it_is_gone() -> None:
    scene = Scene()
    scene.watch.feed(CHUNK)
    scene.watch.left()
    assert (scene.ticket.end, scene.record.prompt_tokens) == ("client_gone", None)


@pytest.mark.parametrize(
    ("end", "word"),
    [
        (RelayFinished(200, 0.0), "ok"),
        (RelayBroken(200, ExchangeFailure.CLOSED, 0.0), "broken"),
        (RelayDeadline(), "deadline"),
        (RelayNotStarted("connect"), "connect"),
        (RelayNotStarted("busy"), "busy"),
        (RelayNotStarted("died"), "died"),
        (RelayNotStarted("died", prefill=True), "prefill"),
        (RelayNotStarted("failed", prefill=True), "prefill"),
        (RelayRejected(EngineRefusal(400, [], b"")), "rejected"),
    ],
)
def test_every_end_has_its_word(end: Any, word: str) -> None:
    scene = Scene()
    scene.watch.ended(end)
    assert scene.ticket.end == word


def test_a_prefill_half_tells_what_it_cost_and_what_it_left() -> None:
    leg = PrefillRecord(DECISION, None, None)
    scene = Scene(leg)
    scene.watch.prefilled(PrefillResult("ok", 200, PREFILLED))
    assert scene.told == [("ok", 200, Usage(40, 16, 1))]
    handed = scene.watch.handed
    assert handed is not None
    assert handed == (b'{"do_remote_prefill": true, "remote_block_ids": [[1, 2, 3]]}', 130.0, leg)  # now 100, lease 30
    assert scene.record.prompt_tokens is None, "the client's answer is the other one"


def test_a_failed_prefill_half_leaves_nothing() -> None:
    scene = Scene(PrefillRecord(DECISION, None, None))
    scene.watch.prefilled(PrefillResult("failed", 500))
    assert scene.told == [("failed", 500, Usage(None, None, None))]
    assert scene.watch.handed is None
