"""LoRA adapters over several processes: the owner of a base model loads and unloads its adapters for all processes.

The owner is the process with the highest hash of the model's name and its run, among the processes that can load
the adapter: their configuration has it, and instances of the model are ready. The other processes send the owner
queries for the adapters that their requests need, and wait. The owner publishes what it loaded, so that all
processes choose it at once.

Requests for loaded adapters cost no messages: the adapter that makes room is determined only when one must. The
owner queries the others for their last use of each adapter, has them withdraw the coldest, and unloads it only if
none of them has requests that want it by then. The owner does not wait for a process that has ended or is silent.

When processes come and go, two may own a model for a moment: an adapter can then be loaded twice, or an instance
get one more than `max_loaded`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil
from typing import Any, ClassVar

from router.control.peers.parts import Message, Peers, choose_owner
from router.control.peers.queries import PeerQueries
from router.features.adapters.book import AdapterUse
from router.features.adapters.loading import AdapterLoader
from router.tasks import Tasks

LOOK_S = 0.25  # between checks of which adapters this process can load
AGAIN_S = 1.0  # until an unanswered query for an adapter is sent again, to the owner at that time
REPLY_S = 5.0  # limit for replies to other queries; a process that hangs is forgotten sooner


class LoadableAdapters(Message, frozen=True):
    """The adapters that the sender can load: ready instances serve their base models."""

    adapters: frozenset[str]


class AdapterWanted(Message, frozen=True):
    """Query to load an adapter that the sender needs, sent again until an `AdapterLoadEnded` arrives."""

    adapter: str


class AdapterLoadEnded(Message, frozen=True):
    """An adapter is loaded on `instance`, or no instance has it because of `error`."""

    adapter: str
    instance: str | None
    error: str | None = None


class AdapterUseQuery(Message, frozen=True):
    """Query for the use of a base model's adapters by requests of the receiver."""

    number: int
    base: str


class AdapterWithdrawal(Message, frozen=True):
    """Query to stop choosing `instance` for an adapter that the sender will unload, unless requests want it."""

    number: int
    instance: str
    adapter: str


class AdapterUses(Message, frozen=True):
    """Reply to the query with this number: the use of a base model's adapters by requests of the sender."""

    number: int
    uses: dict[str, AdapterUse]


class SharedAdapters:
    """Connects the `loader` of this process with the loaders of its peers."""

    messages: ClassVar[Sequence[type[Message]]] = (
        LoadableAdapters,
        AdapterWanted,
        AdapterLoadEnded,
        AdapterUseQuery,
        AdapterWithdrawal,
        AdapterUses,
    )

    def __init__(self, loader: AdapterLoader, peers: Peers) -> None:
        self._loader = loader
        self._peers = peers
        self._tasks: Tasks
        self._loadable = frozenset[str]()  # by this process, as last published
        self._others: dict[str, frozenset[str]] = {}  # loadable by other processes, by run
        self._loadings: dict[str, asyncio.Future[str | None]] = {}  # at other processes, awaited here, by adapter
        self._askers: dict[str, set[str]] = {}  # runs that wait for this process, by adapter
        self._queries = PeerQueries[Mapping[str, AdapterUse]](peers)
        loader.peers = self

    def start(self, tasks: Tasks) -> None:
        self._tasks = tasks
        tasks.supervise("loadable adapters", self._follow)

    def state(self) -> Iterator[Message]:
        yield LoadableAdapters(self._loadable)

    def apply(self, message: Any, run: str) -> None:
        match message:
            case LoadableAdapters(adapters):
                self._others[run] = adapters
            case AdapterWanted(adapter) if self._loader.manages(adapter):
                if adapter not in self._askers:
                    self._askers[adapter] = set()
                    self._tasks.spawn(f"load {adapter} for others", self._load_for_others(adapter))
                self._askers[adapter].add(run)
            case AdapterLoadEnded(adapter, instance, error) if self._loader.manages(adapter):
                if instance is not None:
                    self._loader.set_loaded(instance, adapter, True)
                if (loading := self._loadings.get(adapter)) is not None and not loading.done():
                    loading.set_result(error)
            case AdapterUseQuery(number, base):
                self._peers.send_to(run, AdapterUses(number, self._loader.list_uses(base)))
            case AdapterWithdrawal(number, instance, adapter):
                uses = self._loader.list_uses(self._loader.find_base(adapter))
                if not _is_wanted(adapter, uses):
                    self._loader.set_loaded(instance, adapter, False)
                self._peers.send_to(run, AdapterUses(number, uses))
            case AdapterUses(number, uses):
                self._queries.on_reply(run, number, uses)

    def forget(self, run: str) -> None:
        self._others.pop(run, None)
        self._queries.forget(run)

    # AdapterPeers

    async def load(self, adapter: str) -> str | None:
        owner = ""
        reply: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._loadings[adapter] = reply
        try:
            for _ in range(ceil(self._loader.wait_s / AGAIN_S)):
                if owner not in self._peers.runs():
                    owner = self.find_owner(adapter)
                if owner == self._peers.run:
                    return await self._loader.carry_out(adapter)
                self._peers.send_to(owner, AdapterWanted(adapter))
                await asyncio.wait([reply], timeout=AGAIN_S)
                if reply.done():
                    return reply.result()
        finally:
            del self._loadings[adapter]
        return "the process that loads it has not replied in time"

    async def list_uses(self, base: str) -> list[Mapping[str, AdapterUse]]:
        replies = await self._query(lambda number: AdapterUseQuery(number, base))
        return [uses for uses in replies.values() if uses is not None]

    async def withdraw(self, instance: str, adapter: str) -> bool:
        replies = await self._query(lambda number: AdapterWithdrawal(number, instance, adapter))
        return all(uses is not None and not _is_wanted(adapter, uses) for uses in replies.values())

    def on_loaded(self, instance: str, adapter: str) -> None:
        self._peers.share(AdapterLoadEnded(adapter, instance))

    def find_owner(self, adapter: str) -> str:
        """Return the run of the process that loads an adapter."""
        own, base = self._peers.run, self._loader.find_base(adapter).encode()
        loadable = {**self._others, own: self._loader.loadable()}
        members = [run for run in (own, *self._peers.runs()) if adapter in loadable.get(run, ())]
        return choose_owner(base, members or [own], b"warmroute lora")

    async def _load_for_others(self, adapter: str) -> None:
        """Load an adapter, and report the end to the processes that wait for it. If this process sees another
        owner, `load` passes the query on to that owner.
        """
        error = await self._loader.load(adapter)
        ended = AdapterLoadEnded(adapter, self._loader.find_instance(adapter), error)
        for run in self._askers.pop(adapter):
            self._peers.send_to(run, ended)

    async def _query(self, query: Callable[[int], Message]) -> Mapping[str, Mapping[str, AdapterUse] | None]:
        """Send a query to all other processes that load adapters. Return their replies, by run; None if a reply did
        not arrive in time.
        """
        return await self._queries.send([run for run in self._peers.runs() if run in self._others], query, REPLY_S)

    async def _follow(self) -> None:
        while True:
            self.poll()
            await asyncio.sleep(LOOK_S)

    def poll(self) -> None:
        """Publish which adapters this process can load, if that has changed."""
        if (loadable := self._loader.loadable()) != self._loadable:
            self._loadable = loadable
            self._peers.share(LoadableAdapters(loadable))


def _is_wanted(adapter: str, uses: Mapping[str, AdapterUse]) -> bool:
    return adapter in uses and uses[adapter].wanted > 0
