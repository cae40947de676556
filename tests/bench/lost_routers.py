"""Routers in front of one fleet, one killed every minute and one cut off from the others for a minute, under load.

    python -m tests.bench.lost_routers [--routers 3] [--seconds 200] [--kill-every-s 60] [--cut-s 60] [--alone]

All are real processes: emulated engines, and routers in network namespaces of their own with two networks each, one for
clients and engines, one for what routers tell each other. A cut takes the second one down. A killed router (SIGKILL) is
started again at once. Clients send each request to any router, and to another one where the connection is refused.

Namespaces need root on Linux. Elsewhere all routers are on the loopback interface, and none is cut off.

What it says: requests that failed, by what their router was doing; how many requests the fullest engine had beyond an
even share (`least_requests`); how long routers took to agree again; what is booked at the end, which must be nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
import os
import random
import re
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import uvloop

from router.clock import SystemClock
from router.lab.emulator.options import EngineOptions
from router.lab.emulator.supervisor import EmbeddedFleet
from router.lab.emulator.vocabulary import DATA
from router.lab.loadgen.client import ClientFailure, LoadClient, SessionName
from router.lab.local_stack.preflight import free_ports
from tests.bench.namespaces import NamespacesUnavailable, Network, Place, ip, loopback, namespaces
from tests.bench.routers import ROOT

MODEL, SECRET, TOKEN = "warm-tiny", "WARMROUTE_BENCH_REPLICAS", "lost-routers"
ENGINES = 4
ANSWER_TOKENS, DECODE_MS = 60, 10.0
FIRST_KILL_S, FIRST_CUT_S = 30.0, 60.0
LOOK_S = 0.2
PATIENCE_S = 60.0
AGREE_POLL_S = 0.05
IN_ENGINE = re.compile(r"^vllm:num_requests_(?:running|waiting)\{[^}]*\} (\S+)$", re.MULTILINE)
BOOKED = re.compile(r"^warmroute_target_requests\{[^}]*\} (\S+)$", re.MULTILINE)
CLOCK = SystemClock()


class RouterUnderTest:
    """One router: its process, started again after each kill, and the times at which it was not there."""

    def __init__(self, number: int, place: Place, port: int, admin_port: int, config: Path) -> None:
        self.number = number
        self.place = place
        self.url = f"http://{place.host}:{port}"
        self.admin_url = f"http://{place.host}:{admin_port}"
        self.away: list[tuple[float, float]] = []  # from its death until it was ready again; inf: it is not
        self._command = [*place.command, sys.executable, "-m", "router", "serve", "--config", str(config)]
        self._log = config.with_suffix(".log")
        self._process: asyncio.subprocess.Process

    async def start(self, http: httpx.AsyncClient) -> None:
        """Start it and wait until it answers."""
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdout=log, stderr=log, cwd=ROOT, start_new_session=True
            )
        async with asyncio.timeout(PATIENCE_S):
            while not await answers(http, f"{self.url}/ready"):  # noqa: ASYNC110  another process's state
                await asyncio.sleep(AGREE_POLL_S)

    async def kill(self, http: httpx.AsyncClient) -> None:
        """Kill it and start it again."""
        self.away.append((CLOCK.now(), math.inf))
        self.end(signal.SIGKILL)
        await self._process.wait()
        await self.start(http)
        self.away[-1] = self.away[-1][0], CLOCK.now()

    def end(self, number: int) -> None:
        if self._process.returncode is None:
            os.killpg(self._process.pid, number)

    async def stop(self) -> None:
        self.end(signal.SIGTERM)
        await self._process.wait()

    @property
    def is_away(self) -> bool:
        return bool(self.away) and self.away[-1][1] == math.inf

    def was_away(self, from_s: float, until_s: float) -> bool:
        return any(died <= until_s and from_s <= ready for died, ready in self.away)


async def answers(http: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await http.get(url)).status_code == 200
    except httpx.HTTPError:
        return False


class Look(NamedTuple):
    at_s: float  # since the load began
    requests: int  # in all engines
    beyond: int  # of the fullest engine, beyond an even share


class Run:
    """The load, what happens to the routers meanwhile, and what was seen."""

    def __init__(self, routers: list[RouterUnderTest], engines: list[str], chosen: argparse.Namespace) -> None:
        self.routers = routers
        self.ends: Counter[str] = Counter()
        self.lost: list[str] = []
        self.looks: list[Look] = []
        self.happened: list[tuple[float, str]] = []
        self.agreed_s: dict[str, float | None] = {}
        self._engines = engines
        self._chosen = chosen
        self._http = httpx.AsyncClient(timeout=5.0, trust_env=False, headers={"authorization": f"Bearer {TOKEN}"})
        self._began_s = 0.0

    @property
    def now_s(self) -> float:
        return CLOCK.now() - self._began_s

    async def play(self) -> dict[str, Any]:
        """Return what is to be said."""
        chosen = self._chosen
        await asyncio.gather(*(router.start(self._http) for router in self.routers))
        if not chosen.alone:
            await self._until("all are heard at the start", CLOCK.now(), self._all_heard)
        self._began_s = CLOCK.now()
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(LoadClient(router.url, MODEL, CLOCK)) for router in self.routers]
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(self._watch())
                agents = [tasks.create_task(self._agent(number, clients)) for number in range(chosen.agents)]
                events = [tasks.create_task(self._kill_often()), tasks.create_task(self._cut_once())]
                await asyncio.wait([*agents, *events])
                watching.cancel()
        booked = await self._wait_for_empty_books()
        return self._say(booked)

    async def _agent(self, number: int, clients: list[LoadClient]) -> None:
        """One request after the other, each by any router."""
        rng = random.Random(number)
        for turn in range(1_000_000):
            if self.now_s > self._chosen.seconds:
                return
            order = rng.sample(self.routers, len(self.routers))
            messages = [{"role": "user", "content": f"agent {number} turn {turn}"}]
            for router in order:
                began_s = CLOCK.now()
                session = SessionName(f"agent {number} {turn // 8}")
                answer = await clients[router.number].chat(messages, ANSWER_TOKENS, session)
                end = self._name_end(router, began_s, answer)
                self.ends[end] += 1
                if end != "refused, sent to another router":
                    break

    def _name_end(self, router: RouterUnderTest, began_s: float, answer: object) -> str:
        if not isinstance(answer, ClientFailure):
            return "answered"
        if router.was_away(began_s, CLOCK.now()):
            dead_before = any(died <= began_s for died, ready in router.away if began_s <= ready)
            return "refused, sent to another router" if dead_before else "open at the killed router"
        self.lost.append(f"{self.now_s:.1f} s, router {router.number}: {answer.status} {answer.reason[:100]}")
        return "lost"

    async def _kill_often(self) -> None:
        killable = self.routers[:-1] or []
        at_s, n = FIRST_KILL_S, 0
        while killable and self._chosen.kill_every_s and at_s < self._chosen.seconds - 10:
            await asyncio.sleep(at_s - self.now_s)
            router = killable[n % len(killable)]
            self.happened.append((self.now_s, f"router {router.number} killed"))
            await router.kill(self._http)
            self.happened.append((self.now_s, f"router {router.number} ready again"))
            at_s, n = at_s + self._chosen.kill_every_s, n + 1

    async def _cut_once(self) -> None:
        """Cut the last router off; drain an engine there meanwhile, which the others hear of when the cut is mended."""
        router, cut_s = self.routers[-1], self._chosen.cut_s
        if router.place.link is None or not cut_s or len(self.routers) == 1:
            return
        await asyncio.sleep(FIRST_CUT_S - self.now_s)
        ip("link", "set", router.place.link, "down")
        self.happened.append((self.now_s, f"router {router.number} cut off"))
        await asyncio.sleep(cut_s)
        await self._drain(router, "drain")
        ip("link", "set", router.place.link, "up")
        self.happened.append((self.now_s, f"router {router.number} mended"))
        if not self._chosen.alone:
            began_s = CLOCK.now()
            await self._until("all are heard after the cut", began_s, self._all_heard)
            await self._until("the drain is known after the cut", began_s, self._drained_everywhere)
        await self._drain(router, "undrain")

    async def _drain(self, router: RouterUnderTest, verb: str) -> None:
        (await self._http.post(f"{router.admin_url}/admin/instances/engine-0/{verb}")).raise_for_status()

    async def _drained_everywhere(self) -> bool:
        found = [await self._instances(router) for router in self.routers if not router.is_away]
        return all(one["engine-0"]["state"] in ("draining", "drained") for one in found)

    async def _all_heard(self) -> bool:
        running = [router for router in self.routers if not router.is_away]
        heard = []
        for router in running:
            answer = await self._http.get(f"{router.admin_url}/admin/replicas")
            heard.append(sum(report["up"] for report in answer.json()["replicas"]))
        return min(heard) >= len(running) - 1

    async def _until(self, what: str, began_s: float, met: Callable[[], Awaitable[bool]]) -> None:
        """Wait until `met`, and note the seconds since `began_s`; None: it never was."""
        self.agreed_s[what] = None
        while CLOCK.now() - began_s < PATIENCE_S:
            with suppress(httpx.HTTPError):  # of a router that is being started again
                if await met():
                    self.agreed_s[what] = round(CLOCK.now() - began_s, 2)
                    return
            await asyncio.sleep(AGREE_POLL_S)

    async def _instances(self, router: RouterUnderTest) -> dict[str, Any]:
        answer = await self._http.get(f"{router.admin_url}/admin/instances")
        return {one["id"]: one for one in answer.json()["instances"]}

    async def _watch(self) -> None:
        """Look at what engines have, until cancelled."""
        while True:
            at_s = self.now_s
            pages = await asyncio.gather(*(self._http.get(f"{url}/metrics") for url in self._engines))
            counts = [round(sum(map(float, IN_ENGINE.findall(page.text)))) for page in pages]
            self.looks.append(Look(at_s, sum(counts), max(counts) - math.ceil(sum(counts) / len(counts))))
            await asyncio.sleep(max(0.0, at_s + LOOK_S - self.now_s))

    async def _wait_for_empty_books(self) -> list[int]:
        """Return what each router has booked of its own and of all, when that is nothing or patience has ended."""
        booked: list[int] = []
        for _ in range(round(10 / LOOK_S)):
            booked = []
            for router in self.routers:
                page = (await self._http.get(f"{router.url}/metrics")).text
                booked.append(round(sum(map(float, BOOKED.findall(page)))))
                instances = (await self._instances(router)).values()
                booked.append(sum(target["load"]["requests"] for one in instances for target in one["targets"]))
            if not any(booked):
                break
            await asyncio.sleep(LOOK_S)
        return booked

    def _say(self, booked: list[int]) -> dict[str, Any]:
        return {
            "routers": len(self.routers),
            "alone": self._chosen.alone,
            "requests": dict(self.ends),
            "lost": self.lost[:10],
            "happened": [f"{at_s:.1f} s: {what}" for at_s, what in self.happened],
            "away_s": [[round(ready - died, 2) for died, ready in router.away] for router in self.routers],
            "agreed_s": self.agreed_s,
            "beyond_even": self._overshoot(),
            "booked_at_end": booked,
        }

    def _overshoot(self) -> dict[str, dict[str, float]]:
        """Requests of the fullest engine beyond an even share, by what routers were doing; a kill counts for 10 s."""
        at = {
            what: [at_s for at_s, name in self.happened if name.endswith(what)] for what in ("killed", "off", "mended")
        }
        kinds: dict[str, list[Look]] = {"calm": [], "cut off": [], "after a kill": []}
        for look in self.looks:
            if any(killed <= look.at_s < killed + 10 for killed in at["killed"]):
                kinds["after a kill"].append(look)
            elif any(off <= look.at_s < mended for off, mended in zip(at["off"], at["mended"], strict=True)):
                kinds["cut off"].append(look)
            elif look.at_s > 5 and look.requests:
                kinds["calm"].append(look)
        return {
            kind: {
                "mean": round(sum(look.beyond for look in looks) / len(looks), 2),
                "most": max(look.beyond for look in looks),
                "requests": round(sum(look.requests for look in looks) / len(looks), 1),
            }
            for kind, looks in kinds.items()
            if looks
        }


def write_config(
    folder: Path, number: int, network: Network, ports: list[int], engines: list[Any], alone: bool
) -> Path:
    place = network.places[number]
    exchange = ports[2::3]
    peers = [f"{one.exchange_host}:{port}" for one, port in zip(network.places, exchange, strict=True)]
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    config: dict[str, Any] = {
        "listen": {"host": place.host, "port": ports[3 * number]},
        "admin": {
            "host": place.host,
            "port": ports[3 * number + 1],
            "tokens": [{"name": "bench", "hash": digest, "rights": ["read", "write"]}],
        },
        "fleet": {"instances": [{"name": engine.name, "url": engine.url} for engine in engines]},
        "tokenizers": {MODEL: {"path": str(DATA)}},
        "policies": {"least": {"scorers": [{"name": "least_requests"}]}},
        "active": "least",
        "log": {"level": "warning"},
    }
    if not alone:
        replicas = {"peers": peers, "secret_env": SECRET, "host": place.exchange_host, "port": exchange[number]}
        config["replicas"] = replicas
    file = folder / f"router-{number}.yaml"
    file.write_text(json.dumps(config))  # JSON is YAML
    return file


@asynccontextmanager
async def routers_and_engines(
    network: Network, folder: Path, alone: bool
) -> AsyncIterator[tuple[list[RouterUnderTest], list[str]]]:
    host = network.engines_host
    options = [
        EngineOptions(name=f"engine-{n}", host=host, decode_ms_per_token=DECODE_MS, seed=n) for n in range(ENGINES)
    ]
    ports = free_ports(3 * len(network.places))
    async with EmbeddedFleet(options) as fleet:
        engines = fleet.members
        routers = [
            RouterUnderTest(
                number, place, ports[3 * number], ports[3 * number + 1],
                write_config(folder, number, network, ports, engines, alone),
            )
            for number, place in enumerate(network.places)
        ]  # fmt: skip
        try:
            yield routers, [engine.url for engine in engines]
        finally:
            await asyncio.gather(*(router.stop() for router in routers), return_exceptions=True)


async def run(network: Network, folder: Path, chosen: argparse.Namespace) -> dict[str, Any]:
    async with routers_and_engines(network, folder, chosen.alone) as (routers, engines):
        return await Run(routers, engines, chosen).play()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.lost_routers", description=__doc__)
    parser.add_argument("--routers", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--kill-every-s", type=float, default=60.0, help="0: none is killed")
    parser.add_argument("--cut-s", type=float, default=60.0, help="0: none is cut off")
    parser.add_argument("--agents", type=int, default=24)
    parser.add_argument("--alone", action="store_true", help="routers tell each other nothing")
    parser.add_argument("--folder", help="for configurations and logs")
    chosen = parser.parse_args()
    os.environ[SECRET] = "0123456789abcdef" * 2
    with ExitStack() as stack:
        try:
            network = stack.enter_context(namespaces(chosen.routers))
        except NamespacesUnavailable as error:
            print(f"no network namespaces ({error}): all on loopback, none is cut off", file=sys.stderr)
            network = loopback(chosen.routers)
        folder = Path(chosen.folder or stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        found = uvloop.run(run(network, folder, chosen))
    print(json.dumps(found, indent=1))
    sys.exit(1 if found["requests"].get("lost") or any(found["booked_at_end"]) else 0)


if __name__ == "__main__":
    main()
