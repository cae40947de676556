"""The one promise that everything stands on: what the router predicts, real engines deliver, to the token.

Conversations of every kind go through the router to two real vLLM servers, and for each request the overlap that the
index promised on the chosen target is compared with the engine's own `cached_tokens` (`Behind.ask` does it). The tests
run in order and share the engines' caches, which are small, so that blocks are evicted all the time. `EXCEPTIONS` are
the only reasons for which a promise may be broken, and the last test says how many were.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.stack.behind import Behind, router_in_front
from tests.stack.bodies import (
    CHAT,
    CHAT_TOOL,
    COMPLETIONS,
    MESSAGES,
    MESSAGES_TOOL,
    RESPONSES,
    RESPONSES_TOOL,
    Json,
    call,
    result,
    text,
)
from tests.stack.children import until
from tests.stack.engines import ADAPTER, BLOCK_TOKENS, KV_BYTES, MODEL, Engine
from tests.stack.prompts import assistant, ids, prose, user

pytestmark = pytest.mark.stack

EXCEPTIONS = {
    "delayed_clear": (
        "A reset empties an engine's cache at once, but an idle engine says so (AllBlocksCleared) only with its next "
        "batch of events, and that comes from the next request: the first one after a reset meets an empty cache."
    ),
}
STREAMS = {
    "whole": {},
    "stream": {"stream": True},
    "stream with usage": {"stream_options": {"include_usage": True}, "stream": True},
}


@pytest.mark.parametrize("how", STREAMS)
def test_chat_of_several_turns(behind: Behind, how: str) -> None:
    messages = [{"role": "system", "content": prose(f"system {how}", 300)}]
    hits = []
    for turn in range(5):
        messages.append(user(prose(f"turn {turn} {how}", 60)))
        asked = behind.ask(CHAT, {"messages": messages, "max_tokens": 40, "ignore_eos": True, **STREAMS[how]})
        messages.append(assistant(asked.text))
        hits.append(asked.cached or 0)
    assert hits[0] == 0
    assert hits[1] >= 2 * BLOCK_TOKENS
    assert hits == sorted(hits)


def test_tools_and_their_results(behind: Behind) -> None:
    messages: list[Json] = [{"role": "system", "content": prose("tools", 200)}, user("How warm is it in Zürich?")]
    fields = {"tools": [CHAT_TOOL], "max_tokens": 8}
    first = behind.ask(CHAT, {"messages": messages, **fields})
    for turn in range(4):
        arguments = f'{{"city": "Zürich",  "days":{turn}, "units": "C"}}'
        messages += [{"role": "assistant", "content": None, "tool_calls": [call(arguments, id=f"c{turn}")]}]
        messages += [result(prose(f"weather {turn}", 70), id=f"c{turn}")]
        asked = behind.ask(CHAT, {"messages": messages, "stream": turn % 2 == 0, **fields})
        assert asked.instance == first.instance
        assert (asked.cached or 0) >= 2 * BLOCK_TOKENS


def test_content_parts(behind: Behind) -> None:
    parts = text(prose("part one", 120), prose("part two", 120))
    behind.ask(CHAT, {"messages": [user(parts)], "max_tokens": 4})
    asked = behind.ask(CHAT, {"messages": [user(parts), assistant("Yes."), user(text("and", "on"))], "max_tokens": 4})
    assert (asked.cached or 0) >= 2 * BLOCK_TOKENS
    joined = "\n".join(part["text"] for part in parts)
    assert behind.ask(CHAT, {"messages": [user(joined)], "max_tokens": 4}).cached


def test_completions_of_text(behind: Behind) -> None:
    prompt = prose("story", 250)
    for turn in range(4):
        asked = behind.ask(
            COMPLETIONS, {"prompt": prompt, "max_tokens": 24, "ignore_eos": True, "stream": turn % 2 == 1}
        )
        assert bool(asked.cached) == (turn > 0)
        prompt += asked.text + prose(f" chapter {turn}", 40)


def test_completions_of_token_ids(behind: Behind) -> None:
    prompt = ids("numbers", 3 * BLOCK_TOKENS)

    def ask(prompt: list[int], **fields: object) -> int | None:
        return behind.ask(COMPLETIONS, {"prompt": prompt, "max_tokens": 4, **fields}, tokens_from="given").cached

    assert ask(prompt) == 0
    assert ask(prompt) == 2 * BLOCK_TOKENS  # the last token is always computed, and with it its block
    assert ask(prompt) == 2 * BLOCK_TOKENS  # now that two copies of that block are announced
    assert ask([*prompt, 7]) == 3 * BLOCK_TOKENS
    assert ask(prompt[:-1], stream=True) == 2 * BLOCK_TOKENS
    assert ask(prompt[: BLOCK_TOKENS // 2]) == 0
    assert ask([*prompt, *ids("more", 200)]) == 3 * BLOCK_TOKENS
    assert ask([*prompt[:-1], 9, 9]) == 2 * BLOCK_TOKENS


def test_generated_blocks_count_too(behind: Behind) -> None:
    """Blocks that an answer has filled are cached like a prompt's; their ids come back with `return_token_ids`."""
    prompt = ids("seed of an answer", BLOCK_TOKENS - 10)
    fields = {"max_tokens": 2 * BLOCK_TOKENS, "ignore_eos": True}
    asked = behind.ask(COMPLETIONS, {"prompt": prompt, **fields}, tokens_from="given")
    assert asked.cached == 0
    engine = behind.engine(asked.instance)
    whole = (
        prompt
        + engine.post("/tokenize", {"model": "tiny", "prompt": asked.text, "add_special_tokens": False})["tokens"]
    )
    again = behind.ask(COMPLETIONS, {"prompt": [*whole, 5, 6, 7], "max_tokens": 1}, tokens_from="given")
    assert again.cached is not None  # text need not tokenise to what was generated: only the promise must hold


def test_salt_keeps_tenants_apart(behind: Behind) -> None:
    messages = [user(prose("shared", 250))]
    seen = []
    for salt in ("ann", "ann", "bob", None, "bob", "ann", None):
        fields = {"cache_salt": salt} if salt else {}
        seen.append(bool(behind.ask(CHAT, {"messages": messages, "max_tokens": 2, **fields}).cached))
    assert seen == [False, True, False, False, True, True, True]
    assert (
        behind.ask(
            COMPLETIONS, {"prompt": ids("s", 300), "max_tokens": 2, "cache_salt": "ann"}, tokens_from="given"
        ).cached
        == 0
    )
    assert behind.ask(
        COMPLETIONS, {"prompt": ids("s", 300), "max_tokens": 2, "cache_salt": "ann"}, tokens_from="given"
    ).cached


def test_an_adapter_has_a_cache_of_its_own(behind: Behind) -> None:
    messages = [user(prose("adapted", 250))]
    models = ("tiny", ADAPTER, ADAPTER, "tiny")
    cached = [behind.ask(CHAT, {"model": model, "messages": messages, "max_tokens": 2}).cached for model in models]
    assert [bool(tokens) for tokens in cached] == [False, False, True, True]


def test_responses(behind: Behind) -> None:
    items: list[Json] = [user(prose("asked", 120))]
    fields = {"instructions": prose("instructions", 150), "tools": [RESPONSES_TOOL], "max_output_tokens": 12}
    for turn in range(5):
        asked = behind.ask(RESPONSES, {"input": items, "stream": turn % 2 == 1, **fields})
        assert bool(asked.cached) == (turn > 0)
        output = {"type": "message", "id": f"msg_{turn}", "role": "assistant", "status": "completed"}
        items.append({**output, "content": [{"type": "output_text", "text": asked.text, "annotations": []}]})
        called = {"type": "function_call", "call_id": f"c{turn}", "name": "get_weather", "arguments": '{"city":"Bern"}'}
        items += [called, {"type": "function_call_output", "call_id": f"c{turn}", "output": prose(f"out {turn}", 50)}]


def test_messages(behind: Behind) -> None:
    messages: list[Json] = [user(prose("anthropic", 100))]
    fields = {"system": text(prose("system of messages", 150)), "tools": [MESSAGES_TOOL], "max_tokens": 12}
    for turn in range(5):
        asked = behind.ask(MESSAGES, {"messages": messages, "stream": turn % 2 == 1, **fields})
        assert bool(asked.cached) == (turn > 0)
        use = {"type": "tool_use", "id": f"t{turn}", "name": "get_weather", "input": {"city": "Bern", "days": turn}}
        messages.append({"role": "assistant", "content": [*text(asked.text or "."), use]})
        back = {"type": "tool_result", "tool_use_id": f"t{turn}", "content": text(prose(f"back {turn}", 50))}
        messages.append(user([back, *text("And now?")]))


def test_one_conversation_over_three_endpoints(behind: Behind) -> None:
    """One prompt is the same blocks in every API dialect."""
    system, question = prose("polyglot", 150), prose("question", 150)
    chat = {"messages": [{"role": "system", "content": system}, user(question)], "max_tokens": 2}
    assert behind.ask(CHAT, chat).cached == 0
    assert behind.ask(MESSAGES, {"system": system, "messages": [user(question)], "max_tokens": 2}).cached
    assert behind.ask(RESPONSES, {"instructions": system, "input": question, "max_output_tokens": 2}).cached


def test_an_agent_that_appends(behind: Behind) -> None:
    messages: list[Json] = [{"role": "system", "content": prose("agent", 400)}, user("Fix the bug.")]
    homes = set()
    for step in range(14):
        asked = behind.ask(CHAT, {"messages": messages, "tools": [CHAT_TOOL], "max_tokens": 24, "stream": step % 3 > 0})
        assert bool(asked.cached) == (step > 0)
        homes.add(asked.instance)
        messages += [
            {"role": "assistant", "content": asked.text, "tool_calls": [call(f'{{"days": {step}}}', id=f"s{step}")]}
        ]
        messages += [result(prose(f"file {step}", 200), id=f"s{step}")]
    assert len(homes) == 1  # it stays where its history is


def test_evictions(behind: Behind) -> None:
    """Eight prompts of 19 blocks, 152 in all and 96 to an engine: what is left of each is asked for again."""
    prompts = [ids(f"long {number}", 19 * BLOCK_TOKENS + 30) for number in range(8)]
    seen = [behind.ask(COMPLETIONS, {"prompt": p, "max_tokens": 2}, tokens_from="given").cached for p in prompts]
    assert seen == [0] * 8
    crowd = [ids(f"crowd {number}", 11 * BLOCK_TOKENS) for number in range(6)]
    for prompt in crowd:
        behind.ask(COMPLETIONS, {"prompt": prompt, "max_tokens": 2}, tokens_from="given")
    again = [behind.ask(COMPLETIONS, {"prompt": p, "max_tokens": 2}, tokens_from="given").cached for p in prompts]
    assert any((tokens or 0) < 19 * BLOCK_TOKENS for tokens in again), "the cache was too large for this test"


def test_a_reset(behind: Behind) -> None:
    prompt = {"prompt": ids("before the reset", 600), "max_tokens": 2}
    home = behind.ask(COMPLETIONS, prompt, tokens_from="given").instance
    engine = behind.engine(home)
    assert behind.ask(COMPLETIONS, prompt, tokens_from="given").cached == 4 * BLOCK_TOKENS
    assert engine.http.post("/reset_prefix_cache").status_code == 200
    broken = behind.ask(COMPLETIONS, prompt, tokens_from="given", exception="delayed_clear")
    assert (broken.instance, broken.predicted, broken.cached) == (home, 4 * BLOCK_TOKENS, 0)
    for length in (600, 700, 800):
        asked = behind.ask(
            COMPLETIONS, {"prompt": ids("before the reset", length), "max_tokens": 2}, tokens_from="given"
        )
        assert (asked.instance, bool(asked.cached)) == (home, True)


def test_a_restart(behind: Behind) -> None:
    """An engine is killed: its requests go to the other one. It comes back empty, at new event ports."""
    prompt = {"messages": [user(prose("restart", 300))], "max_tokens": 4}
    name = behind.ask(CHAT, prompt).instance
    victim = behind.engine(name)
    victim.stack.kill(name)
    first = behind.ask(CHAT, prompt)  # the router has not noticed yet, or has: the client sees no difference
    assert first.instance != name
    until(f"{name} is down", lambda: behind.state(name) == "down")
    assert behind.ask(CHAT, prompt).cached
    victim.stack.start(name)
    victim.wait()
    until(f"{name} is ready", lambda: behind.state(name) == "ready", 30.0)
    behind.hear(victim)
    after = behind.ask(CHAT, prompt)
    assert after.held(name) == 0, "its blocks are forgotten"
    for n in range(60):  # both engines tie for a new prompt, and a draw decides
        fresh = {"messages": [user(prose(f"fresh {n}", 300))], "max_tokens": 4}
        if behind.ask(CHAT, fresh).instance == name:
            break
    else:
        pytest.fail("60 new prompts all went past the engine that came back")
    again = behind.ask(CHAT, fresh)
    assert (again.instance, bool(again.cached)) == (name, True)


def test_a_router_that_starts_late(engines: list[Engine], behind: Behind, model: Path, logs: Path) -> None:
    """What was cached before it came, it learns from the replay. Its picker is nearly blind, so that it also asks
    engines for what they do not hold."""
    chats = [{"messages": [user(prose(f"early {number}", 300))], "max_tokens": 4} for number in range(20)]
    for chat in chats:
        behind.ask(CHAT, chat)
    with router_in_front("late", engines, model, {"name": "softmax", "temperature": 5.0}, logs) as late:
        late.wait()
        for number in (7, 6, 5, 4):
            late.ask(
                COMPLETIONS,
                {"prompt": ids(f"long {number}", 19 * BLOCK_TOKENS + 30), "max_tokens": 2},
                tokens_from="given",
            )
        for chat in reversed(chats):  # the cache may be too small for the first ones
            late.ask(CHAT, chat)
        assert {asked.instance for asked in late.asked} == {engine.name for engine in engines}
        assert any(asked.cached for asked in late.asked)
        behind.asked.extend(late.asked)


def test_memory_in_use_is_what_the_engines_report(behind: Behind, engines: list[Engine]) -> None:
    """Six answers to prompts that share five blocks: our count and the engines' gauges, within 5 % of each other."""
    shared = ids("shared memory", 5 * BLOCK_TOKENS)
    bodies = [
        {"model": MODEL, "prompt": [*shared, *ids(f"own {n}", 100)], "max_tokens": 300, "ignore_eos": True}
        for n in range(6)
    ]

    def samples(page: str, name: str) -> float:
        return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith((f"{name}{{",)))

    pairs = []
    with ThreadPoolExecutor(len(bodies)) as pool:
        answers = [pool.submit(behind.http.post, COMPLETIONS, json=body) for body in bodies]
        while not all(answer.done() for answer in answers):
            pages = [engine.http.get("/metrics").text for engine in engines]
            if sum(samples(page, "vllm:num_requests_running") for page in pages) == len(bodies):
                ours = samples(behind.http.get("/metrics").text, "warmroute_target_live_tokens")
                theirs = sum(samples(page, "vllm:kv_cache_usage_perc") for page in pages) * KV_BYTES / 1024
                pairs.append((ours, theirs))
        assert {answer.result().status_code for answer in answers} == {200}
    print(f"\n{len(pairs)} samples of memory in use, ours and theirs: {pairs[:: max(1, len(pairs) // 8)]}")
    assert any(abs(ours - theirs) <= 0.05 * theirs for ours, theirs in pairs)
    assert all(ours < 6 * 5 * BLOCK_TOKENS for ours, _ in pairs[:1])  # not once for each that shares them


def test_nearly_every_promise_was_kept(behind: Behind) -> None:
    asked = behind.asked
    broken = [one for one in asked if not one.kept]
    print(f"\n{len(asked)} requests, {len(asked) - len(broken)} promises kept; {[one.exception for one in broken]}")
    assert len(asked) >= 60
    assert {one.path for one in asked if one.cached} == {CHAT, COMPLETIONS, RESPONSES, MESSAGES}
    assert {one.path for one in asked if one.stream and one.cached} == {CHAT, COMPLETIONS, RESPONSES, MESSAGES}
    assert {one.exception for one in broken} <= set(EXCEPTIONS)
    assert len(asked) - len(broken) >= 0.98 * len(asked)
