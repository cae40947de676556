"""The request's line, where it can be looked at alone; as a whole it is tested in `tests/e2e`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from router.config.schema import Policy, WeightedPlugin
from router.decide.policy import build_policy
from router.decide.record import Attempt, Record, Stages
from router.fleet.instances import Served
from router.lobby.retries import RetryBudget
from router.prompt.prompt import Endpoint, Prompt, Unknown
from router.proxy.connection import Trouble
from router.proxy.relay import Broken, Deadline, Finished, NotStarted
from router.route import Watch, may_retry
from tests.suites.views import a_row, a_view

CHUNK = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'
LAST = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":1}}\n\ndata: [DONE]\n\n'
DECISION = build_policy("p", Policy(scorers=[WeightedPlugin(name="round_robin")])).decide(a_view(a_row("a")))


def a_record(*ends: str) -> Record:
    return Record(
        id="r-0",
        number=0,
        arrived_s=0.0,
        at_wall_s=0.0,
        endpoint="/v1/chat/completions",
        model="m",
        stream=True,
        tokens_from="unknown",
        prompt_tokens_counted=None,
        stages=Stages(),
        attempts=[Attempt(DECISION, None, None, end) for end in ends],
    )


def a_watch(record: Record) -> tuple[Watch, Any]:
    ticket = SimpleNamespace(record=record, end="client_gone", status=None, target=SimpleNamespace(id="a/0"))
    rooms = SimpleNamespace(tokens=SimpleNamespace(observed=lambda *_: True), core=None)
    prompt = Prompt(Endpoint.CHAT, Endpoint.CHAT.value, "m", b"", Unknown("not_needed"), stream=True)
    return Watch(ticket, prompt, Served("m", None), Unknown("not_needed"), rooms), ticket  # type: ignore[arg-type]


def test_who_hangs_up_on_the_last_word_got_all_they_wanted() -> None:
    record = a_record()
    watch, ticket = a_watch(record)
    for chunk in (CHUNK, LAST):
        assert watch.feed(chunk) == chunk
    watch.left()
    assert (ticket.end, record.prompt_tokens, record.output_tokens) == ("ok", 7, 1)


def test_who_hangs_up_before_it_is_gone() -> None:
    record = a_record()
    watch, ticket = a_watch(record)
    watch.feed(CHUNK)
    watch.left()
    assert (ticket.end, record.prompt_tokens) == ("client_gone", None)


@pytest.mark.parametrize(
    ("end", "word"),
    [
        (Finished(200, 0.0), "ok"),
        (Broken(200, Trouble.CLOSED, 0.0), "broken"),
        (Deadline(), "deadline"),
        (NotStarted("connect", False), "connect"),
        (NotStarted("busy", False), "busy"),
        (NotStarted("died", True), "died"),
    ],
)
def test_every_end_has_its_word(end: Any, word: str) -> None:
    watch, ticket = a_watch(a_record())
    watch.ended(end)
    assert ticket.end == word


def test_only_what_did_not_start_is_tried_again_and_a_second_death_is_not() -> None:
    budget = RetryBudget(ratio=0.0, burst=1)
    assert not may_retry(Finished(200, 0.0), a_record("ok"), budget)
    assert not may_retry(Broken(200, Trouble.CLOSED, 0.0), a_record("broken"), budget)
    assert not may_retry(Deadline(), a_record("deadline"), budget)
    died = NotStarted("died", True)
    assert may_retry(died, a_record("died"), budget)
    assert not may_retry(died, a_record("died", "died"), budget)
    assert budget.left == 1.0, "a death is not paid for from the budget"
    assert may_retry(NotStarted("connect", False), a_record("connect"), budget)
    assert not may_retry(NotStarted("busy", False), a_record("connect", "busy"), budget), "the budget is used up"
