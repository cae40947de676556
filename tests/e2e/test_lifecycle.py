"""Starting, changing, stopping: real processes, real signals, exit codes and what is left behind (nothing)."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from router.fleet.instance import InstanceState
from tests.e2e.chats import PATH, Chat, ask, beside, crowd
from tests.e2e.conftest import MODEL, ROOT, TOKENIZER, WARM, Json, Router, RouterProcess
from tests.fakes.engines import FakeEngine, engine, eventually
from tests.files import replace
from tests.patience import PATIENCE_S

ENDLESS = {"ignore_eos": True, "max_tokens": 5000}
SLOW = {"decode_ms_per_token": 20}
START_S = 60.0


class Ended(NamedTuple):
    code: int | None
    out: str
    err: str


async def ended(process: asyncio.subprocess.Process, within_s: float) -> int | None:
    async with asyncio.timeout(within_s):
        return await process.wait()


async def warmroute(*words: str | Path) -> Ended:
    """The command, run to its end."""
    async with command(*words) as process:
        async with asyncio.timeout(START_S):
            out, err = await process.communicate()
        return Ended(process.returncode, out.decode(), err.decode())


@asynccontextmanager
async def command(*words: str | Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Running, in a process group of its own, which is gone afterwards."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "200", "NO_COLOR": "1"},
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.communicate()


def alive(pid: int) -> bool:
    """Running; one that is dead and only waits to be reaped is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def under_way(router: RouterProcess) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await router.metric("warmroute_in_flight_requests") < 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


# -- SIGTERM


async def test_sigterm_lets_streams_finish_and_says_so(router_process, fleet_config) -> None:
    async with engine(answer_tokens=60, **SLOW) as fake, router_process(fleet_config([fake])) as r:
        async with beside(ask(r, [{"role": "user", "content": "tell me"}], stream=True, max_tokens=60)) as asking:
            await under_way(r)
            r.process.send_signal(signal.SIGTERM)
            async with r.client() as probe, asyncio.timeout(PATIENCE_S):
                while (answer := await probe.get("/ready")).status_code == 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert answer.json() == {"status": "not ready", "reason": "stopping"}
            assert not asking.done()
            said = await asking
        assert said.ok
        assert len(said.text.split()) >= 50
        assert await ended(r.process, 5.0) == 0
        await eventually(lambda: fake.gauges().running == 0)


async def test_sigterm_ends_what_outlives_the_grace_time(router_process, fleet_config) -> None:
    config = fleet_config(limits={"grace_s": 0.5}, engines=[])
    async with engine(**SLOW) as fake:
        config["fleet"] = {"instances": [{"url": fake.url}]}
        async with router_process(config) as r:
            said = ask(r, [{"role": "user", "content": "for ever"}], stream=True, **ENDLESS)
            async with beside(said) as asking:
                await under_way(r)
                r.process.send_signal(signal.SIGTERM)
                assert await ended(r.process, 5.0) == 0
                assert (await asking).error["code"] == "router_stopped"  # no end that looks like one
            await eventually(lambda: fake.gauges().running == 0)
            assert fake.gauges().cancelled == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_an_idle_router_stops_at_once(router_process, fleet_config, number) -> None:
    async with engine() as fake, router_process(fleet_config([fake])) as r:
        assert (await Chat(r, "before").turn()).ok  # its connection is kept alive
        r.process.send_signal(number)
        assert await ended(r.process, 2.0) == 0
        assert b"Traceback" not in r.log
        assert r.errors == []


# -- the list of instances


class InstanceList:
    """The file of a fleet."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "instances.yaml"

    def says(self, text: str) -> None:
        replace(self.path, text)

    def names(self, *fakes: FakeEngine) -> None:
        self.says(json.dumps([{"name": fake.server.options.name, "url": fake.url} for fake in fakes]))


def states(router: Router) -> dict[str, InstanceState]:
    return {instance.id: instance.state for instance in router.core.fleet}


async def test_the_instance_list_changes_without_a_restart(router, tmp_path, caplog) -> None:
    listed = InstanceList(tmp_path)
    async with engine(name="a", **SLOW) as a, engine(name="b") as b:
        listed.names(a)
        async with router(fleet={"file": str(listed.path), "file_poll_s": 0.02}) as r:
            await eventually(lambda: states(r) == {"a": InstanceState.READY})
            assert {said.instance for said in await crowd([Chat(r, "one"), Chat(r, "two")], 1)} == {"a"}
            assert await r.metric("warmroute_engine_attempts_total", engine="a") == 2

            listed.names(a, b)
            await eventually(lambda: states(r) == {"a": InstanceState.READY, "b": InstanceState.READY})

            for broken in ("- {url: ", "- {ulr: 'http://h:1'}", "", json.dumps([{"url": a.url}] * 2)):
                caplog.clear()
                listed.says(broken)
                await eventually(lambda: "the previous list stays in force" in caplog.text)
                assert states(r) == {"a": InstanceState.READY, "b": InstanceState.READY}
            assert (await r.admin.get("/admin/instances")).json()["discovery"]["file"]
            assert await r.metric("warmroute_discovery_trouble", source="file") == 1
            listed.names(a, b)
            async with asyncio.timeout(PATIENCE_S):
                while await r.metric("warmroute_discovery_trouble", source="file"):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert (await r.admin.get("/admin/instances")).json()["discovery"] == {"file": None}

            async with beside(ask(r, [{"role": "user", "content": "one"}], stream=True, max_tokens=16)) as asking:
                await eventually(lambda: r.booked == 1)
                listed.names(b)
                await eventually(lambda: states(r) == {"b": InstanceState.READY})
                assert (await asking).ok  # who leaves the list finishes what it has
            assert await r.metric("warmroute_engine_attempts_total", engine="a") == 0  # its series left with it
            assert {said.instance for said in await crowd([Chat(r, f"c{n}") for n in range(6)], 1)} == {"b"}

            listed.says("[]")
            await eventually(lambda: states(r) == {})
            said = await Chat(r, "nobody").turn()
            assert (said.status, (await r.http.get("/ready")).status_code) == (503, 503)

            listed.names(a)
            await eventually(lambda: states(r) == {"a": InstanceState.READY})
            assert (await Chat(r, "again").turn()).ok


# -- commands


async def test_a_port_in_use_is_one_clear_line(tmp_path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        file = tmp_path / "main.yaml"
        main: Json = {
            "listen": {"host": "127.0.0.1", "port": port},
            "admin": {"port": 0},
            "fleet": {"instances": [{"url": "http://127.0.0.1:9"}]},
            "policies": {"warm": WARM},
        }
        file.write_text(json.dumps(main))
        said = await warmroute("serve", "--config", file)
    assert said.code == 2
    assert said.err.startswith(f"port {port} is in use on 127.0.0.1: choose another port, or stop what uses it (")
    assert len(said.err.splitlines()) == 1
    assert said.out == ""


async def test_check_has_an_exit_code(tmp_path) -> None:
    file = tmp_path / "main.yaml"
    file.write_text("listen: {prot: 1}\n")
    good, bad = await asyncio.gather(warmroute("check", "configs/quickstart.yaml"), warmroute("check", file))
    assert (good.code, good.err) == (0, "")
    assert "keepalive_s" in good.out  # defaults are written out
    assert bad.code == 2
    assert "main.yaml:1: listen.prot" in bad.err
    assert "Traceback" not in bad.err


async def test_an_engine_tells_where_it_is_and_stops_when_told(router) -> None:
    options = {"prefill_tokens_per_s": 0, "decode_ms_per_token": 0}
    async with command("engine", "--name", "solo", "--options", json.dumps(options)) as process:
        assert process.stdout is not None
        async with asyncio.timeout(START_S):
            told = json.loads(await process.stdout.readline())
        assert (told["name"], told["pid"], told["model"]) == ("solo", process.pid, MODEL)
        async with router([told["url"]]) as r:
            assert (await Chat(r, "alone").turn()).ok
        process.send_signal(signal.SIGTERM)
        assert await ended(process, 5.0) == 0


@pytest.mark.parametrize("end", ["SIGINT", "SIGINT to all, as Ctrl-C", "SIGTERM", "SIGKILL"])
async def test_a_fleet_leaves_nobody_behind(tmp_path, end) -> None:
    file = tmp_path / "fleet.yaml"
    main: Json = {
        "listen": {"host": "127.0.0.1", "port": 0},
        "admin": {"port": 0},
        "fleet": {"embedded": {"engines": 2, "decode_ms_per_token": 20}},
        "tokenizers": {MODEL: {"path": TOKENIZER}},
        "policies": {"warm": WARM},
    }
    file.write_text(json.dumps(main))
    async with command("fleet", "--config", file) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        async with asyncio.timeout(START_S):
            invitation = (await process.stdout.readuntil(b"Ctrl-C stops everything.")).decode()
            told = (await process.stderr.readuntil(b"listening on")).decode()
        children = [int(pid) for pid in re.findall(r"pid (\d+)", told)]
        assert len(children) == 2
        assert all(alive(pid) for pid in children)
        port = re.search(r"http://127.0.0.1:(\d+)/v1", invitation)
        assert port is not None
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port[1]}", timeout=PATIENCE_S
        ) as client:  # the line that it prints works
            body = {"model": MODEL, "messages": [{"role": "user", "content": "Why is the sky blue?"}]}
            assert (await client.post(PATH, json=body | {"max_tokens": 2})).status_code == 200
        if end == "SIGINT to all, as Ctrl-C":
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(getattr(signal, end))
        assert await ended(process, 5.0) == (-signal.SIGKILL if end == "SIGKILL" else 0)
        await eventually(lambda: not any(alive(pid) for pid in children))
        if end != "SIGKILL":
            assert "Traceback" not in (await process.stderr.read()).decode()
