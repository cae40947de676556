"""What decides is changed while requests are under way, by files and over HTTP: no request notices, wrong texts change
nothing, and both are told of.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.chats import PATH, beside
from tests.e2e.conftest import MODEL, WARM, Json, RouterClient, RouterProcess
from tests.fakes.engines import FakeEngine, engine
from tests.files import replace
from tests.patience import PATIENCE_S

CALM = "scorers: [{name: least_requests}]"
TURNS = "scorers: [{name: round_robin}]"
BROKEN = "scorers: [{name: least_reqests}]"
HALVES = {"calm": 50, "turns": 50}
TOKEN = "secret"
ADMIN = {"tokens": [{"name": "ops", "hash": hashlib.sha256(TOKEN.encode()).hexdigest(), "rights": ["read", "write"]}]}


async def until(true: Callable[[], Awaitable[object]], deadline_s: float = PATIENCE_S) -> None:
    """As `eventually`, of what must be asked over HTTP."""
    async with asyncio.timeout(deadline_s):
        while not await true():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def ask(r: RouterClient, session: str) -> httpx.Response:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 4}
    return await r.post(PATH, body, headers={"x-session-id": session})


class Load:
    """Requests without a pause, and what became of them."""

    def __init__(self, r: RouterClient) -> None:
        self.statuses: Counter[int] = Counter()
        self._r = r

    @property
    def all_well(self) -> bool:
        return set(self.statuses) == {200}

    async def run(self, crowd: int = 4) -> None:
        numbers = itertools.count()

        async def one_after_the_other() -> None:
            while True:
                self.statuses[(await ask(self._r, f"u{next(numbers)}")).status_code] += 1

        await asyncio.gather(*(one_after_the_other() for _ in range(crowd)))

    async def goes_on(self, requests: int = 20) -> None:
        """So many more have been answered."""
        goal = self.statuses.total() + requests
        async with asyncio.timeout(PATIENCE_S):
            while self.statuses.total() < goal:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


@asynccontextmanager
async def loaded(r: RouterClient) -> AsyncIterator[Load]:
    load = Load(r)
    async with beside(load.run()) as task:
        await load.goes_on(1)
        yield load
        await load.goes_on()
        assert not task.done()
    assert load.all_well, load.statuses


async def deciding(r: RouterClient) -> tuple[str, str]:
    """By whom the next request is decided: name and digest."""
    record = await r.record((await ask(r, "probe")).raise_for_status())
    return record["policy"], record["policy_digest"]


async def told(r: RouterClient, path: str = "/admin/policies") -> Json:
    return dict((await r.admin.get(path)).raise_for_status().json())


def config_of(fleet_config: Any, *fakes: FakeEngine, folder: Path, **sections: Any) -> Json:
    """Policies come from files; `warm`, which stands in the main file, is active."""
    folder.mkdir(exist_ok=True)
    (folder / "calm.yaml").write_text(CALM)
    (folder / "turns.yaml").write_text(TURNS)
    config: Json = fleet_config(fakes, policies_dir=str(folder), **sections)
    return config


# -- files


async def test_a_changed_policy_file_takes_effect_and_a_broken_one_does_not(
    router_process: Any, fleet_config: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "policies"
    async with engine() as a, engine() as b:
        config = config_of(fleet_config, a, b, folder=folder, active="calm")
        async with router_process(config) as r, loaded(r):
            name, first = await deciding(r)
            assert name == "calm"

            replace(folder / "calm.yaml", TURNS)
            await until(lambda: digest_is_not(r, first))
            _, second = await deciding(r)
            assert (await told(r))["switches"] == {"files": 1}

            replace(folder / "calm.yaml", BROKEN)
            await until(lambda: refused(r, 1))
            assert await deciding(r) == ("calm", second)
            error = (await told(r))["errors"]["files"]["text"]
            assert "calm.yaml:1: scorers[0]: unknown scorer" in error
            assert "did you mean 'least_requests'?" in error
            assert b"refused, the policies in force stay" in r.log
            assert b"Traceback" not in r.log

            replace(folder / "turns.yaml", "scorers: [")
            await until(lambda: refused(r, 2))
            assert await deciding(r) == ("calm", second)

            replace(folder / "turns.yaml", TURNS)
            replace(folder / "calm.yaml", CALM)
            await until(lambda: digest_is_not(r, second))
            assert await deciding(r) == ("calm", first)
            assert (await told(r))["errors"] == {}
            entries = (await told(r, "/admin/audit"))["entries"]
            assert [(entry["who"], entry["what"]) for entry in entries] == [
                ("files", "files changed"), ("files", "files changed"), ("files", "start"),
            ]  # fmt: skip


async def digest_is_not(r: RouterClient, before: str) -> bool:
    return (await deciding(r))[1] != before


async def refused(r: RouterProcess, times: int) -> bool:
    """At least so often. A change of two files may be seen in two steps."""
    return await r.metric("warmroute_policy_refusals_total", source="files") >= times


async def test_an_experiment_begins_and_ends_with_the_file(
    router_process: Any, fleet_config: Any, tmp_path: Path
) -> None:
    """The main file says so, while requests are under way."""
    async with engine() as a, engine() as b:
        config = config_of(fleet_config, a, b, folder=tmp_path / "policies", active="calm")
        file = tmp_path / "router.yaml"
        async with router_process(config) as r, loaded(r):
            assert (await told(r, "/admin/experiment"))["running"] is False
            written = json.loads(file.read_text())
            experiment = {"arms": HALVES, "shadows": ["warm"], "seed": 3}
            replace(file, json.dumps(written | {"experiment": experiment}))
            await until(lambda: running(r, True))
            arms = {(await r.record(await ask(r, f"s{n}")))["arm"] for n in range(12)}
            assert arms == set(HALVES)
            replace(file, json.dumps(written))
            await until(lambda: running(r, False))
            assert (await r.record(await ask(r, "s1")))["arm"] is None
            last = (await told(r, "/admin/experiment"))["last"]
            assert sum(arm["requests"] for arm in last["report"]["arms"]) >= 12
            assert last["shadows"][0]["policy"] == "warm"


async def running(r: RouterClient, wanted: bool) -> bool:
    return bool((await told(r, "/admin/experiment"))["running"] is wanted)


async def test_what_needs_a_restart_is_said_and_not_done(
    router_process: Any, fleet_config: Any, tmp_path: Path
) -> None:
    async with engine() as a:
        config = config_of(fleet_config, a, folder=tmp_path / "policies", active="calm")
        file = tmp_path / "router.yaml"
        async with router_process(config) as r:
            changed = json.loads(file.read_text()) | {"active": "turns"}
            replace(file, json.dumps(changed))
            await until(lambda: active_is(r, "turns"))
            assert (await told(r))["needs_restart"] == []

            replace(file, json.dumps(changed | {"active": "calm", "limits": changed["limits"] | {"grace_s": 1.5}}))
            await until(lambda: active_is(r, "calm"))
            assert (await told(r))["needs_restart"] == ["limits.grace_s"]
            assert b"changes of these keys need a restart: limits.grace_s" in r.log

            replace(file, json.dumps(changed))
            await until(lambda: active_is(r, "turns"))
            assert (await told(r))["needs_restart"] == []


async def active_is(r: RouterClient, name: str) -> bool:
    return bool((await told(r))["active"] == name)


# -- over HTTP


async def test_put_activate_and_undo_under_load(router: Any) -> None:
    """Every switch takes effect with the next request, and none of those under way notices."""
    policies = {"warm": WARM, "calm": {"scorers": [{"name": "least_requests"}]}}
    async with engine() as a, engine() as b, router([a, b], policies=policies, admin=ADMIN) as r:
        r.admin.headers["authorization"] = f"Bearer {TOKEN}"
        async with loaded(r) as load:
            assert (await deciding(r))[0] == "warm"

            switch = (await r.admin.post("/admin/activate", json={"policy": "calm"})).raise_for_status().json()
            assert switch["changed"] is True
            assert switch["plan"]["sentences"]
            assert (await deciding(r))[0] == "calm"
            await load.goes_on()

            await put(r, "/admin/policies/mine", TURNS)
            assert (await deciding(r))[0] == "calm"
            await put(r, "/admin/policies/mine?activate=true", "scorers: [{name: queue_depth}]")
            assert (await deciding(r))[0] == "mine"
            await load.goes_on()

            tried = await put(r, "/admin/policies/mine?activate=true&dry_run=true", CALM)
            assert (tried["dry_run"], tried["changed"]) == (True, True)
            wrong = await r.admin.put("/admin/policies/mine", content=BROKEN)
            assert (wrong.status_code, wrong.json()["error"]["code"]) == (422, "invalid_policy")
            assert (await deciding(r))[0] == "mine"
            assert await r.metric("warmroute_policy_refusals_total", source="admin") == 1

            started = await put(r, "/admin/experiment", json.dumps({"arms": {"warm": 50, "calm": 50}}))
            assert started["changed"] is True
            await load.goes_on()
            assert (await told(r, "/admin/experiment"))["running"] is True

            seen = [await undone(r) for _ in range(4)]
            assert seen == ["mine", "calm", "calm", "warm"]
            nothing = await r.admin.post("/admin/undo")
            assert (nothing.status_code, nothing.json()["error"]["code"]) == (409, "nothing_to_undo")
        assert {entry["who"] for entry in (await told(r, "/admin/audit"))["entries"]} == {"files", "ops"}
        assert r.idle()


async def put(r: RouterClient, path: str, text: str) -> Json:
    return dict((await r.admin.put(path, content=text)).raise_for_status().json())


async def undone(r: RouterClient) -> str:
    """Who decides after one more undo."""
    (await r.admin.post("/admin/undo")).raise_for_status()
    return (await deciding(r))[0]


async def test_a_hundred_switches_under_load(router: Any) -> None:
    """Back and forth between policies of different needs, as fast as they come."""
    policies = {"warm": WARM, "calm": {"scorers": [{"name": "least_requests"}]}}
    async with engine() as a, engine() as b, router([a, b], policies=policies) as r:
        async with loaded(r) as load:
            for n in range(50):
                for name in ("calm", "warm"):
                    (await r.admin.post("/admin/activate", json={"policy": name})).raise_for_status()
                if n % 10 == 0:
                    await load.goes_on(4)
        told_ = await told(r)
        assert told_["switches"] == {"admin": 100}
        assert len(told_["undo"]) == 20
        deciders = Counter(record["policy"] for record in await r.records(1000))
        assert set(deciders) == {"warm", "calm"}
        assert await r.metric("warmroute_policy_faults_total") == 0
