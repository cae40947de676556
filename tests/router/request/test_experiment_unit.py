"""Whose request it is: equal units are equal everywhere, others are not, and what names nobody stands for itself."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from router.config.sections.experiment import ExperimentConfig, Unit
from router.prompt.api.lineage import make_lineage
from router.prompt.api.parse import ReadOptions, RequestHeaders, read_prompt
from router.prompt.prompt import Prompt
from router.request.experiment_unit import derive_unit
from router.scheduling.conversations import Conversations

SKIMMING = ReadOptions(frozenset(), inject_usage=True, want_source=False)


def a_prompt(
    session: str | None = None,
    user: str | None = None,
    say: str = "hello",
    turns: int = 0,
    parent: str | None = None,
) -> Prompt:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": say}]
    for turn in range(turns):
        messages += [{"role": "assistant", "content": f"answer {turn}"}, {"role": "user", "content": f"ask {turn}"}]
    body: dict[str, Any] = {"model": "m", "messages": messages} | ({} if user is None else {"user": user})
    content = msgspec.json.encode(body)
    lineage = None if session is None else make_lineage(session, parent)
    return read_prompt("/v1/chat/completions", "application/json", content, SKIMMING, RequestHeaders(lineage))


def unit(
    kind: Unit,
    prompt: Prompt,
    client: str | None = None,
    record: str = "r-1",
    at_s: float = 0.0,
    window_s: float = 600.0,
    conversations: Conversations | None = None,
) -> bytes:
    experiment = ExperimentConfig(unit=kind, arms={"one": 100}, window_s=window_s)
    return derive_unit(experiment, prompt, conversations or Conversations(), client, record, at_s)


def test_a_session_keeps_its_unit_whatever_it_says() -> None:
    assert unit("session", a_prompt("s", say="one")) == unit("session", a_prompt("s", say="other"), record="r-2")
    assert unit("session", a_prompt("s")) != unit("session", a_prompt("t"))
    assert unit("session", a_prompt(user="ann", say="one")) == unit("session", a_prompt(user="ann", say="other"))


def test_a_program_keeps_its_unit_with_all_its_sub_agents() -> None:
    root, child = a_prompt("s"), a_prompt("c", parent="s", say="other")
    assert unit("program", root) == unit("program", child, record="r-2") != unit("program", a_prompt("t"))
    assert unit("session", root) != unit("session", child)
    assert unit("program", a_prompt(say="sort")) == unit("program", a_prompt(say="sort", turns=2), record="r-2")
    assert unit("user", root) == unit("user", child, record="r-2"), "a family has one user"


def test_without_a_name_the_conversation_is_the_unit() -> None:
    """In a process that has seen its turns, and in others."""
    one_process = Conversations()
    for conversations in (one_process, one_process, None):
        first, later = a_prompt(say="sort this"), a_prompt(say="sort this", turns=3)
        assert unit("session", first, conversations=one_process) == unit(
            "session", later, record="r-2", conversations=conversations
        )
    other = a_prompt(say="mend that")
    assert unit("session", a_prompt(say="sort this")) != unit("session", other), "though the system prompt is shared"


def test_a_named_request_is_in_no_conversation() -> None:
    prompt = a_prompt("s")
    unit("session", prompt)
    assert prompt.conversation is UNSET, "not read"


def test_users_and_keys_are_units_and_a_request_without_one_is_its_own() -> None:
    assert unit("user", a_prompt(user="ann", say="one")) == unit("user", a_prompt(user="ann", say="two"), record="r-2")
    assert unit("user", a_prompt(), record="r-1") != unit("user", a_prompt(), record="r-2")
    assert unit("api_key", a_prompt(), "team-a") == unit("api_key", a_prompt(say="x"), "team-a", record="r-2")
    assert unit("api_key", a_prompt(), "team-a") != unit("api_key", a_prompt(), "team-b")
    assert unit("api_key", a_prompt(), None, record="r-1") != unit("api_key", a_prompt(), None, record="r-2")


def test_each_request_is_a_unit_of_its_own_if_so_asked() -> None:
    assert unit("request", a_prompt("s"), record="r-1") != unit("request", a_prompt("s"), record="r-2")


@pytest.mark.parametrize(("one_s", "other_s", "same"), [(600.0, 1199.9, True), (599.9, 600.0, False)])
def test_a_window_of_time_is_a_unit(one_s: float, other_s: float, same: bool) -> None:
    one, other = (unit("time", a_prompt(str(at_s)), at_s=at_s) for at_s in (one_s, other_s))
    assert (one == other) is same


def test_names_cannot_be_read_from_units() -> None:
    assert len(unit("user", a_prompt(user="ann"))) == 16
    assert b"ann" not in unit("user", a_prompt(user="ann"))


def test_any_text_is_a_name() -> None:
    for name in ("\ud800", "x" * 100_000, "a\0b"):
        assert len(unit("session", a_prompt(name))) == 16
