"""What clients can fill has a bound: sessions, salts, response ids, guessed keys, models and paths, policies by header.

Each is sent once, so that whatever is remembered of it is remembered for nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from router.features.admission.controller import AdmissionController
from router.features.admission.programs import MAX_PROGRAMS
from router.features.admission.verdicts import Admitted, Arrival, ComputedPrompt
from router.fleet.answer_lengths import MAX_MODELS, AnswerLengths
from router.scheduling.experiments.arm_metrics import TARGETS, Imbalance
from scorers.admission.contract import AdmissionRule, FleetMemory, TargetMemory
from scorers.registry import load_registry
from tests.e2e.chats import PATH
from tests.e2e.conftest import MODEL, RouterProcess
from tests.fakes.engines import engine

MB = 1024 * 1024
CONNECTIONS = 8
KEY = "a client's key"
COMPLETIONS, RESPONSES = "/v1/completions", "/v1/responses"

Message = Callable[[int], bytes]


def request(path: str, body: dict[str, object], **headers: str) -> bytes:
    text = json.dumps({"model": MODEL, "max_tokens": 1} | body).encode()
    own = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"POST {path} HTTP/1.1\r\nhost: r\r\ncontent-type: application/json\r\n{own}content-length: {len(text)}"
    return head.encode() + b"\r\n\r\n" + text


MESSAGES: dict[str, tuple[int, Message]] = {
    "api keys": (401, lambda n: request(COMPLETIONS, {"prompt": "x"}, authorization=f"Bearer guess-{n}")),
    "models": (404, lambda n: request(COMPLETIONS, {"model": f"m-{n}", "prompt": "x"}, x_api_key=KEY)),
    "paths": (404, lambda n: request(f"/v1/guess-{n}", {}, x_api_key=KEY)),
    "responses": (404, lambda n: request(f"/v1/responses/resp_{n}/cancel", {}, x_api_key=KEY)),
    "policies": (403, lambda n: request(COMPLETIONS, {}, x_api_key=KEY, x_warmroute_policy=f"p-{n}")),
    "admin tokens": (
        403,
        lambda n: request(COMPLETIONS, {}, x_api_key=KEY, x_warmroute_policy="warm", x_warmroute_token=f"t-{n}"),
    ),
    "sessions": (
        200,
        lambda n: request(
            RESPONSES,
            {"input": f"hello {n}", "max_output_tokens": 1, "cache_salt": f"salt-{n}", "user": f"user-{n}"},
            x_api_key=KEY,
            x_session_id=f"session-{n}",
        ),
    ),
}
"""What is guessed or invented, the status of the answer, and the n-th message. `sessions`: with a salt, a user and a
stored response each.
"""


async def send(router: RouterProcess, message: Message, first: int, count: int) -> Counter[int]:
    """Send messages `first` to `first + count`, over a few connections; return the statuses."""
    host, port = router.url.removeprefix("http://").split(":")
    statuses: Counter[int] = Counter()

    async def some(start: int) -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        for n in range(start, first + count, CONNECTIONS):
            writer.write(message(n))
            head = await reader.readuntil(b"\r\n\r\n")
            statuses[int(head.split(b" ", 2)[1])] += 1
            await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
        writer.close()

    await asyncio.gather(*(some(first + n) for n in range(CONNECTIONS)))
    return statuses


async def series(router: RouterProcess) -> set[str]:
    """The names and labels on the metrics page."""
    page = (await router.http.get("/metrics")).raise_for_status().text
    return {line.rpartition(" ")[0] for line in page.splitlines() if not line.startswith("#")}


async def settle(router: RouterProcess) -> None:
    """Send requests until the engine's metrics page and its events are known, which adds series of their own."""
    known = {"warmroute_engine_kv_usage_ratio", "warmroute_predicted_tokens_total"}
    async with asyncio.timeout(10):
        while not known <= {name.partition("{")[0] for name in await series(router)}:
            await send(router, MESSAGES["sessions"][1], 0, CONNECTIONS)


@pytest.fixture
def keyed(fleet_config, tmp_path: Path):
    """A configuration with one client key."""
    file = tmp_path / "keys"
    file.write_text(f"{hashlib.sha256(KEY.encode()).hexdigest()} somebody\n")
    admin = {"tokens": [{"name": "a", "hash": hashlib.sha256(b"admin").hexdigest(), "rights": ["override"]}]}
    return lambda engines: fleet_config(engines, clients={"keys_file": str(file)}, admin=admin)


async def test_names_that_clients_invent_become_no_series(router_process, keyed, measured) -> None:
    async with engine() as fake, router_process(keyed([fake])) as r:
        for status, message in MESSAGES.values():
            assert await send(r, message, 0, 16) == {status: 16}
        await settle(r)
        before = await series(r)
        for status, message in MESSAGES.values():
            assert await send(r, message, 16, 100) == {status: 100}
        grown = await series(r) - before
        measured("series that 700 invented names add to /metrics", len(grown), 0, "series")


@pytest.mark.abuse
async def test_a_hundred_thousand_guesses_are_not_remembered(router_process, keyed, measured) -> None:
    count = 17_000
    async with engine() as fake, router_process(keyed([fake])) as r:
        for what, (status, message) in MESSAGES.items():
            if status == 200:
                continue
            await send(r, message, 0, 2_000)
            before = r.rss_bytes
            assert await send(r, message, 2_000, count) == {status: count}
            measured(f"memory after {count:,} guessed {what}", (r.rss_bytes - before) / MB, 4, "MB")


@pytest.mark.abuse
async def test_sessions_salts_and_responses_cost_little_each(router_process, keyed, measured) -> None:
    """100,000 sessions and 10,000 responses are remembered; of prompts, what `tokens.memory_bytes` allows."""
    status, message = MESSAGES["sessions"]
    records, count = 1_000, 4_000
    async with engine() as fake, router_process(keyed([fake]) | {"records": {"keep": records}}) as r:
        await send(r, message, 0, 2 * records)
        before = r.rss_bytes
        assert await send(r, message, 2 * records, count) == {status: count}
        each = (r.rss_bytes - before) / count
        measured("memory per new session, salt, user and stored response", each, 3_000, "bytes")


async def test_names_of_template_variables_are_not_kept(router_process, fleet_config, measured) -> None:
    """An engine's count confirms how each chat was rendered, which is remembered: without the names."""

    def chat(n: int) -> bytes:
        variables = {f"{n}{'x' * (MB // 4)}": 1}
        return request(PATH, {"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": variables})

    async with engine() as fake, router_process(fleet_config([fake], tokens={"token_id_passthrough": "auto"})) as r:
        assert await send(r, chat, 0, 32) == {200: 32}
        before = r.rss_bytes
        assert await send(r, chat, 32, 32) == {200: 32}
        measured("memory after 32 chats with a variable's name of 256 KiB", (r.rss_bytes - before) / MB, 3, "MB")


@pytest.mark.parametrize("rule", ["fit", "thunderagent", "progress_ttl"])
def test_sessions_for_admission_are_bounded(rule: str) -> None:
    rules = load_registry().build(AdmissionRule, rule, {})
    controller = AdmissionController(rules, 300.0, 300.0)
    controller.set_fleet(FleetMemory(10**9, (TargetMemory("a/0", 10**9),)))
    for n in range(MAX_PROGRAMS + 1000):
        verdict = controller.arrive(Arrival(b"%d" % n, 10), n / 1000)
        assert isinstance(verdict, Admitted)
        controller.on_placed(verdict.admission, "a/0", n / 1000)
        controller.on_answer(verdict.admission, ComputedPrompt(10, 12), n / 1000)
    state = controller.state(0.0)
    assert state.known == MAX_PROGRAMS
    assert state.live is not None
    assert state.live.programs <= MAX_PROGRAMS


def test_names_that_engines_invent_are_bounded() -> None:
    lengths, imbalance = AnswerLengths(), Imbalance()
    for n in range(2 * MAX_MODELS):
        lengths.observe(f"adapter-{n}", 10)
        imbalance.add(f"pod-{n}/0")
    assert len(lengths._means) == MAX_MODELS
    assert len(imbalance.targets) == TARGETS
