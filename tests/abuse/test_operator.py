"""A careless operator, and names from strangers: files, admin bodies, error answers and the log."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.abuse.watch import loop_probe
from tests.e2e.conftest import MODEL, RouterProcess
from tests.fakes.engines import engine, eventually

MB = 1_000_000
STANDSTILL_MS = 50.0
ENOUGH_MS = STANDSTILL_MS / 2  # else it is tried again
LONGEST_ANSWER = 25_000  # bytes: 21 lines of 1,000 characters, and what JSON adds
FULL = 128 * 1024  # bytes of the largest admin body that is read
KNOWN = "scorers: [{name: random}]\n"


def filled(head: str, one: Callable[[int], str], size: int = FULL, tail: str = "") -> bytes:
    """`head`, as many of `one(0)`, `one(1)` ... as fit, and `tail`."""
    parts, left, n = [head], size - len(head) - len(tail) - 1, 0
    while (left := left - len(part := one(n))) >= 0:
        parts.append(part)
        n += 1
    return "".join([*parts, tail]).encode()


def bomb(lists: int, of: int = 10) -> str:
    """Aliases of aliases: `of` to the power of `lists` values."""
    layers = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}' if i else 'x'] * of)}]" for i in range(lists)]
    return "\n".join(layers)


POLICIES = {
    "scorers that exist": filled("scorers: [", lambda n: "{name: random},", tail="]"),
    "scorers that do not": filled("scorers: [", lambda n: f"{{name: s{n}}},", tail="]"),
    "scorers in lines": filled("scorers:\n", lambda n: f"- {{name: random, weight: {n}}}\n"),
    "unknown keys": filled(KNOWN, lambda n: f"k{n}: 1\n"),
    "one key again and again": filled(KNOWN, lambda n: "k: 1\n"),
    "keys that are no text": filled(KNOWN, lambda n: f"{n}: 1\n"),
    "tags": filled("scorers: [", lambda n: "!x y,", tail="]"),
    "parameters": filled("scorers: [{name: random,", lambda n: f"k{n}: 1,", tail="}]"),
    "a long name": filled("scorers: [{name: ", lambda n: "x", tail="}]"),
    "a long name of terminal escapes": filled('scorers: [{name: "', lambda n: "\\e[2J", tail='"}]'),
    "a long key": filled(KNOWN, lambda n: "x", tail=": 1"),
    "a comment": filled("scorer: 1 #", lambda n: "x"),
    "lists in lists": b"[" * FULL,
    "mappings in mappings": filled("", lambda n: "{a: "),
    "keys in keys": filled("", lambda n: "? "),
    "blocks in blocks": filled("", lambda n: " " * n + "a:\n"),
    "an alias bomb": (KNOWN + bomb(9)).encode(),
    "an alias bomb of 250 lists": (KNOWN + bomb(250, 2)).encode(),
    "aliases of one long list": filled(KNOWN + f"a: &a [{'x,' * 999}x]\nb: [", lambda n: "*a,", tail="]"),
    "filters": filled(KNOWN + "filters: [", lambda n: "{name: max_waiting},", tail="]"),
    "no text": b"\xff\xfe" * 1000,
    "NUL": b"scorers: \0",
    "more than is read": b"#" * (MB),
}
SEVERAL = {
    "many policies": filled("", lambda n: f"p{n}: {{scorers: [{{name: random}}]}}\n"),
    "many wrong policies": filled("", lambda n: f"p{n}: {{scorers: [{{name: s{n}}}]}}\n"),
    "many names that are none": filled("", lambda n: f"p {n}: {{scorers: [{{name: random}}]}}\n", 20_000),
}
EXPERIMENTS = {
    "many arms": filled("unit: session\narms: {", lambda n: f"a{n}: 1,", tail="}"),
    "many shadows": filled("unit: session\narms: {warm: 100}\nshadows: [", lambda n: f"a{n},", tail="]"),
    "one shadow again and again": filled("arms: {warm: 100}\nshadows: [", lambda n: "random,", tail="]"),
}
FLEETS = {
    "unknown keys": filled("", lambda n: "- {k: 1}\n", 2 * MB),
    "engines without end": filled("", lambda n: f"- {{url: 'http://10.0.0.1:{n}'}}\n", 8 * MB),
    "4,900 wrong engines": filled("", lambda n: "- {k: 1}\n", 44_100),
    "an alias bomb": bomb(9).encode(),
}
MANY_ENGINES = "".join(f"- {{url: 'http://127.0.1{n // 250}.{n % 250}:1', name: e{n}}}\n" for n in range(2_000))
LARGEST = "\n".join(f"p{n}: {{scorers: [{{name: queue_depth}}, {{name: kv_usage, weight: 2}}]}}" for n in range(200))


@asynccontextmanager
async def started(
    router_process: Any, fleet_config: Any, options: dict[str, Any] | None = None, **sections: Any
) -> AsyncIterator[RouterProcess]:
    """A router in front of one engine with these options."""
    async with engine(**(options or {})) as fake, router_process(fleet_config([fake], **sections)) as running:
        yield running


async def put(router: RouterProcess, path: str, body: bytes) -> httpx.Response:
    return await router.admin.put(path, content=body, timeout=60.0)


def trouble(router: RouterProcess) -> str | None:
    """Return why the list of engines is out of date; None when it is not."""
    answer = httpx.get(f"{router.admin_url}/admin/instances").json()
    return str(found) if (found := answer["discovery"]["file"]) else None


def cases() -> Iterator[tuple[str, str, bytes]]:
    for name, body in POLICIES.items():
        yield name, "/admin/policies/p", body
    for name, body in SEVERAL.items():
        yield name, "/admin/policies", body
    for name, body in EXPERIMENTS.items():
        yield name, "/admin/experiment", body


@pytest.mark.abuse
async def test_no_admin_body_stops_the_loop_or_keeps_memory(router_process, fleet_config, measured) -> None:
    async with started(router_process, fleet_config) as r, loop_probe(r.url) as probe:
        for _, path, body in cases():  # what the first ones of a kind load stays, once
            await put(r, path, body)
        before, logged = r.rss_bytes, len(r.log)
        longest_answer = refused = 0
        for name, path, body in cases():

            async def attack(path: str = path, body: bytes = body, name: str = name) -> None:
                nonlocal longest_answer, refused
                answer = await put(r, path, body)
                assert 400 <= answer.status_code < 500, (name, answer.text[:300])
                longest_answer, refused = max(longest_answer, len(answer.content)), refused + 1

            longest_ms = await probe.standstill_ms(attack, ENOUGH_MS)
            measured(f"admin body, {name}: the loop stands still", longest_ms, STANDSTILL_MS, "ms")
        numbers = count()

        async def largest() -> None:
            answer = await put(
                r, "/admin/policies", LARGEST.replace("weight: 2", f"weight: {3 + next(numbers)}").encode()
            )
            assert answer.status_code == 200, answer.text[:300]

        longest_ms = await probe.standstill_ms(largest, ENOUGH_MS)
        measured("200 policies: the loop stands still", longest_ms, STANDSTILL_MS, "ms")
        measured("admin bodies: longest answer", longest_answer, LONGEST_ANSWER, "bytes")
        measured("admin bodies: log per refusal", (len(r.log) - logged) / refused, LONGEST_ANSWER, "bytes")
        measured("admin bodies: memory kept", (r.rss_bytes - before) / MB, 30, "MB")


@pytest.mark.abuse
async def test_no_file_stops_the_loop_or_keeps_memory(router_process, fleet_config, measured, tmp_path: Path) -> None:
    """Policy files and a list of engines that change while the router runs."""
    folder, fleet = tmp_path / "policies", tmp_path / "fleet.yaml"
    folder.mkdir()
    (folder / "fine.yaml").write_text(KNOWN)
    async with engine() as fake:
        listed = f"- url: {fake.url}\n"
        fleet.write_text(listed)
        config = fleet_config([], fleet={"file": str(fleet), "file_poll_s": 0.1}, policies_dir=str(folder))
        async with router_process(config) as r, loop_probe(r.url) as probe:
            before = r.rss_bytes

            async def break_policy(body: bytes) -> None:
                logged = len(r.log)
                (folder / "bad.yaml").write_bytes(body)
                await eventually(lambda: b"policy change from files refused" in r.log[logged:], 30.0)
                (folder / "bad.yaml").unlink()
                await eventually(lambda: b"the error is fixed" in r.log[logged:], 30.0)
                assert len(r.log) - logged < LONGEST_ANSWER

            async def break_fleet(body: bytes) -> None:
                logged = len(r.log)
                fleet.write_bytes(body)
                await eventually(lambda: b"instance list not loaded" in r.log[logged:], 30.0)
                fleet.write_text(listed)
                await eventually(lambda: trouble(r) is None, 30.0)
                assert len(r.log) - logged < LONGEST_ANSWER

            async def grow_fleet() -> None:
                fleet.write_text(listed + MANY_ENGINES)
                await eventually(
                    lambda: r.log.count(b"instance e1999 joins") > r.log.count(b"instance e1999 leaves"), 60.0
                )
                fleet.write_text(listed)
                await eventually(
                    lambda: r.log.count(b"instance e1999 joins") == r.log.count(b"instance e1999 leaves"), 60.0
                )

            longest_ms = await probe.standstill_ms(grow_fleet, ENOUGH_MS)
            measured("2,000 engines: the loop stands still", longest_ms, STANDSTILL_MS, "ms")
            for what, attack, bodies in (("policy file", break_policy, POLICIES), ("engines", break_fleet, FLEETS)):
                for name, body in bodies.items():
                    longest_ms = await probe.standstill_ms(partial(attack, body), ENOUGH_MS)
                    measured(f"{what}, {name}: the loop stands still", longest_ms, STANDSTILL_MS, "ms")
            assert (await r.http.get("/ready")).status_code == 200
            measured("files: memory kept", (r.rss_bytes - before) / MB, 60, "MB")


WRONG = {
    "1,000 scorers that do not exist": filled("scorers: [", lambda n: f"{{name: s{n}}},", 20_000, "]"),
    "1,600 unknown keys": filled(KNOWN, lambda n: f"k{n}: 1\n", 20_000),
    "1,600 keys that are no text": filled(KNOWN, lambda n: f"{n}: 1\n", 20_000),
    "60 scorers with wrong parameters": filled("scorers: [", lambda n: f"{{name: random, p{n}: 1}},", 1_600, "]"),
    "a name of terminal escapes": POLICIES["a long name of terminal escapes"],
    "an alias bomb": POLICIES["an alias bomb of 250 lists"],
}


async def test_refused_bodies_get_short_answers_and_few_lines(router_process, fleet_config, measured) -> None:
    async with started(router_process, fleet_config) as r:
        for name, body in WRONG.items():
            logged = len(r.log)
            answer = await put(r, "/admin/policies/p", body)
            assert answer.status_code == 422, name
            measured(f"{name}: answer", len(answer.content), LONGEST_ANSWER, "bytes")
            await eventually(lambda: b"policy change from admin refused" in r.log[logged:])  # noqa: B023
            measured(f"{name}: log", r.log.count(b"\n", logged), 22, "lines")
        assert b"\x1b" not in r.log
        assert (await r.admin.get("/admin/policies")).json()["active"] == "warm"


async def test_names_that_clients_choose_come_back_short(router, measured) -> None:
    long = "m" * 5 * MB
    posts: list[tuple[str, Any, dict[str, str]]] = [
        *((path, {"model": long, "prompt": "x", "input": "x", "messages": [], "max_tokens": 1}, {})
          for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings")),
        ("/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": 1}, {"x-warmroute-policy": long[:60_000]}),
        ("/v1/" + long[:60_000], {}, {}),
        ("/v1/responses/" + "x" * 128 + "/cancel", {}, {}),
        ("/v1/chat/completions", {"model": MODEL, "messages": [], "stream_options": long}, {}),
        ("/v1/completions", {long: 1}, {}),
    ]  # fmt: skip
    async with engine() as fake, router([fake]) as r:
        for path, body, headers in posts:
            answer = await r.post(path, body, headers=headers)
            assert answer.status_code in (400, 403, 404), (path[:40], answer.status_code)
            assert len(answer.content) < 2_000, path[:40]
        answer = await r.post("/v1/completions", {"model": "\x1b[2J\nno", "prompt": "x"})
        assert "`\\x1b[2J\\nno`" in answer.json()["error"]["message"]


@pytest.mark.abuse
async def test_a_model_name_of_30_mb(router_process, fleet_config, measured) -> None:
    async with started(router_process, fleet_config) as r:
        body = json.dumps({"model": "m" * 30 * MB, "messages": []})
        answer = await r.http.post("/v1/chat/completions", content=body, timeout=60.0)
        assert answer.status_code == 404
        measured("a model name of 30 MB: answer", len(answer.content), 2_000, "bytes")


async def test_no_terminal_escape_reaches_the_log(router_process, fleet_config) -> None:
    paths = (
        "/admin/instances/%1b]0;owned%07%1b[2J/drain",
        "/admin/instances/x%0aERROR%20warmroute.admin:%20forged/drain",
        "/admin/instances/%c2%9b31m%e2%80%ae/undrain",
    )
    async with started(router_process, fleet_config) as r:
        for path in paths:
            assert (await r.admin.post(path)).status_code == 404
        await eventually(lambda: r.log.count(b"POST /admin/instances/") == len(paths))
        lines = r.log.decode().split("\n")
        assert all(line.isprintable() for line in lines), lines
        assert not any(line.startswith("ERROR") for line in lines)
        assert not any(" WARNING " in line for line in lines)  # nothing is open to other machines


async def test_the_start_warns_of_what_is_open(router_process, fleet_config) -> None:
    tokens = [{"name": "a", "hash": "a" * 64}]
    sections = {"listen": {"host": "0.0.0.0"}, "admin": {"host": "0.0.0.0", "tokens": tokens}}
    async with started(router_process, fleet_config, **sections) as r:
        lines = [line.partition("warmroute.app: ")[2] for line in r.log.decode().splitlines() if " WARNING " in line]
        names = [line.partition(":")[0] for line in lines]
        assert names == ["clients.keys_file", "listen.tls", "metrics.token_hash", "admin.host"]
