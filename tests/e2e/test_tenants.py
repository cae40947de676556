"""Tenants end to end: keys that change while the router runs, signed tokens, models, and caches that are kept apart."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from router.backends import client_keys
from router.request.public_paths import LOAD_ROUTED
from tests.fakes.engines import FakeEngine, engine, eventually
from tests.files import replace
from tests.patience import PATIENCE_S
from tests.router.tenants.issuer import AUDIENCE, ISSUER, Issuer

MODEL = "warm-tiny"
COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
PROBES = 400
AT_ONCE = 2  # so that a prompt seldom waits for another one, which would hide what its own takes
PROMPT_WORDS = 48  # some six blocks of the emulated engine

Answered = tuple[httpx.Response, float]


@pytest.fixture
def keys(tmp_path: Path) -> Callable[..., str]:
    """`keys(k1="search", k2="search")` writes the keys file and returns its name."""

    def write(**named: str) -> str:
        lines = [f"{hashlib.sha256(key.encode()).hexdigest()} {name}\n" for key, name in named.items()]
        file = tmp_path / "keys"
        replace(file, "".join(lines))
        return str(file)

    return write


def slip(file: str) -> None:
    replace(Path(file), "a slip of the editor")


def prompt(number: int, word: str = "fact") -> str:
    """A text that shares no block with one of another number."""
    return f"{number} {word} " * PROMPT_WORDS


async def complete(http: httpx.AsyncClient, key: str, text: str, **fields: Any) -> Answered:
    """Return the answer, and the seconds that it took."""
    body = {"model": MODEL, "prompt": text, "max_tokens": 1} | fields
    loop = asyncio.get_running_loop()
    began = loop.time()
    answer = await http.post(COMPLETIONS, json=body, headers={"authorization": f"Bearer {key}"})
    return answer, loop.time() - began


async def complete_all(http: httpx.AsyncClient, key: str, texts: Iterable[str], at_once: int) -> list[Answered]:
    """Send them all, `at_once` at a time; return the answers in order."""
    room = asyncio.Semaphore(at_once)

    async def one(text: str) -> Answered:
        async with room:
            return await complete(http, key, text)

    return list(await asyncio.gather(*(one(text) for text in texts)))


def cached(answer: httpx.Response) -> int:
    assert answer.status_code == 200, answer.text
    found: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


def advantage(of_victim: list[float], of_nobody: list[float]) -> float:
    """Return how often a value of the first list is below one of the second, ties as half (the area under the ROC
    curve): 0.5 tells an attacker nothing, 0 and 1 everything.
    """
    below = sum((a < b) + 0.5 * (a == b) for a in of_victim for b in of_nobody)
    return below / len(of_victim) / len(of_nobody)


class Learned:
    """What the answers to all probes say about which of the prompts somebody else has sent before."""

    def __init__(self, probes: list[Answered], victims: list[bool]) -> None:
        def tell(value: Callable[[Answered], float]) -> float:
            values = [(value(probe), mine) for probe, mine in zip(probes, victims, strict=True)]
            return advantage([v for v, mine in values if mine], [v for v, mine in values if not mine])

        targets = sorted({probe[0].headers["x-warmroute-target"] for probe in probes})
        self.by_hits = tell(lambda probe: -cached(probe[0]))
        self.by_time = tell(lambda probe: probe[1])
        self.by_target = tell(lambda probe: targets.index(probe[0].headers["x-warmroute-target"]))


async def attack(
    router: Any, isolation: str, keys: str, probes: int, tokens_per_s: int, at_once: int = AT_ONCE
) -> Learned:
    """A victim sends half of some prompts, drawn by chance. An attacker then probes all of them, in order."""
    drawn = Random(7).sample(range(probes), probes // 2)  # in turns, whatever changes in turns would show
    mine = [number in drawn for number in range(probes)]
    texts = [prompt(number) for number in range(probes)]
    timed = {"prefill_tokens_per_s": tokens_per_s, "blocks": 100_000}  # nothing is evicted
    clients = {"keys_file": keys, "isolation": isolation}
    async with engine(**timed) as a, engine(**timed) as b, router([a, b], clients=clients) as r:
        sent = [text for text, is_mine in zip(texts, mine, strict=True) if is_mine]
        await complete_all(r.http, "victim", sent, at_once)
        return Learned(await complete_all(r.http, "attacker", texts, at_once), mine)


async def test_an_attacker_learns_nothing_where_tenants_are_kept_apart(router: Any, keys: Any) -> None:
    learned = await attack(router, "tenant", keys(victim="victim", attacker="attacker"), PROBES, 20_000)
    assert learned.by_hits == 0.5
    assert learned.by_time == pytest.approx(0.5, abs=0.12)  # of 200 and 200 by chance: a deviation of 0.029
    assert learned.by_target == pytest.approx(0.5, abs=0.12)


async def test_the_attack_works_where_they_are_not(router: Any, keys: Any) -> None:
    """A prompt that is not cached takes some 0.2 s more, which shows on a busy machine too."""
    learned = await attack(router, "off", keys(victim="victim", attacker="attacker"), 40, 1_000, at_once=1)
    assert learned.by_hits == 1.0
    assert learned.by_time > 0.8


async def test_a_tenant_hits_its_own_cache_and_its_groups(router: Any, keys: Any) -> None:
    file = keys(a="a", b="b", c="c")
    groups = {"a": {"cache_group": "ab"}, "b": {"cache_group": "ab"}}
    async with engine() as e, router([e], clients={"keys_file": file, "isolation": "tenant", "tenants": groups}) as r:
        hits = [cached((await complete(r.http, key, prompt(1)))[0]) for key in ("a", "a", "b", "c", "c")]
        assert hits[0] == hits[3] == 0
        assert hits[1] == hits[2] == hits[4] > 0
        salted = await complete(r.http, "a", prompt(1), cache_salt="own")
        assert cached(salted[0]) == 0
        await r.hear()
        again = await complete(r.http, "a", prompt(1), cache_salt="own")
        assert cached(again[0]) > 0
        salts = [json.loads(seen.body)["cache_salt"] for seen in e.seen(COMPLETIONS)]
        assert "own" not in salts
        assert salts[-1] == salts[-2] != salts[0] == salts[1] == salts[2] != salts[3]
        record = await r.record(again[0])
        assert record["attempts"][0]["predicted_tokens"] == record["cached_tokens"]


async def test_a_response_is_its_tenants_alone(router: Any, keys: Any) -> None:
    clients = {"keys_file": keys(a="a", b="b"), "isolation": "tenant"}
    async with engine() as e, router([e], clients=clients) as r:
        a, b = ({"authorization": f"Bearer {name}"} for name in ("a", "b"))
        asked = {"model": MODEL, "input": "hello", "max_output_tokens": 1}
        stored = (await r.http.post(RESPONSES, json=asked, headers=a)).json()["id"]
        follow = asked | {"previous_response_id": stored}
        assert (await r.http.get(f"{RESPONSES}/{stored}", headers=a)).status_code == 200
        assert (await r.http.post(RESPONSES, json=follow, headers=a)).status_code == 200
        for refused in (
            await r.http.get(f"{RESPONSES}/{stored}", headers=b),
            await r.http.post(f"{RESPONSES}/{stored}/cancel", headers=b),
            await r.http.post(RESPONSES, json=follow, headers=b),
        ):
            assert (refused.status_code, refused.json()["error"]["code"]) == (404, "unknown_response")


async def test_sessions_of_two_tenants_are_two(router: Any, keys: Any) -> None:
    clients = {"keys_file": keys(a="a", b="b"), "isolation": "tenant"}
    policy = {"policies": {"p": {"scorers": [{"name": "session_affinity"}]}}, "active": "p"}
    async with engine() as e, engine() as f, router([e, f], clients=clients, **policy) as r:
        sessions = []
        for key in ("a", "b"):
            headers = {"authorization": f"Bearer {key}", "x-session-id": "same"}
            answer = await r.http.post(COMPLETIONS, json={"model": MODEL, "prompt": "x"}, headers=headers)
            sessions.append((await r.record(answer))["session"])
        assert len(set(sessions)) == 2


async def test_keys_are_read_again_while_the_router_runs(
    router: Any, keys: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client_keys, "POLL_S", 0.02)
    caplog.set_level("INFO", "warmroute.clients")
    file = keys(old="search")
    async with engine() as e, router([e], clients={"keys_file": file}) as r:

        async def status(key: str) -> int:
            return (await complete(r.http, key, "x"))[0].status_code

        assert await status("old") == 200
        keys(old="search", new="search")  # both, while clients change over
        await eventually(lambda: "the changed keys are in use" in caplog.text)
        assert (await status("old"), await status("new")) == (200, 200)
        slip(file)
        await eventually(lambda: "the keys read before stay in use" in caplog.text)
        assert await status("old") == 200
        keys(new="search")
        await eventually(lambda: caplog.text.count("the changed keys are in use") == 2)
        assert (await status("old"), await status("new")) == (401, 200)
        assert caplog.text.count("the keys read before stay in use") == 1


async def test_models_and_tokens_and_a_proxys_word(router: Any, tmp_path: Path) -> None:
    issuer = Issuer(class_claim="plan")
    jwks = tmp_path / "jwks.json"
    jwks.write_bytes(issuer.jwks())
    clients = {
        "jwt": {"issuer": ISSUER, "audience": AUDIENCE, "jwks_file": str(jwks), "class_claim": "plan"},
        "tenant_header": "x-tenant",
        "service_classes": {"none": {"models": ["other-*"]}},
    }
    listen = {"host": "127.0.0.1", "port": 0, "trusted_proxies": ["127.0.0.1/32"]}
    async with engine() as e, router([e], clients=clients, listen=listen) as r:

        async def ask(**headers: str) -> httpx.Response:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
            return await r.http.post(CHAT, json=body, headers=named)

        served = await ask(authorization=f"Bearer {issuer.token('team')}")
        assert served.status_code == 200
        assert (await r.record(served))["client"] == "team"
        refused = await ask(authorization=f"Bearer {issuer.token('team', plan='none')}")
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "model_not_allowed")
        named = await ask(x_tenant="by-proxy")
        assert (await r.record(named))["client"] == "by-proxy"
        assert not {"authorization", "x-tenant"} & set(e.seen(CHAT)[-1].headers)
        assert (await ask()).status_code == 401


NO_NAMES = ["{}", '{"model": null}', '{"model": 5}', '{"model": ""}', '{"model": ["warm-tiny"]}', "[]", '"text"', ""]
PLACED_BY_LOAD = sorted((*LOAD_ROUTED, "/v1/audio/transcriptions"))


@pytest.mark.parametrize("body", NO_NAMES)
async def test_a_request_that_names_no_model_reaches_only_engines_that_its_tenant_may_use(
    router: Any, keys: Any, body: str
) -> None:
    extra = [{"method": "POST", "path": "/v1/audio/transcriptions"}]
    clients = {"keys_file": keys(k="narrow"), "service_classes": {"default": {"models": [MODEL]}}}
    more = {"clients": clients, "edge": {"extra_endpoints": extra}}
    kinds = ["application/json", "text/plain", "application/octet-stream"]
    async with engine() as mine, engine(model="secret") as secret, router([mine, secret], **more) as r:
        for path in (*PLACED_BY_LOAD, COMPLETIONS, CHAT, RESPONSES):
            for kind in kinds:
                for _ in range(2):  # placed by load, one of two would reach the other engine
                    headers = {"authorization": "Bearer k", "content-type": kind}
                    answer = await r.http.post(path, content=body, headers=headers)
                    assert answer.status_code == 400, (path, kind, answer.text)
                    assert "secret" not in answer.text
        assert not received(secret, body)
    async with engine(model="secret") as secret, router([secret], **more) as r:
        for path in PLACED_BY_LOAD:
            answer = await r.http.post(path, content=body, headers={"authorization": "Bearer k"})
            assert answer.status_code in (400, 403), (path, answer.text)
        assert not received(secret, body)


async def test_where_one_model_is_served_a_tenant_that_may_use_it_need_not_name_it(router: Any, keys: Any) -> None:
    clients = {"keys_file": keys(k="narrow"), "service_classes": {"default": {"models": [MODEL]}}}
    async with engine() as e, router([e], clients=clients) as r:
        for body in ({"input": "x"}, {"input": "x", "model": None}, {"input": "x", "model": ""}):
            answer = await r.http.post("/v1/embeddings", json=body, headers={"authorization": "Bearer k"})
            assert answer.status_code == (await ask_engine(e, body)).status_code == 200


def received(fake: FakeEngine, body: str) -> list[str]:
    """Return the paths at which the engine got this body: the router's own proofs have others."""
    return [path for path in PLACED_BY_LOAD for one in fake.seen(path) if one.body == body.encode()]


async def ask_engine(fake: FakeEngine, body: Any) -> httpx.Response:
    async with httpx.AsyncClient(timeout=PATIENCE_S) as http:
        return await http.post(f"{fake.url}/v1/embeddings", json=body)
