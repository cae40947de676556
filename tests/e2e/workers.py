"""A router of several processes, from outside: which worker answered what, and what each of them says of itself."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import httpx

from tests.e2e.chats import PATH, Said
from tests.e2e.conftest import MODEL, Json, RouterClient, RouterProcess
from tests.patience import PATIENCE_S

UP_WITHIN_S = PATIENCE_S
LOOK_S = 0.02
ONE_CONNECTION = httpx.Limits(max_connections=1, keepalive_expiry=None)  # kept: another one may reach another worker


async def until(condition, within_s: float = PATIENCE_S) -> None:
    """Wait until `condition`, sync or async, is true. It is looked at over HTTP, so not more often than that costs, and
    again where a worker died over it.
    """
    async with asyncio.timeout(within_s):
        while True:
            with suppress(httpx.TransportError):
                found = condition()
                if await found if asyncio.iscoroutine(found) else found:
                    return
            await asyncio.sleep(LOOK_S)


async def workers(router: RouterClient) -> list[Json]:
    """As the admin page shows them, the leader first."""
    return list((await router.admin.get("/admin/workers")).raise_for_status().json()["workers"])


async def all_up(router: RouterClient, but: Sequence[int] = ()) -> list[Json]:
    """Every worker takes connections, in other processes than `but`."""
    async with asyncio.timeout(UP_WITHIN_S):
        while True:
            found = await workers(router)
            if all(one["up"] and one["pid"] not in but for one in found):
                return found
            await asyncio.sleep(LOOK_S)


TRIES = 100  # that all of so many connections go to one of two workers has a chance of 1 in 2**99


class Clients:
    """Clients of the public API, each with one connection that stays with its worker. `by_run`: at least one for each
    worker, by the run that its records' ids begin with.
    """

    def __init__(self, router: RouterClient) -> None:
        self._router = router
        self._opened = AsyncExitStack()
        self.by_run: dict[str, httpx.AsyncClient] = {}

    async def __aenter__(self) -> Clients:
        wanted = {str(one["run"]) for one in await workers(self._router)}
        for _ in range(TRIES):
            client = await self._opened.enter_async_context(self._router.client(limits=ONE_CONNECTION))
            said = await say(client, "which worker are you?")
            assert said.status == 200, (said, self._router.log.decode()[-6000:])
            self.by_run.setdefault(run_of(said), client)
            if self.by_run.keys() == wanted:
                return self
        raise AssertionError(f"{sorted(self.by_run)} answer, not {sorted(wanted)}")

    async def __aexit__(self, *raised: object) -> None:
        await self._opened.aclose()

    @property
    def each(self) -> list[httpx.AsyncClient]:
        """One for each worker."""
        return list(self.by_run.values())


async def say(client: httpx.AsyncClient, text: str, session: str | None = None, **fields: object) -> Said:
    headers = {} if session is None else {"x-session-id": session}
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 4} | fields
    answer = await client.post(PATH, json=body, headers=headers)
    return Said(answer.status_code, answer.text, False, answer.json().get("error"), answer.headers)


def run_of(said: Said) -> str:
    return said.record.partition("-")[0]


def by_worker(said: Sequence[Said]) -> Counter[str]:
    """Requests by the run of the worker that answered."""
    return Counter(run_of(one) for one in said)


def alive(pid: int) -> bool:
    """Running; one that is dead and only waits to be reaped is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def nothing_under_way(router: RouterProcess) -> bool:
    """By the counters of all, and by everybody's books as the leader knows them."""
    in_flight = await router.metric("warmroute_in_flight_requests")
    return in_flight == 0 and await router.metric("warmroute_target_requests") == 0
