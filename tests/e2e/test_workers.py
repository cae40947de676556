"""Several worker processes on one port: one router, whoever of them is asked."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import httpx
import pytest

from router.features.decision_log.format import LoggedRecord
from router.features.decision_log.reader import UnreadableLine, find_files, read
from tests.e2e.chats import PATH, Chat, beside, crowd
from tests.e2e.conftest import MODEL, ROOT, Json, RouterProcess
from tests.e2e.test_lifecycle import command
from tests.e2e.workers import (
    Clients,
    alive,
    all_up,
    by_worker,
    nothing_under_way,
    run_of,
    say,
    until,
    workers,
)
from tests.fakes.engines import FakeEngine, engine, eventually
from tests.patience import PATIENCE_S

SLOW = {"decode_ms_per_token": 20}
SESSIONS = {"warm": {"scorers": [{"name": "session_affinity"}]}}
LEAST = {"warm": {"scorers": [{"name": "least_requests"}]}}
OTHER = {"scorers": [{"name": "random"}]}
HIT_SHARE = 0.885  # of the chats below, from their second turn on, with one worker


# one router


async def test_counters_records_and_models_are_of_all_workers(router_process, fleet_config) -> None:
    async with engine() as a, engine() as b, router_process(fleet_config([a, b], workers=2)) as r:
        await all_up(r)
        async with Clients(r) as clients:
            before = await r.metric("warmroute_requests_total")
            said = [await say(client, f"question {n}") for client in clients.each for n in range(5)]
            assert sorted(by_worker(said).values()) == [5, 5]
            for client in clients.each:  # whichever is asked
                assert await asked(client, "warmroute_requests_total") == before + 10
            shown = {record["id"] for record in await r.records(limit=10)}
            assert shown == {one.record for one in said}
            for one in said:
                assert (await r.record(one.record))["target"] == one.target
                found = (await r.admin.get("/admin/records", params={"id": one.record, "target": one.target})).json()
                assert one.record in {record["id"] for record in found["records"]}
            latest = await r.records(limit=3)
            since = (await r.admin.get("/admin/records", params={"since": latest[-1]["at_wall_s"]})).json()
            assert since["records"] == latest
            assert (await r.admin.get("/admin/records/ffffffff-1")).status_code == 404
        await until(lambda: nothing_under_way(r))


async def test_every_worker_knows_an_alias_of_one_model(router_process, fleet_config) -> None:
    async with engine() as a, router_process(fleet_config([a], workers=2, models={"chat": {"to": MODEL}})) as r:
        await all_up(r)
        async with Clients(r) as clients:
            body = {"model": "chat", "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 1}
            answers = [await client.post(PATH, json=body) for client in clients.each]
            assert [(answer.status_code, answer.json()["model"]) for answer in answers] == [(200, "chat")] * 2


async def test_a_router_whose_workers_never_start_stops_when_it_is_told_to(tmp_path: Path, fleet_config) -> None:
    crash = "import os, sys\nif 'router.cli.worker' in sys.orig_argv: os._exit(3)\n"
    (tmp_path / "sitecustomize.py").write_text(crash)
    (tmp_path / "router.yaml").write_text(json.dumps(fleet_config(["http://127.0.0.1:1"], workers=2)))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router", "serve", "--config", str(tmp_path / "router.yaml")),
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    async with asyncio.timeout(PATIENCE_S):
        while b"ended with status 3" not in (line := await process.stderr.readline()):
            assert line, "it has ended"
        process.terminate()
        rest = await process.stderr.read()
        assert await process.wait() == 0
    assert b"stopped while starting" in rest


def slow_down(factor: float, *engines: FakeEngine) -> None:
    """Let each step take `factor` times as long: an answer lasts until something was seen to happen meanwhile."""
    for each in engines:
        each.faults(slow=factor)


async def test_everybody_books_on_the_same_load(router_process, fleet_config) -> None:
    """Two slow answers by one worker; the next, by the other, goes where it is empty."""
    async with engine(**SLOW) as a, engine(**SLOW) as b:
        config = fleet_config([a, b], workers=2, policies=LEAST)
        async with router_process(config) as r:
            await all_up(r)
            async with Clients(r) as clients:
                one, other = clients.each
                long = {"ignore_eos": True, "max_tokens": 40}
                for _ in range(3):
                    slow_down(100, a, b)
                    async with beside(say(one, "first", **long)) as first:
                        await until(lambda: booked(r, 1))
                        async with beside(say(other, "second", **long)) as second:
                            await until(lambda: booked(r, 2))
                            slow_down(1, a, b)
                            told = await asyncio.gather(first, second)
                            assert len({said.target for said in told}) == 2


async def asked(client: httpx.AsyncClient, metric: str) -> float:
    """The sum of all samples, as the worker of this connection tells it."""
    page = (await client.get("/metrics")).raise_for_status().text
    return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(f"{metric}{{"))


async def booked(router: RouterProcess, requests: int) -> bool:
    return await router.metric("warmroute_target_requests") == requests


async def test_a_session_keeps_its_target_from_worker_to_worker(router_process, fleet_config) -> None:
    async with engine() as a, engine() as b, engine() as c:
        config = fleet_config([a, b, c], workers=2, policies=SESSIONS)
        async with router_process(config) as r:
            await all_up(r)
            async with Clients(r) as clients:
                homes = set()
                for n in range(12):
                    session = f"agent {n}"
                    await until(lambda session=session: at_home(clients, session))  # words may cross in the beginning
                    targets = {(await say(client, "go on", session=session)).target for client in clients.each * 2}
                    assert len(targets) == 1, f"{session} went to {targets}"
                    homes |= targets
                assert len(homes) > 1


async def at_home(clients: Clients, session: str) -> bool:
    """It goes to one target, by whichever worker."""
    return len({(await say(client, "go on", session=session)).target for client in clients.each}) == 1


async def test_a_stored_response_is_found_by_every_worker(router_process, fleet_config) -> None:
    async with engine() as a, engine() as b, router_process(fleet_config([a, b], workers=2)) as r:
        await all_up(r)
        async with Clients(r) as clients:
            for asker, finder in (clients.each, clients.each[::-1]):
                made = await asker.post("/v1/responses", json={"model": MODEL, "input": "remember", "store": True})
                stored = f"/v1/responses/{made.json()['id']}"
                await until(lambda finder=finder, stored=stored: known(finder, stored))
                assert (await finder.get(stored)).headers["x-warmroute-target"] == made.headers["x-warmroute-target"]


async def known(client: httpx.AsyncClient, stored: str) -> bool:
    return "x-warmroute-target" in (await client.get(stored)).headers


# the operator


async def test_a_switch_is_in_force_in_every_worker_when_it_is_answered(router_process, fleet_config) -> None:
    async with engine() as a, router_process(fleet_config([a], workers=3)) as r:
        before = [one["policies"] for one in await all_up(r)]
        assert before == [before[0]] * 3
        answer = await r.admin.put("/admin/policies/other", json=OTHER, params={"activate": True})
        assert answer.status_code == 200
        after = await workers(r)
        assert [one["policies"] for one in after] == [after[0]["policies"]] * 3
        assert list(after[0]["policies"]) == ["other"]
        assert [one["trouble"] for one in after] == [None] * 3
        async with Clients(r) as clients:
            for client in clients.each:
                record = await r.record((await say(client, "who decides?")).record)
                assert record["attempts"][0]["policy"] == "other"
        await r.admin.post("/admin/undo")
        assert [one["policies"] for one in await workers(r)] == before


@pytest.mark.parametrize("watch", [True, False])
async def test_changes_of_the_files_are_in_force_in_every_worker(router_process, fleet_config, tmp_path, watch) -> None:
    """As soon as they are seen, or at SIGHUP."""
    async with engine() as a:
        config = fleet_config([a], workers=2, policies={"other": OTHER}, watch=watch)
        async with router_process(config) as r:
            await all_up(r)
            file = tmp_path / "router.yaml"
            file.write_text(json.dumps(json.loads(file.read_text()) | {"active": "other"}))
            if not watch:
                r.process.send_signal(signal.SIGHUP)
            await until(lambda: all_follow(r, "other"))


async def all_follow(router: RouterProcess, policy: str) -> bool:
    return all(list(one["policies"]) == [policy] for one in await workers(router))


async def test_draining_holds_in_every_worker_and_in_one_that_comes_later(router_process, fleet_config) -> None:
    async with engine(name="a") as a, engine(name="b") as b:
        fleet = [{"url": a.url, "name": "a"}, {"url": b.url, "name": "b"}]
        async with router_process(fleet_config(fleet, workers=2)) as r:
            found = await all_up(r)
            assert (await r.admin.post("/admin/instances/a/drain")).status_code == 200
            async with Clients(r) as clients:
                said = [await say(client, f"{n}") for client in clients.each for n in range(6)]
            assert {one.instance for one in said} == {"b"}
            os.kill(found[1]["pid"], signal.SIGKILL)
            await all_up(r, but=[found[1]["pid"]])
            async with Clients(r) as clients:
                said = [await say(client, f"{n} again") for client in clients.each for n in range(6)]
                assert {one.instance for one in said} == {"b"}
                assert (await r.admin.post("/admin/instances/a/undrain")).status_code == 200
                await until(lambda: seen_at(clients, "a"))


async def seen_at(clients: Clients, instance: str) -> bool:
    said = [await say(client, os.urandom(8).hex()) for client in clients.each]
    return all(one.instance == instance for one in said) or {one.instance for one in said} == {"a", "b"}


async def test_an_experiment_counts_the_requests_of_all_workers(router_process, fleet_config) -> None:
    experiment: Json = {"arms": {"warm": 50, "other": 50}, "unit": "request"}
    policies = SESSIONS | {"other": OTHER}
    async with engine() as a, engine() as b:
        config = fleet_config([a, b], workers=2, policies=policies)
        async with router_process(config) as r:
            await all_up(r)
            assert (await r.admin.put("/admin/experiment", json=experiment)).status_code == 200
            async with Clients(r) as clients:
                await until(lambda: nothing_under_way(r))
                probes = int(await r.metric("warmroute_arm_requests_total"))
                said = [await say(client, f"{n}") for client in clients.each for n in range(20)]
                assert sorted(by_worker(said).values()) == [20, 20]
                await until(lambda: counted(r, probes + 40))
                arms = {(await r.record(one.record))["arm"] for one in said if run_of(one) != run_of(said[0])}
                assert arms == {"warm", "other"}
            await until(lambda: units_counted(r, probes + 40))


async def counted(router: RouterProcess, requests: int) -> bool:
    """That are over, as far as the trial has heard: it does a moment after the client."""
    report = (await router.admin.get("/admin/experiment")).json()["report"]
    return sum(arm["requests"] for arm in report["arms"]) == requests


async def units_counted(router: RouterProcess, units: int) -> bool:
    report = (await router.admin.get("/admin/experiment")).json()["report"]
    return sum(arm["units_closed"] for arm in report["arms"]) == units


# bad days


async def test_a_follower_that_is_killed_takes_only_its_own_streams_along(router_process, fleet_config) -> None:
    async with engine(**SLOW) as a, engine(**SLOW) as b, router_process(fleet_config([a, b], workers=2)) as r:
        leader, follower = await all_up(r)
        long = {"ignore_eos": True, "max_tokens": 60}
        async with Clients(r) as clients:
            staying, dying = clients.by_run[leader["run"]], clients.by_run[follower["run"]]
            endless = say(dying, "I go", ignore_eos=True, max_tokens=2_000)
            slow_down(100, a, b)
            async with beside(say(staying, "I stay", **long)) as stays, beside(endless) as goes:
                await until(lambda: booked(r, 2))
                counted = await r.metric("warmroute_requests_total")
                os.kill(follower["pid"], signal.SIGKILL)
                with pytest.raises(httpx.TransportError):
                    await goes
                await until(lambda: booked(r, 1))
                slow_down(1, a, b)
                assert (await stays).ok
            assert await r.metric("warmroute_requests_total") >= counted, "a counter must not fall"
        _, again = await all_up(r, but=[follower["pid"]])
        assert again["run"] != follower["run"]
        async with Clients(r) as clients:
            assert all([(await say(client, "well?")).ok for client in clients.each])
        await until(lambda: nothing_under_way(r))
        await eventually(lambda: a.gauges().running + b.gauges().running == 0)


async def is_on_duty(router: RouterProcess, pid: int) -> bool:
    return any(one["on_duty"] and one["pid"] == pid for one in await workers(router))


async def test_a_start_is_in_the_audit_log_once_whoever_has_the_duties(router_process, fleet_config, tmp_path) -> None:
    file = tmp_path / "audit.jsonl"
    async with (
        engine() as a,
        router_process(fleet_config([a], workers=2, admin={"audit_file": str(file)})) as r,
    ):
        first, other = await all_up(r)
        assert first["on_duty"]
        assert [entry["what"] for entry in (await r.admin.get("/admin/audit")).json()["entries"]] == ["start"]
        await eventually(lambda: file.read_text().count('"start"') == 1)
        os.kill(first["pid"], signal.SIGKILL)
        await until(lambda: is_on_duty(r, other["pid"]))
        await all_up(r, but=[first["pid"]])
        assert file.read_text().count('"start"') == 1


async def test_sigterm_lets_the_streams_of_every_worker_finish(router_process, fleet_config) -> None:
    async with engine(**SLOW) as a, router_process(fleet_config([a], workers=2)) as r:
        found = await all_up(r)
        async with Clients(r) as clients:
            leading = clients.by_run[found[0]["run"]]  # has more to do, so the other ends first
            tokens = {client: 80 if client is leading else 30 for client in clients.each}
            talks = [say(client, "a story", max_tokens=most, ignore_eos=True) for client, most in tokens.items()]
            slow_down(100, a)
            async with beside(talks[0]) as one, beside(talks[1]) as other:
                await until(lambda: booked(r, 2))
                r.process.send_signal(signal.SIGTERM)
                slow_down(1, a)
                told = await asyncio.gather(one, other)
        assert [said.ok for said in told] == [True, True]
        assert len(by_worker(told)) == 2
        assert await asyncio.wait_for(r.process.wait(), PATIENCE_S) == 0
        assert not any(alive(one["pid"]) for one in found)
        assert b"Traceback" not in r.log
        assert r.errors == []
        assert b"starting it again" not in r.log


async def test_workers_end_with_their_supervisor_and_finish_what_they_have(router_process, fleet_config) -> None:
    async with engine(**SLOW) as a, router_process(fleet_config([a], workers=2)) as r:
        found = await all_up(r)
        async with Clients(r) as clients:
            client = clients.by_run[found[1]["run"]]
            slow_down(100, a)
            async with beside(say(client, "go on", max_tokens=40, ignore_eos=True)) as talk:
                await until(lambda: booked(r, 1))
                r.process.kill()
                await eventually(lambda: b"the channel to the supervisor closed" in r.log)
                await until(lambda: refused(r))  # the port is free for who comes next
                slow_down(1, a)
                assert (await talk).ok
        await eventually(lambda: not any(alive(one["pid"]) for one in found))


async def test_no_worker_serves_its_own_metrics_for_those_of_all(router_process, fleet_config) -> None:
    async with engine() as a, router_process(fleet_config([a], workers=2)) as r:
        await all_up(r)
        r.process.send_signal(signal.SIGSTOP)
        try:
            async with r.client() as client:
                answer = await client.get("/metrics")
        finally:
            r.process.send_signal(signal.SIGCONT)
        error = answer.json()["error"]
        assert (answer.status_code, error["type"]) == (500, "server_error")
        assert "the supervisor, which sums the workers' metrics, does not reply" in error["message"]
        await until(lambda: booked(r, 0))  # the next page is a whole one


async def refused(router: RouterProcess) -> bool:
    """Return whether nobody accepts connections."""
    async with router.client() as client:
        try:
            await client.get("/health")
        except httpx.ConnectError:
            return True
    return False


async def test_a_port_that_another_router_shares_is_in_use(router_process, fleet_config, tmp_path) -> None:
    async with engine() as a, router_process(fleet_config([a], workers=2)) as r:
        port = int(r.url.rpartition(":")[2])
        second = fleet_config([a], workers=2, listen={"port": port})
        with pytest.raises(AssertionError, match=f"port {port} is in use"):
            async with router_process(second):
                pass


@pytest.mark.parametrize("workers", [1, 2])
async def test_chats_hit_whichever_worker_they_come_by(router_process, fleet_config, workers) -> None:
    """Every turn on a connection of its own, so on whichever worker the kernel chooses: each is the hit that it is
    with one worker, and no worker expects more than there is.
    """
    async with engine() as a, engine() as b, router_process(fleet_config([a, b], workers=workers)) as r:
        await all_up(r)
        chats = [Chat(r, f"chat {n}") for n in range(6)]
        said = []
        for _ in range(4):
            said += await crowd(chats, 1)
            await r.http.aclose()
            r.http = r.client()
        assert [one for one in said if not one.ok] == []
        assert len(by_worker(said)) == workers
        records = [await r.record(one.record) for one in said[len(chats) :]]
        missing = [record["cached_tokens"] - record["attempts"][-1]["predicted_tokens"] for record in records]
        assert min(missing) == 0  # the events of the last turn come late to one worker or another, on a busy machine
        assert missing.count(0) > len(missing) / 2
        share = sum(record["cached_tokens"] for record in records) / sum(record["prompt_tokens"] for record in records)
        assert share == pytest.approx(HIT_SHARE, abs=0.01)


async def test_the_ledgers_of_all_workers_are_read_as_one(router_process, fleet_config, tmp_path) -> None:
    folder = tmp_path / "decision_log"
    async with engine() as a, engine() as b:
        config = fleet_config([a, b], workers=2, records={"decision_log": {"folder": str(folder)}})
        async with router_process(config) as r:
            await all_up(r)
            async with Clients(r) as clients:
                said = [await say(client, f"{n}") for client in clients.each for n in range(8)]
            r.process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(r.process.wait(), PATIENCE_S) == 0
    entries = list(read([folder]))
    assert not any(isinstance(entry, UnreadableLine) for entry in entries)
    written = {entry.id for entry in entries if isinstance(entry, LoggedRecord)}
    assert {one.record for one in said} <= written
    assert len(find_files([folder])) == 2
    replayed = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router", "replay", str(folder)), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await replayed.communicate()
    assert replayed.returncode == 0, out.decode()


async def test_a_follower_that_comes_later_knows_where_sessions_are(router_process, fleet_config) -> None:
    async with engine() as a, engine() as b, engine() as c:
        config = fleet_config([a, b, c], workers=2, policies=SESSIONS)
        async with router_process(config) as r:
            _, follower = await all_up(r)
            async with Clients(r) as clients:
                client = clients.by_run[follower["run"]]
                homes = {n: (await say(client, "go on", session=f"agent {n}")).target for n in range(12)}
            assert len(set(homes.values())) > 1
            await until(lambda: nothing_under_way(r))  # the follower is asked: what it had to tell went out before
            os.kill(follower["pid"], signal.SIGKILL)
            _, again = await all_up(r, but=[follower["pid"]])
            async with Clients(r) as clients:
                client = clients.by_run[again["run"]]
                assert {n: (await say(client, "go on", session=f"agent {n}")).target for n in homes} == homes


async def test_workers_are_an_option_too_and_what_the_file_says_is_one(tmp_path, fleet_config) -> None:
    file = tmp_path / "router.yaml"
    async with engine() as a:
        file.write_text(json.dumps(fleet_config([a])))
        async with command("serve", "--config", file, "--workers", "2") as process:
            assert process.stderr is not None
            async with asyncio.timeout(PATIENCE_S):
                told = (await process.stderr.readuntil(b"accepts connections")).decode()
            assert "worker 0" in told
            process.send_signal(signal.SIGINT)
            assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
