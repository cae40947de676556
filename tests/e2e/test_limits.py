"""Limits of tenants on real sockets: exact to one request, given back on every path, told to the client."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from router.clock import SystemClock
from router.features.tenants.usage_store import UsageStore
from router.lab.local_stack.preflight import free_ports
from tests.e2e.conftest import MODEL, Router, RouterClient
from tests.e2e.workers import all_up
from tests.fakes.engines import engine, eventually
from tests.patience import PATIENCE_S

CHAT, COMPLETIONS, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
SLOW = {"decode_ms_per_token": 20}
LONG = {"max_tokens": 200, "ignore_eos": True, "stream": True}
KEY = {"authorization": "Bearer k"}
WORDS = "Once upon a time there was a router. " * 10


@pytest.fixture
def clients(tmp_path: Path) -> Callable[..., Any]:
    """`clients(limits, **section)`: the section `clients` with a tenant `acme` that has these limits, key `k`, and a
    tenant `free`, key `f`, that has none.
    """

    def build(limits: dict[str, Any], **section: Any) -> dict[str, Any]:
        keys = tmp_path / "keys"
        names = {"k": "acme", "f": "free"}
        keys.write_text("".join(f"{hashlib.sha256(k.encode()).hexdigest()} {name}\n" for k, name in names.items()))
        return {
            "keys_file": str(keys),
            "tenants": {"acme": {"service_class": "small"}},
            "service_classes": {"small": {"limits": limits}},
        } | section

    return build


async def ask(router: Router, path: str = COMPLETIONS, key: str = "k", **fields: Any) -> httpx.Response:
    prompt = {"prompt": WORDS} if path == COMPLETIONS else {"messages": [{"role": "user", "content": WORDS}]}
    body = {"model": MODEL, "max_tokens": 4} | prompt | fields
    return await router.post(path, body, headers={"authorization": f"Bearer {key}"})


def ledger(router: Router) -> Any:
    return router.app.features["tenants"].metering.ledger


def idle(router: Router) -> bool:
    return router.idle() and ledger(router).in_progress("acme") == 0


async def test_exact_to_one_request_under_200_at_once_and_others_do_not_notice(router, clients) -> None:
    async with engine() as fake, router([fake], clients=clients({"requests_per_minute": 37})) as r:
        answers = await asyncio.gather(*(ask(r, max_tokens=1) for _ in range(200)))
        assert Counter(answer.status_code for answer in answers) == {200: 37, 429: 163}
        refused = [answer for answer in answers if answer.status_code == 429]
        assert {answer.json()["error"]["code"] for answer in refused} == {"requests_per_minute"}
        assert "37 of 37 requests" in refused[0].json()["error"]["message"]
        assert all(50 <= int(answer.headers["retry-after"]) <= 61 for answer in refused)
        remaining = sorted(int(a.headers["x-ratelimit-remaining-requests"]) for a in answers if a.status_code == 200)
        assert remaining == list(range(37)), "each answer says what was left after it"
        free = await asyncio.gather(*(ask(r, key="f", max_tokens=1) for _ in range(50)))
        assert {answer.status_code for answer in free} == {200}
        assert not any(name.startswith("x-ratelimit") for name in free[0].headers)
        assert await r.metric("warmroute_tenant_requests_total", tenant="acme") == 37
        assert await r.metric("warmroute_tenant_refusals_total", tenant="acme", reason="requests_per_minute") == 163
        await eventually(lambda: idle(r))


async def read_stream(router: Router) -> None:
    body = {"model": MODEL, "prompt": WORDS} | LONG
    async with router.http.stream("POST", COMPLETIONS, json=body, headers={"authorization": "Bearer k"}) as answer:
        async for _ in answer.aiter_bytes():
            pass


async def test_concurrent_requests_are_given_back_by_answers_cancellations_and_dying_engines(router, clients) -> None:
    async with engine(**SLOW) as fake, router([fake], clients=clients({"concurrent": 3})) as r:
        reading = [asyncio.create_task(read_stream(r)) for _ in range(3)]
        await eventually(lambda: ledger(r).in_progress("acme") == 3)
        refused = await ask(r)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "concurrent")
        assert refused.headers["retry-after"] == "1"
        reading[0].cancel()
        await eventually(lambda: ledger(r).in_progress("acme") == 2)
        assert (await ask(r)).status_code == 200
        for task in reading[1:]:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        await eventually(lambda: idle(r))
        for fault in ("die_before_first_byte", "die_mid_stream"):
            fake.faults(**{fault: 1})
            ended = await asyncio.gather(*(ask(r, stream=True) for _ in range(3)), return_exceptions=True)
            assert not any(isinstance(one, httpx.Response) and one.status_code == 429 for one in ended)
            fake.faults(**{fault: 0})
            await eventually(lambda: idle(r))
        assert ledger(r).used_today("acme") > 0


async def test_what_was_reserved_is_settled_by_what_the_engine_counted(router, clients) -> None:
    limits = {"tokens_per_minute": 10_000}
    async with engine() as fake, router([fake], clients=clients(limits)) as r:
        first = await ask(r, CHAT)
        used = first.json()["usage"]
        assert 10_000 - 300 < int(first.headers["x-ratelimit-remaining-tokens"]) < 10_000
        assert first.headers["x-ratelimit-limit-tokens"] == "10000"
        reset = first.headers["x-ratelimit-reset-tokens"]
        assert re.fullmatch(r"1m0s|5\d(\.\d+)?s", reset), reset  # the time since its arrival is already gone
        await eventually(lambda: idle(r))
        state = ledger(r).state("acme", r.app.core.config.clients.service_classes["small"].limits)
        assert state.tokens.remaining == 10_000 - used["prompt_tokens"] - used["completion_tokens"]
        second = (await ask(r, CHAT)).json()["usage"]
        cached = second["prompt_tokens_details"]["cached_tokens"]
        assert cached > 0
        await eventually(lambda: idle(r))
        state, before = ledger(r).state("acme", r.app.core.config.clients.service_classes["small"].limits), state
        computed = second["prompt_tokens"] - cached + second["completion_tokens"]
        assert before.tokens.remaining - state.tokens.remaining == computed


async def test_what_is_cached_of_a_prompt_is_given_back_when_the_answer_begins(router, clients) -> None:
    limits = {"tokens_per_minute": 10_000}
    async with engine(**SLOW) as fake, router([fake], clients=clients(limits)) as r:
        used = (await ask(r, prompt=WORDS * 20)).json()["usage"]
        await r.hear()
        await eventually(lambda: idle(r))
        allowed = r.app.core.config.clients.service_classes["small"].limits
        before = ledger(r).use("acme", allowed)["tokens_per_minute"].used
        body = {"model": MODEL, "prompt": WORDS * 20} | LONG
        async with r.http.stream("POST", COMPLETIONS, json=body, headers=KEY) as answer:
            await anext(answer.aiter_bytes())
            now = ledger(r).use("acme", allowed)["tokens_per_minute"].used
            assert ledger(r).in_progress("acme") == 1
        assert used["prompt_tokens"] > 1000
        assert now - before < 300, "of the prompt next to nothing counts, though the answer goes on"
        await eventually(lambda: idle(r))


async def test_a_client_that_leaves_is_charged_what_was_certainly_computed(router, clients) -> None:
    prices = {"input": 1.0, "cached": 0.0, "output": 1000.0}
    async with engine(**SLOW) as fake, router([fake], clients=clients({"budget_per_day": 1e9}, prices=prices)) as r:
        for path in (COMPLETIONS, MESSAGES):
            before = ledger(r).used_today("acme")
            prompt = (
                {"prompt": path * 30} if path == COMPLETIONS else {"messages": [{"role": "user", "content": path * 30}]}
            )
            headers = {"authorization": "Bearer k"}
            async with r.http.stream("POST", path, json={"model": MODEL} | prompt | LONG, headers=headers) as answer:
                pieces = answer.aiter_bytes()
                got = b""
                while got.count(b"\n\n") < 12:
                    got += await anext(pieces)
            await eventually(lambda: idle(r))
            record = (await r.records(1))[0]
            assert (record["attempts"][-1]["end"], record["output_tokens"]) == ("client_gone", None)
            outputs, inputs = divmod(ledger(r).used_today("acme") - before, 1000)
            assert 8 <= outputs <= 40
            assert 0 < inputs <= record["prompt_tokens_counted"]


@pytest.mark.parametrize("stream", [False, True])
async def test_hanging_up_before_the_answer_is_not_free(router, clients, stream: bool) -> None:
    """A tenant that leaves as soon as an engine works for it uses up its limit as one that waits does."""
    limits = {"tokens_per_minute": 2000}
    async with engine(prefill_tokens_per_s=100, **SLOW) as fake, router([fake], clients=clients(limits)) as r:
        for left in range(100):
            begun = len(fake.seen(COMPLETIONS))
            asking = asyncio.create_task(ask(r, stream=stream, max_tokens=200, prompt=f"{left} {WORDS}"))
            await eventually(lambda n=begun, task=asking: len(fake.seen(COMPLETIONS)) > n or task.done())
            if asking.done():
                break
            asking.cancel()
            await eventually(lambda: idle(r))
        refused = await asking
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "tokens_per_minute")
        prompt_tokens = (await r.records(1))[0]["prompt_tokens_counted"]
        assert 2 <= left <= 2000 / prompt_tokens + 1


async def test_a_stream_is_charged_while_it_runs(router, clients) -> None:
    async with engine(decode_ms_per_token=1) as fake, router([fake], clients=clients({"tokens_per_minute": 600})) as r:
        body = {"model": MODEL, "prompt": "Once upon"} | LONG | {"max_tokens": 5000}
        async with r.http.stream("POST", COMPLETIONS, json=body, headers=KEY) as answer:
            pieces = answer.aiter_bytes()
            got = b""
            while got.count(b"\n\n") < 700:
                got += await anext(pieces)
            refused = await ask(r, prompt="Hi", max_tokens=1)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "tokens_per_minute")
        await eventually(lambda: idle(r))


async def test_a_request_over_a_limit_costs_no_engine_anything(router, clients) -> None:
    async with engine() as fake, router([fake], clients=clients({"requests_per_minute": 1})) as r:
        assert (await ask(r)).status_code == 200
        for path in (COMPLETIONS, CHAT, "/v1/embeddings", "/tokenize", "/v1/responses/resp_1"):
            before = len(fake.seen(path)), len(fake.seen("/tokenize"))
            if path.endswith("resp_1"):
                refused = await r.http.get(path, headers=KEY)
            else:
                refused = await r.http.post(path, content=b"{" * 100_000, headers=KEY)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "requests_per_minute"), path
            assert (len(fake.seen(path)), len(fake.seen("/tokenize"))) == before


@pytest.mark.parametrize("path", ["/v1/responses/resp_1", COMPLETIONS])
async def test_who_finds_the_router_full_gives_its_place_back(router, clients, path: str) -> None:
    async with (
        engine(**SLOW) as fake,
        router([fake], clients=clients({"concurrent": 5}), limits={"concurrent": 1}) as r,
    ):
        served = asyncio.create_task(ask(r, key="f", max_tokens=100, ignore_eos=True))
        await eventually(lambda: fake.gauges().running == 1)
        method = "POST" if path == COMPLETIONS else "GET"
        refused = await r.http.request(method, path, headers=KEY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_requests")
        assert ledger(r).in_progress("acme") == 0
        served.cancel()


async def test_anthropic_clients_get_their_own_headers_and_shape(router, clients) -> None:
    limits = {"requests_per_minute": 1, "tokens_per_minute": 5000}
    async with engine() as fake, router([fake], clients=clients(limits)) as r:
        answer = await ask(r, MESSAGES)
        assert answer.status_code == 200
        assert answer.headers["anthropic-ratelimit-requests-limit"] == "1"
        assert answer.headers["anthropic-ratelimit-requests-remaining"] == "0"
        assert answer.headers["anthropic-ratelimit-tokens-limit"] == "5000"
        assert answer.headers["anthropic-ratelimit-requests-reset"].endswith("Z")
        assert "x-ratelimit-limit-requests" not in answer.headers
        refused = await ask(r, MESSAGES)
        assert refused.status_code == 429
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert "requests_per_minute" in refused.json()["error"]["message"]
        assert refused.headers["anthropic-ratelimit-requests-remaining"] == "0"


async def test_a_prompt_longer_than_the_limit_is_refused_without_a_time_to_come_back(router, clients) -> None:
    async with engine() as fake, router([fake], clients=clients({"tokens_per_minute": 20})) as r:
        refused = await ask(r)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "tokens_per_minute")
        assert "retry-after" not in refused.headers
        assert (await ask(r, prompt="Hi", max_tokens=4)).status_code == 200


async def test_a_prompt_that_cannot_fit_is_not_tokenised_to_know_that(router, clients) -> None:
    limits, remote = {"tokens_per_minute": 1000}, {"tokenizers": {}}
    async with engine() as fake, router([fake], clients=clients(limits), **remote) as r:
        await eventually(lambda: fake.seen("/tokenize"))
        asked = len(fake.seen("/tokenize"))
        refused = await ask(r, prompt="word " * 10_000)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "tokens_per_minute")
        assert len(fake.seen("/tokenize")) == asked
        assert (await ask(r)).status_code == 200


async def test_budget_and_usage_go_on_after_a_restart(router, clients, tmp_path) -> None:
    section = clients({"budget_per_day": 1000}, usage_file=str(tmp_path / "usage.db"), prices={"cached": 1.0})
    async with engine() as fake:
        async with router([fake], clients=section) as r:
            used = (await ask(r)).json()["usage"]
            await eventually(lambda: idle(r))
            spent = ledger(r).used_today("acme")
            assert spent == used["prompt_tokens"] + 4 * used["completion_tokens"]
        async with router([fake], clients=section) as r:
            assert ledger(r).used_today("acme") == spent
            for _ in range(20):
                answer = await ask(r)
                if answer.status_code == 429:
                    break
                await eventually(lambda: idle(r))
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "budget_per_day")
            rest_s = 86_400 - SystemClock.wall() % 86_400
            assert abs(int(answer.headers["retry-after"]) - rest_s) <= 5


async def test_usage_is_read_by_day_tenant_and_model(router, clients) -> None:
    limits = {"concurrent": 5}
    async with engine() as fake, router([fake], clients=clients(limits)) as r:
        used = [(await ask(r)).json()["usage"] for _ in range(3)]
        await ask(r, key="f", path=CHAT)
        assert (await ask(r, model="unknown")).status_code == 404
        await eventually(lambda: idle(r))
        rows = (await r.admin.get("/admin/usage")).raise_for_status().json()["usage"]
        assert [(row["tenant"], row["model"], row["requests"], row["refused"]) for row in rows] == [
            ("acme", "", 0, {"not_found": 1}),
            ("acme", MODEL, 3, {}),
            ("free", MODEL, 1, {}),
        ]
        cached = sum(one["prompt_tokens_details"]["cached_tokens"] for one in used)
        assert rows[1]["cached_tokens"] == cached > 0
        assert rows[1]["input_tokens"] == sum(one["prompt_tokens"] for one in used) - cached
        assert rows[1]["output_tokens"] == sum(one["completion_tokens"] for one in used)
        assert rows[1]["gpu_s"] > 0
        text = (await r.admin.get("/admin/usage", params={"format": "csv"})).text
        assert len(text.splitlines()) == 4


@pytest.fixture
def replicas(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The sections `replicas` of three routers."""
    monkeypatch.setenv("WARMROUTE_TEST_REPLICAS", "0123456789abcdef" * 2)
    ports = free_ports(3)
    common = {"peers": [f"127.0.0.1:{port}" for port in ports], "secret_env": "WARMROUTE_TEST_REPLICAS"}
    return [common | {"host": "127.0.0.1", "port": port} for port in ports]


async def test_three_routers_exceed_a_limit_by_what_they_have_not_told_and_never_by_more(
    router, clients, replicas
) -> None:
    limit, section = 30, clients({"requests_per_minute": 30})
    a, b, c = replicas
    async with (
        engine() as fake,
        router([fake], clients=section, replicas=a) as one,
        router([fake], clients=section, replicas=b) as two,
        router([fake], clients=section, replicas=c) as three,
    ):
        group = [one, two, three]
        heard = lambda: all(sum(report.up for report in r.app.status.describe_replicas()) == 2 for r in group)  # noqa: E731
        await eventually(heard)
        at_once = await asyncio.gather(*(ask(r, max_tokens=1) for r in group for _ in range(8)))
        assert {answer.status_code for answer in at_once} == {200}
        await eventually(lambda: all(requests_left(r) == limit - 24 for r in group))
        answers = await asyncio.gather(*(ask(r, max_tokens=1) for r in group for _ in range(20)))
        admitted = 24 + sum(answer.status_code == 200 for answer in answers)
        assert limit <= admitted <= limit + 2 * (limit - 24), "what each had left when none had told the others"
        await eventually(lambda: all(requests_left(r) == 0 for r in group))
        assert {(await ask(r)).status_code for r in group} == {429}


def requests_left(router: Router) -> int:
    state = ledger(router).state("acme", router.app.core.config.clients.service_classes["small"].limits)
    return int(state.requests.remaining)


async def test_workers_share_limits_and_usage_and_a_restart_goes_on(
    router_process, fleet_config, clients, tmp_path
) -> None:
    section = clients({"requests_per_minute": 12, "budget_per_day": 1e9}, usage_file=str(tmp_path / "usage.db"))
    async with engine() as fake:
        config = fleet_config([fake], clients=section, workers=3)
        async with router_process(config) as r:
            await all_up(r)
            statuses: Counter[int] = Counter()
            for _ in range(24):
                async with r.client() as http:  # a connection of its own, of any worker
                    body = {"model": MODEL, "prompt": WORDS, "max_tokens": 1}
                    statuses[(await http.post(COMPLETIONS, json=body, headers=KEY)).status_code] += 1
            assert 12 <= statuses[200] <= 14, "one or two more, which another worker was not told of yet"
            async with asyncio.timeout(PATIENCE_S):
                while await usage_requests(r) < statuses[200]:  # noqa: ASYNC110  followers tell it every second
                    await asyncio.sleep(0.05)
        store = UsageStore(str(tmp_path / "usage.db"))
        assert sum(row.requests for row in store.read(0, 10**6)) == statuses[200]
        store.close()


async def usage_requests(router: RouterClient) -> int:
    rows = (await router.admin.get("/admin/usage")).raise_for_status().json()["usage"]
    return sum(int(row["requests"]) for row in rows)
