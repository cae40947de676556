"""Which conversation a request without a name belongs to: one for each chat, however alike chats begin."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from router.kvcache.events import TargetId
from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.prompt import Prompt
from router.scheduling.conversations import HELD_FOR_S, Conversations, LastAnswer
from tests.paths import DATA

CHAT = "/v1/chat/completions"
SKIMMING = ReadOptions(want_source=False)
SYSTEM = {"role": "system", "content": "be brief"}

Message = dict[str, Any]


def a_prompt(messages: list[Message], **fields: Any) -> Prompt:
    body = json.dumps({"model": "m", "messages": messages, **fields}).encode()
    return read_prompt(CHAT, None, body, SKIMMING)


def place(known: Conversations, *texts: str) -> bytes:
    """Return the conversation of a chat of user, assistant, user, ..."""
    name = known.identify(a_prompt([SYSTEM, *alternate(*texts)]))
    assert name is not None
    return name


def alternate(*texts: str) -> list[Message]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


def recorded(client: str) -> list[dict[str, Any]]:
    """Return the bodies that a client sent."""
    requests = json.loads((DATA / "clients" / f"{client}.json").read_text())["requests"]
    return [sent["body"] for sent in requests]


def test_forty_chats_that_begin_with_one_example_are_forty_conversations() -> None:
    """Aider sends a constant example before the first message of its user."""
    known = Conversations()
    example = recorded("aider")[0]["messages"][:-1]
    chats = [[*example, *alternate(f"chat {i}")] for i in range(40)]
    first = [known.identify(a_prompt(chat)) for chat in chats]
    assert len({*first}) == 40
    for turn in range(3):
        for i, chat in enumerate(chats):
            chat += [{"role": "assistant", "content": "done"}, {"role": "user", "content": f"turn {turn}"}]
            assert known.identify(a_prompt(chat)) == first[i]


def test_recorded_chats_of_one_client_are_told_apart_and_their_turns_are_not() -> None:
    known = Conversations()
    aider = [known.identify(a_prompt(body["messages"])) for body in recorded("aider")]
    assert aider[0] != aider[1]
    for client in ("qwen-code", "mini-swe-agent", "pydantic-ai"):
        turns = [known.identify(a_prompt(body["messages"])) for body in recorded(client)[:2]]
        assert turns[0] == turns[1] is not None, client


def test_chats_are_one_until_they_differ() -> None:
    known = Conversations()
    one = place(known, "hi")
    assert place(known, "hi") == one, "nothing tells them apart"
    assert place(known, "hi", "hello", "sort this") == one
    other = place(known, "hi", "hello", "mend that")
    assert other != one
    assert place(known, "hi", "hello", "sort this", "done", "thanks") == one
    assert place(known, "hi", "hello", "mend that", "done", "thanks") == other
    assert place(known, "hi") == one, "no more than how that one began"


def test_other_answers_make_another_conversation() -> None:
    known = Conversations()
    one = place(known, "sort", "ls", "a b")
    assert place(known, "sort", "ls", "a b", "cat a", "1") == one
    assert place(known, "sort", "ls", "a b", "cat b", "1") != one


def test_what_is_sent_again_is_the_same_conversation() -> None:
    known = Conversations()
    one = place(known, "a")
    assert place(known, "a", "b", "c") == place(known, "a", "b", "c") == one
    assert place(known, "a", "b", "c", "d", "e") == one
    assert place(known, "a", "b", "c") == one, "a late retry"
    assert place(known, "a", "b", "c", "d", "e", "f", "g") == one, "which did not move it back"


def test_a_fork_has_its_own_turns() -> None:
    known = Conversations()
    one = place(known, "a", "b", "c")
    assert place(known, "a", "b", "c", "d", "e") == one
    fork = place(known, "a", "b", "c", "d", "edited")
    assert fork != one
    assert place(known, "a", "b", "c", "d", "edited", "f", "g") == fork
    assert place(known, "a", "b", "c", "d", "e", "f", "g") == one


def test_a_shortened_history_is_another_conversation() -> None:
    known = Conversations()
    one = place(known, "a")
    assert place(known, "a", "b", "c") == one
    assert place(known, "a", "d", "e") != one
    assert place(known, "summary", "b", "c") != one


def test_a_conversation_that_is_forgotten_gets_its_name_again() -> None:
    """So does one that another process or worker began."""
    known = Conversations(limit=4)
    one = place(known, "a")
    for i in range(8):
        place(known, f"other {i}")
    assert place(known, "a", "b", "c") == one
    assert place(Conversations(), "a", "b", "c", "d", "e") == one


def test_what_is_in_use_is_kept() -> None:
    known = Conversations(limit=4)
    place(known, "x", "y", "a")
    one = place(known, "x", "y", "b")
    other = place(known, "x", "y", "c")
    chat = ["x", "y", "b"]
    for i in range(8):
        chat += ["ok", str(i)]
        assert place(known, *chat) == one
    assert place(known, "x", "y", "c", "d", "e") == other or len({one, other}) == 2


def test_a_preview_is_the_same_and_changes_nothing() -> None:
    known = Conversations()
    for texts in (["a"], ["a", "b", "c"], ["a", "b", "c", "d", "e"], ["a", "b", "f"]):
        previews = []
        for _ in range(2):
            prompt = a_prompt([SYSTEM, *alternate(*texts)])
            known.preview(prompt)
            previews.append(known.identify(prompt))
        assert previews == [place(known, *texts)] * 2


def test_a_prompt_is_read_once() -> None:
    known = Conversations()
    prompt = a_prompt(alternate("a"))
    first = known.identify(prompt)
    prompt.body = b"[]"
    assert known.identify(prompt) == first is not None
    nothing = a_prompt([SYSTEM])
    assert known.identify(nothing) is None


chats = st.lists(st.lists(st.sampled_from("ab"), min_size=1, max_size=5), min_size=1, max_size=12)


@given(chats, st.integers(1, 6))
def test_any_history_fits_the_table(history: list[list[str]], limit: int) -> None:
    """Every request has a conversation, a retry has the same one, and the table stays small."""
    known = Conversations(limit)
    for texts in history:
        texts = texts if len(texts) % 2 else texts[:-1]
        name = known.identify(a_prompt(alternate(*texts)))
        if texts:
            assert name is not None
            assert known.identify(a_prompt(alternate(*texts))) == name
        assert len(known) <= limit


@given(st.permutations(range(6)), st.integers(2, 4))
def test_interleaved_chats_stay_apart(order: list[int], turns: int) -> None:
    known = Conversations()
    names: dict[int, bytes] = {}
    for turn in range(turns):
        for i in order:
            texts = ["same", "opening", f"chat {i}"] + [text for t in range(turn) for text in ("ok", f"turn {t}")]
            assert names.setdefault(i, place(known, *texts)) == place(known, *texts)
    assert len({*names.values()}) == len(order)


def test_the_last_answer_is_of_the_conversation_and_of_no_fork() -> None:
    known, here = Conversations(), TargetId("a/0")
    chat = [SYSTEM, *alternate("a tale", "once", "and then?")]
    assert known.last_answer(a_prompt(chat[:2]), 0.0) is None
    known.on_answer(place(known, "a tale"), here, 50, now=0.0)
    assert known.last_answer(a_prompt(chat), 1.0) == LastAnswer(here, 50, 0.0)
    known.on_answer(place(known, "a tale", "once", "and then?"), here, 90, now=2.0)
    assert known.last_answer(a_prompt([SYSTEM, *alternate("a tale", "once", "another!")]), 3.0) is None
    assert known.last_answer(a_prompt(chat), 2.0 + HELD_FOR_S) == LastAnswer(here, 90, 2.0)
    assert known.last_answer(a_prompt(chat), 2.1 + HELD_FOR_S) is None


def test_answers_are_forgotten_with_the_targets_cache_and_with_the_conversation() -> None:
    known = Conversations(limit=2)
    for i in range(5):
        known.on_answer(place(known, f"chat {i}"), TargetId(f"{i}/0"), 50, now=0.0)
    last = [known.last_answer(a_prompt([SYSTEM, *alternate(f"chat {i}")]), 0.0) for i in (3, 4)]
    assert [one and one.target for one in last] == ["3/0", "4/0"]
    known.forget_answers(TargetId("3/0"))
    assert known.last_answer(a_prompt([SYSTEM, *alternate("chat 3")]), 0.0) is None
    known.on_answer(b"one that was forgotten", TargetId("4/0"), 50, now=0.0)
    assert len(known._answers) == 1
