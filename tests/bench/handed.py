"""Time to the first token of a warm chat's next turn on a real vLLM: through the router, over directly.

The engine has the chat's earlier turns in its cache, so what is left is to read the prompt, and the router spares it
that by passing the token ids. Two chats of one size grow side by side, one of them directly at the engine, each turn by
as much; which goes first alternates. There is one engine, so only the way to it differs.

    python -m tests.bench.handed [REPETITIONS]
"""

from __future__ import annotations

import http.client
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from router.config.sections.local_stack import LocalStackConfig
from router.lab.local_stack.install import stack_models, stack_venv
from router.lab.local_stack.supervisor import RunningStack
from tests.bench import routers
from tests.bench.agent_turns import cache_aware_settings, check_local, count_passed_prompts
from tests.bench.answers import MODEL
from tests.bench.asking import DEADLINE_S, PATH
from tests.bench.prompts import Chat, Words
from tests.bench.row import NotMeasured

TOKENS, NEW_TOKENS = 25_000, 128
CONTEXT_TOKENS = 32_768
TURNS = 12
KV_BYTES = 256 << 20  # 1 KiB per token, for the chats of several repetitions
TRIED_S = 30.0


def measure(repetitions: int, say: Callable[[str], None] = lambda _: None) -> list[float]:
    """Return the ratio of the medians over a chat's turns by repetition. Raises NotMeasured without passed ids."""
    say("installing and starting vLLM")
    model = stack_models(stack_venv()).tiny
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        asked = LocalStackConfig(
            engines=1, first_port=0, model=str(model), served_name=MODEL, kv_cache_bytes=KV_BYTES, store=False,
            max_model_len=CONTEXT_TOKENS, logs_dir=folder,
        )  # fmt: skip
        with RunningStack(asked, report_wait=say) as running:
            engine = running.engines[0]
            running.wait(engine.name)
            port = int(engine.url.rpartition(":")[2])
            router = stack.enter_context(routers.warmroute([port], Path(folder), cache_aware_settings(model)))
            wait_for_trial(router)
            words = Words(model)
            ratios = []
            for repetition in range(repetitions):
                say(f"turns, repetition {repetition + 1}")
                ratios.append(ratio(router.port, port, words, repetition))
            check_local(router)
            if (passed := count_passed_prompts(router)) < 0.9 * repetitions * TURNS:
                raise NotMeasured(f"only {passed:.0f} of {repetitions * TURNS} prompts were sent with token ids")
            return ratios


def ratio(through: int, straight: int, words: Words, repetition: int) -> float:
    times: dict[int, list[float]] = {through: [], straight: []}
    chats = {port: Chat(words, TOKENS - TURNS * NEW_TOKENS // 2, 2 * repetition + (port == through)) for port in times}
    with ExitStack() as stack:
        asking = {port: stack.enter_context(FirstToken(port)) for port in times}
        for port, chat in chats.items():
            asking[port].ms(chat.body())
        for turn in range(TURNS):
            for port in (through, straight) if turn % 2 else (straight, through):
                chats[port].turn(NEW_TOKENS)
                times[port].append(asking[port].ms(chats[port].body()))
    return statistics.median(times[through]) / statistics.median(times[straight])


class FirstToken(ExitStack):
    """A client of one port that streams an answer of one token."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
        self.callback(self._connection.close)

    def ms(self, body: bytes) -> float:
        """Return the time from the first byte sent to the first of the answer's body. Raises NotMeasured unless 200."""
        body = body[:-1] + b',"stream":true,"max_tokens":1,"temperature":0}'
        began = time.perf_counter()
        self._connection.request("POST", PATH, body, {"content-type": "application/json"})
        answer = self._connection.getresponse()
        first = answer.read1(64)
        took_ms = (time.perf_counter() - began) * 1e3
        rest = answer.read()
        if answer.status != 200:
            raise NotMeasured(f"status {answer.status}: {(first + rest)[:300]!r}")
        return took_ms


def wait_for_trial(router: routers.Running) -> None:
    """Wait until the router knows that the engine takes token ids. Raises NotMeasured after a deadline."""
    deadline = time.monotonic() + TRIED_S
    while True:
        (told,) = [one["token_ids"] for one in router.get_admin("/admin/instances")["instances"]]
        if told is not None and told["takes"]:
            return
        if time.monotonic() > deadline:
            raise NotMeasured(f"the engine was not seen to take ids: {json.dumps(told)}")
        time.sleep(0.1)


def summary(ratios: Sequence[float]) -> str:
    what = f"time to first token, warm {TOKENS:,}-token chat, through the router / direct"
    return f"{what}: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def main() -> None:
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    sys.stdout.write(summary(measure(repetitions)) + "\n")


if __name__ == "__main__":
    main()
