"""A real vLLM that is stopped as a whole, or whose engine core alone is stopped, which its probes do not show: its
requests are answered elsewhere within five seconds, and it gets requests again when it goes on.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.stack.behind import Asked, Behind, running
from tests.stack.bodies import CHAT, Json
from tests.stack.children import until
from tests.stack.engines import Engine
from tests.stack.prompts import prose, user

pytestmark = pytest.mark.stack

POLICY: Json = {"scorers": [{"name": "least_requests"}], "picker": {"name": "best"}}
TOKENS = 400
LONGEST_S = 5.0


def processes(engine: Engine, core: bool) -> list[int]:
    """The processes of the server; of `core`, only its engine core, which makes the tokens."""
    group = os.getpgid(engine.stack.server(engine.name).pid)
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            mine = os.getpgid(int(folder.name)) == group
            named = b"EngineCore" in (folder / "cmdline").read_bytes()
        except OSError:  # it has ended meanwhile
            continue
        if mine and (named or not core):
            found.append(int(folder.name))
    return found


@contextmanager
def stopped(engine: Engine, core: bool) -> Iterator[None]:
    pids = processes(engine, core)
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("core", [True, False], ids=["the engine core alone", "all of it"])
def test_requests_of_an_engine_that_stopped_are_answered_elsewhere(
    engines: list[Engine], model: Path, logs: Path, core: bool
) -> None:
    settings: Json = {"policies": {"warm": POLICY}}
    with running(Behind(f"stuck-{core}", engines, model, settings, logs)) as router, ThreadPoolExecutor(8) as pool:
        router.wait()

        def send(number: int, tokens: int, *, stream: bool) -> tuple[Asked, float]:
            began = time.monotonic()
            body = {"messages": [user(prose(f"{core} {number}", 40))], "max_tokens": tokens, "ignore_eos": True}
            return router.send(CHAT, body | {"stream": stream}), time.monotonic() - began

        for number in range(12):
            send(number, 12, stream=True)  # from which it learns their speeds
        alone_s = max(send(number, TOKENS, stream=True)[1] for number in (100, 101))
        sent: list[Future[tuple[Asked, float]]] = []
        for number in range(8):
            sent.append(pool.submit(send, 200 + number, TOKENS, stream=number % 4 > 1))
        until("all are placed", lambda: load(router, engines, "requests") == 8, 10.0)
        until("all streams have begun", lambda: load(router, engines, "prefilling") == 4, 10.0)
        with stopped(engines[0], core):
            ended = [one.result() for one in sent]
            took_s = max(seconds for _, seconds in ended)
            print(f"\nalone {alone_s:.2f} s, eight of them with a stop {took_s:.2f} s")
            for asked, _ in ended:
                first, *rest = asked.record["attempts"]
                moved = "continued" if asked.stream else "stuck"
                assert first["end"] == (moved if first["target"] == f"{engines[0].name}/0" else "ok")
                assert [attempt["end"] for attempt in rest] == ["ok"] * (first["end"] != "ok")
            assert took_s < LONGEST_S + 8 * alone_s, "eight at one engine take as long as one after the other at most"
            assert router.instance(engines[0].name)["targets"][0]["stuck"]
        until("it is ready", lambda: router.state(engines[0].name) == "ready", 20.0)
        until("it may be tried", lambda: send(300, 4, stream=True)[0].instance == engines[0].name, 30.0)


def load(router: Behind, engines: list[Engine], name: str) -> int:
    return sum(router.instance(engine.name)["targets"][0]["load"][name] for engine in engines)
