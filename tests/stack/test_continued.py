"""Real engines carry each other's streams on: at temperature 0 the client gets the undisturbed answer, token for token.
Where their ids are not known it gets all of the first part, and an end that may differ.

Between the router and each engine is a proxy that cuts a connection after some bytes of an answer, as a dying engine
does, and can make its engine one that names no token ids.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.stack.behind import Behind, running
from tests.stack.bodies import CHAT, COMPLETIONS, Json
from tests.stack.engines import MODEL, Engine
from tests.stack.prompts import prose, user

pytestmark = pytest.mark.stack

TOKENS = 48
PROMPTS = 25  # of each endpoint
HELD = 9
ASKS_IDS, ASKS_NO_IDS = b'"return_token_ids":true', b'"return_token_ids":null'  # of one length


class Cut:
    """The next streamed answer is cut `after_bytes`, whichever engine gives it, and none after it; None: none is.
    `hides_ids`: requests for token ids do not reach the engines.
    """

    after_bytes: int | None = None
    hides_ids = False

    def take(self) -> int | None:
        after_bytes, self.after_bytes = self.after_bytes, None
        return after_bytes


class CuttingProxy:
    """Passes connections on to one engine, and closes one as `cut` says."""

    def __init__(self, url: str, cut: Cut) -> None:
        self._cut = cut
        self._engine = (urlsplit(url).hostname, urlsplit(url).port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                engine = socket.create_connection(self._engine)
                threading.Thread(target=self._pass, args=(client, engine, False), daemon=True).start()
                threading.Thread(target=self._pass, args=(engine, client, True), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        left: int | None = None
        with suppress(OSError):
            while data := source.recv(65536):
                if self._cut.hides_ids and not answers:
                    data = data.replace(ASKS_IDS, ASKS_NO_IDS)
                if answers and b"text/event-stream" in data:
                    left = self._cut.take()
                if left is not None and (left := left - len(data)) <= 0:
                    sink.sendall(data[: len(data) + left])
                    break
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@pytest.fixture(scope="module")
def cuttable(engines: list[Engine], model: Path, logs: Path) -> Iterator[tuple[Behind, Cut]]:
    with ExitStack() as stack:
        cut = Cut()
        proxies = [CuttingProxy(engine.url, cut) for engine in engines]
        for proxy in proxies:
            stack.callback(proxy.close)
        instances = [
            engine.instance() | {"name": engine.name, "url": proxy.url}
            for engine, proxy in zip(engines, proxies, strict=True)
        ]
        policy = {"scorers": [{"name": "prefix_overlap"}], "picker": {"name": "best"}}
        fleet = {"instances": instances, "breaker": {"failures": 1_000_000}}
        settings = {"policies": {"warm": policy}, "fleet": fleet}
        router = stack.enter_context(running(Behind("continued", engines, model, settings, logs)))
        router.wait()
        yield router, cut


def stream(router: Behind, path: str, body: Json) -> tuple[list[int], Any, int, Json]:
    """Return the ids, the usage, the size in bytes, and the record of one streamed answer."""
    ids: list[int] = []
    usage, size = None, 0
    with router.http.stream("POST", path, json=body) as answer:
        record = answer.headers["x-warmroute-record"]
        for line in answer.iter_lines():
            size += len(line) + 1
            if not line.startswith("data: {"):
                continue
            piece = json.loads(line[6:])
            usage = piece.get("usage") or usage
            for choice in piece["choices"]:
                ids += choice.get("token_ids") or []
    return ids, usage, size, router._record(record)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_stream_that_was_carried_on_is_token_for_token_the_undisturbed_one(
    cuttable: tuple[Behind, Cut], path: str
) -> None:
    router, cut = cuttable
    for number in range(PROMPTS):
        text = prose(f"continued {number}", 60)
        said: Json = {"messages": [user(text)]} if path == CHAT else {"prompt": text}
        body = {"model": MODEL, "stream": True, "temperature": 0, "max_tokens": TOKENS, "return_token_ids": True}
        body |= said | {"stream_options": {"include_usage": True}}
        undisturbed, usage, size, _ = stream(router, path, body)
        cut.after_bytes = size * (10 + 3 * number) // 100
        ids, joined, _, record = stream(router, path, body)
        assert record["attempts"][0]["end"] == "continued"
        assert ids == undisturbed
        for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert joined[count] == usage[count]


def read_pieces(router: Behind, path: str, body: Json) -> tuple[list[str], list[Any], int, Json]:
    """Return the texts of a streamed answer's chunks, why it finished, its size in bytes, and its record."""
    texts: list[str] = []
    finishes, size = [], 0
    with router.http.stream("POST", path, json=body) as answer:
        record = answer.headers["x-warmroute-record"]
        for line in answer.iter_lines():
            size += len(line) + 1
            for choice in json.loads(line[6:]).get("choices", []) if line.startswith("data: {") else []:
                finishes.append(choice["finish_reason"])
                if "role" not in choice.get("delta", {}):
                    texts.append(choice["delta"].get("content") or "" if path == CHAT else choice["text"])
    return texts, [finish for finish in finishes if finish], size, router._record(record)


@pytest.mark.long
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_by_text_the_first_part_is_kept_and_the_answer_completed(cuttable: tuple[Behind, Cut], path: str) -> None:
    router, cut = cuttable
    continued = equal = 0
    cut.hides_ids = True
    try:
        for number in range(PROMPTS):
            text = prose(f"by text {number}", 60)
            said: Json = {"messages": [user(text)]} if path == CHAT else {"prompt": text}
            body = {"model": MODEL, "stream": True, "temperature": 0, "max_tokens": TOKENS} | said
            undisturbed, finish, size, _ = read_pieces(router, path, body)
            cut.after_bytes = size * (10 + 3 * number) // 100
            texts, finishes, _, record = read_pieces(router, path, body)
            if record["uncontinued"] is not None:
                assert (path, record["uncontinued"]) == (CHAT, "no_token_ids"), (
                    "only the text of a chat may be too short"
                )
                continue
            first, last = record["attempts"]
            assert (first["end"], last["end"], last["continued_by"]) == ("continued", "ok", "text")
            assert "".join(undisturbed).startswith("".join(texts[: last["continued_tokens"]]))
            assert len(finishes) == 1
            continued += 1
            equal += ("".join(texts), finishes) == ("".join(undisturbed), finish)
    finally:
        cut.hides_ids = False
    print(f"{path}: by text {equal} of {continued} are the undisturbed answer")
    assert continued >= PROMPTS // 2, "too few were carried on to say something"


class Answer(NamedTuple):
    text: str
    finish: list[Any]


def read_answer(router: Behind, body: Json) -> tuple[Answer, int, Json]:
    """Return a streamed chat, its size in bytes, and its record."""
    text, finishes, size = "", [], 0
    with router.http.stream("POST", CHAT, json=body) as answer:
        record = answer.headers["x-warmroute-record"]
        for line in answer.iter_lines():
            size += len(line) + 1
            for choice in json.loads(line[6:])["choices"] if line.startswith("data: {") else []:
                text += choice["delta"].get("content") or ""
                finishes.append((choice["finish_reason"], choice.get("stop_reason")))
    return Answer(text, [finish for finish in finishes if finish[0]]), size, router._record(record)


@pytest.mark.parametrize("kind", ["stop", "stop_included", "tools"])
def test_text_that_the_engine_holds_back_is_neither_lost_nor_said_twice(
    cuttable: tuple[Behind, Cut], kind: str
) -> None:
    router, cut = cuttable
    continued = 0
    for number in range(HELD):
        body: Json = {"model": MODEL, "messages": [user(prose(f"held {number}", 60))], "stream": True}
        body |= {"temperature": 0, "max_tokens": TOKENS}
        text = read_answer(router, body)[0].text
        if kind == "tools":
            function = {"name": "look", "description": "looks", "parameters": {"type": "object", "properties": {}}}
            body |= {"tools": [{"type": "function", "function": function}]}
        else:
            start = len(text) * (2 + number % 3) // 5
            body |= {"stop": ["never said at all", text[start : start + 7]]}
            body |= {"include_stop_str_in_output": kind == "stop_included"}
        undisturbed, size, _ = read_answer(router, body)
        cut.after_bytes = size * (6 + number) // 20
        answer, _, record = read_answer(router, body)
        assert record["uncontinued"] in (None, "parser")
        if record["uncontinued"] is None:
            assert answer == undisturbed
            continued += record["attempts"][0]["end"] == "continued"
    assert continued >= HELD // 3, "too few were cut to say something"
