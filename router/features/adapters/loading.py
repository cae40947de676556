"""Loads a LoRA adapter on an engine when the first request for it comes, and unloads the coldest one to make room.

An adapter has one loading at a time: requests that come meanwhile wait for the same loading, up to
`adapter_loading.wait_s`. A loading continues when the request that began it leaves. The fleet is updated as soon as
the loading ends; the health check reads the engine's own list within half a minute. From its choice to its end, a
request keeps its adapter from being unloaded.

Of several processes, one loads the adapters of a base model, and the others wait as for a loading of their own.
Before an instance unloads an adapter, all processes have stopped choosing the instance for it; if a request wants
the adapter by then, another adapter makes room. One gap remains, also with one process: if a health check reads the
engine's list before the unloading has ended, the adapter stays listed for half a minute more, and requests for it
get the engine's 404.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeGuard, final

from router.backends.fetch import Fetch
from router.backends.vllm.lora import LOAD, UNLOAD, find_load_error, find_unload_error, load_body, unload_body
from router.clock import Clock
from router.config.schema import Config
from router.errors import NoTarget, quote_name
from router.features.adapters.book import AdapterBook, AdapterUse, LoadPlan
from router.fleet.engine_facts import ModelCard
from router.fleet.fleet import Fleet
from router.proxy.call import ClientRequest
from router.request.request import Held, Request
from router.request.services import Services
from router.tasks import Tasks

log = logging.getLogger("warmroute.adapters")


PLANS = 3  # per loading: a new plan is made if the adapter that was to make room cannot be withdrawn


class LoadFailure(NamedTuple):
    """Failure of the last loading of an adapter."""

    at_s: float
    error: str


class UsedAdapter(Held):
    """An adapter that a request uses."""

    def __init__(self, book: AdapterBook, adapter: str) -> None:
        self._book = book
        self._adapter = adapter

    def release(self, request: Request) -> None:
        self._book.end(self._adapter)


class AdapterPeers(Protocol):
    """The other processes that send requests to the same engines, implemented in `peers.py`."""

    async def load(self, adapter: str) -> str | None:
        """Have an adapter loaded by the process that loads the adapters of its base: another process, or this one
        by `AdapterLoader.carry_out`. Return why it was not loaded; None if it was.
        """

    async def list_uses(self, base: str) -> Sequence[Mapping[str, AdapterUse]]:
        """Return how the requests of each other process use the adapters of a base model."""

    async def withdraw(self, instance: str, adapter: str) -> bool:
        """Have every other process stop choosing `instance` for an adapter. Return False if a process has requests
        that want the adapter, or does not reply.
        """

    def on_loaded(self, instance: str, adapter: str) -> None:
        """Publish that an instance has an adapter."""


@final
class AdapterLoader:
    """Loads the adapters of `config.adapters`."""

    def __init__(self, config: Config, fleet: Fleet, fetch: Fetch, tasks: Tasks, clock: Clock) -> None:
        self.adapters = config.adapters
        self.wait_s = config.adapter_loading.wait_s
        self.peers: AdapterPeers | None = None  # None: this process is the only one
        self._retry_s = config.adapter_loading.retry_s
        self._fleet = fleet
        self._fetch = fetch
        self._tasks = tasks
        self._clock = clock
        self._book = AdapterBook(fleet, config.adapters, config.adapter_loading.max_loaded)
        self._loadings: dict[str, asyncio.Task[None]] = {}  # by adapter
        self._failures: dict[str, LoadFailure] = {}  # by adapter

    def manages(self, model: str | None) -> TypeGuard[str]:
        """Return whether `model` is the name of an adapter that can be loaded."""
        return model in self.adapters

    def find_base(self, model: str) -> str:
        """Return the model that an instance must serve for requests for `model`: the base of an adapter that can be
        loaded, else `model` itself.
        """
        return self.adapters[model].base if self.manages(model) else model

    def add_cards(self, cards: Sequence[ModelCard], call: ClientRequest) -> Sequence[ModelCard]:
        """Return `cards`, and the cards of adapters that can be loaded because an instance serves their base."""
        served = {card.id: card for card in cards}
        return [
            *cards,
            *(
                ModelCard(name, adapter.path, adapter.base, served[adapter.base].max_model_len)
                for name, adapter in self.adapters.items()
                if name not in served and adapter.base in served
            ),
        ]

    def loadable(self) -> frozenset[str]:
        """Return the adapters whose base model a ready instance serves."""
        bases = {adapter.base for adapter in self.adapters.values()}
        ready = {base for base in bases if self._book.find_instance(base) is not None}
        return frozenset(name for name, adapter in self.adapters.items() if adapter.base in ready)

    def find_instance(self, adapter: str) -> str | None:
        """Return a ready instance that has the adapter; None if there is none."""
        return self._book.find_instance(adapter)

    def list_uses(self, base: str) -> dict[str, AdapterUse]:
        """Return how requests of this process use the adapters of a base model."""
        names = (name for name, adapter in self.adapters.items() if adapter.base == base)
        return self._book.list_uses(names, self._clock.now())

    def set_loaded(self, instance: str, adapter: str, loaded: bool) -> None:
        """Record that an instance has an adapter, or that it must no longer be chosen for the adapter."""
        if (member := self._fleet.get(instance)) is None:
            return
        cards = [card for card in member.cards if card.id != adapter]
        if loaded:
            config = self.adapters[adapter]
            cards.append(ModelCard(adapter, config.path, config.base, None))
        self._fleet.set_models(instance, cards)

    def enter(self, request: Request, services: Services) -> Awaitable[None] | None:
        """If the request names an adapter that can be loaded, keep it from being unloaded before the request ends,
        and wait until it is loaded. Raises `NoTarget` if it cannot be loaded in time.
        """
        model = request.prompt.model
        if not self.manages(model):
            return None
        self._book.begin(model, self._clock.now())
        request.hold(UsedAdapter(self._book, model))
        return self._load_for_request(model)

    async def _load_for_request(self, adapter: str) -> None:
        if await self.load(adapter) is not None:
            text = f"the adapter `{quote_name(adapter)}` could not be loaded; try again"
            raise NoTarget(text, retry_after_s=max(1, round(self._retry_s)), code="adapter_not_loaded")

    async def load(self, adapter: str) -> str | None:
        """Wait until a ready instance has the adapter, and have it loaded if none has it. Return why none has it;
        None if one has.
        """
        if self._book.find_instance(adapter) is not None:
            return None
        if (loading := self._loadings.get(adapter)) is None:
            failure = self._failures.get(adapter)
            if failure is not None and self._clock.now() - failure.at_s < self._retry_s:
                return failure.error
            loading = self._loadings[adapter] = self._tasks.spawn(f"load {adapter}", self._load(adapter))
        await asyncio.wait([loading], timeout=self.wait_s)
        if self._book.find_instance(adapter) is not None:
            return None
        failure = self._failures.get(adapter) if loading.done() else None
        return "no ready instance has it yet" if failure is None else failure.error

    async def _load(self, adapter: str) -> None:
        try:
            error = await (self.carry_out(adapter) if self.peers is None else self.peers.load(adapter))
        finally:
            del self._loadings[adapter]
        if error is None:
            self._failures.pop(adapter, None)
        else:
            self._failures[adapter] = LoadFailure(self._clock.now(), error)
            log.error("adapter %s was not loaded: %s", adapter, error)

    async def carry_out(self, adapter: str) -> str | None:
        """Load the adapter on an instance with room, or in place of another adapter. Return why it was not loaded;
        None if it was.
        """
        base = self.adapters[adapter].base
        for _ in range(PLANS):
            if (plan := await self._plan(base)) is None:
                return f"no instance that serves {base} has room for it"
            self._book.loading[plan.instance] += 1
            try:
                if plan.unload is None or await self._withdraw(plan.instance, plan.unload):
                    return await self._replace(plan, adapter)
            finally:
                self._book.loading[plan.instance] -= 1
        return "requests want each adapter that was to make room for it, or a process has not replied"

    async def _plan(self, base: str) -> LoadPlan | None:
        """Return where to load an adapter. The use at all processes counts if another adapter must make room."""
        plan = self._book.plan(base)
        if self.peers is None or plan is None or plan.unload is None:
            return plan
        wanted = set[str]()
        for uses in await self.peers.list_uses(base):
            self._book.learn(uses, self._clock.now())
            wanted.update(name for name, use in uses.items() if use.wanted)
        return self._book.plan(base, wanted)

    async def _withdraw(self, instance: str, adapter: str) -> bool:
        """Stop choosing `instance` for an adapter, at all processes. Return False, and allow the choice again, if
        requests want the adapter or a process does not reply.
        """
        self.set_loaded(instance, adapter, False)
        withdrawn = self.peers is None or await self.peers.withdraw(instance, adapter)
        if not withdrawn:
            self._on_loaded(instance, adapter)
        return withdrawn

    async def _replace(self, plan: LoadPlan, adapter: str) -> str | None:
        """Load the adapter, in place of the withdrawn one if any. Return why it was not loaded; None if it was."""
        instance, gone = plan
        if gone is not None:
            answer = await self._fetch(instance, UNLOAD, unload_body(gone), timeout_s=self.wait_s)
            error = "no answer" if answer is None else find_unload_error(answer.status, answer.body)
            if error is not None:
                self._on_loaded(instance, gone)
                return f"instance {instance}: {gone} was not unloaded: {error}"
            log.info("adapter %s is unloaded from instance %s", gone, instance)
        body = load_body(adapter, self.adapters[adapter].path)
        answer = await self._fetch(instance, LOAD, body, timeout_s=self.wait_s)
        error = "no answer" if answer is None else find_load_error(answer.status, answer.body)
        if error is not None:
            return f"instance {instance}: {error}"
        self._on_loaded(instance, adapter)
        log.info("adapter %s is loaded on instance %s", adapter, instance)
        return None

    def _on_loaded(self, instance: str, adapter: str) -> None:
        self.set_loaded(instance, adapter, True)
        if self.peers is not None:
            self.peers.on_loaded(instance, adapter)
