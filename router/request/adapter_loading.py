"""Loads a LoRA adapter on an engine when the first request for it comes, and unloads the coldest one to make room.

One loading at a time per adapter: requests that come meanwhile wait for the same one, up to `adapter_loading.wait_s`. A
loading goes on when the request that began it leaves. The fleet learns of it at once; the health check reads the
engine's own list within half a minute. From its choice to its end a request keeps its adapter from being unloaded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeGuard

from router.backends.fetch import Fetch
from router.backends.vllm.lora import LOAD, UNLOAD, find_load_error, find_unload_error, load_body, unload_body
from router.clock import Clock
from router.config.schema import Config
from router.errors import NoTarget, quote_name
from router.fleet.adapter_book import AdapterBook
from router.fleet.engine_facts import ModelCard
from router.fleet.fleet import Fleet
from router.tasks import Tasks

log = logging.getLogger("warmroute.adapters")


class AdapterLoader:
    """Loads the adapters of `config.adapters`."""

    def __init__(self, config: Config, fleet: Fleet, fetch: Fetch, tasks: Tasks, clock: Clock) -> None:
        self.adapters = config.adapters
        self._settings = config.adapter_loading
        self._fleet = fleet
        self._fetch = fetch
        self._tasks = tasks
        self._clock = clock
        self._book = AdapterBook(fleet, config.adapters, config.adapter_loading.max_loaded)
        self._loadings: dict[str, asyncio.Task[None]] = {}  # by adapter
        self._failed_s: dict[str, float] = {}  # when the last loading of an adapter failed

    def manages(self, model: str | None) -> TypeGuard[str]:
        """Return whether a model's name is an adapter that can be loaded."""
        return model in self.adapters

    def find_base(self, model: str) -> str:
        """Return the model that an instance has to serve for requests for `model`: of an adapter that can be loaded its
        base, else itself.
        """
        return self.adapters[model].base if self.manages(model) else model

    def add_cards(self, cards: Sequence[ModelCard]) -> list[ModelCard]:
        """Return the model cards with those of adapters that can be loaded, as an instance serves their base."""
        served = {card.id: card for card in cards}
        return [
            *cards,
            *(
                ModelCard(name, adapter.path, adapter.base, served[adapter.base].max_model_len)
                for name, adapter in self.adapters.items()
                if name not in served and adapter.base in served
            ),
        ]

    @asynccontextmanager
    async def use(self, adapter: str) -> AsyncIterator[None]:
        """Keep an adapter loaded inside of the block. Raises `NoTarget` where it cannot be loaded in time."""
        self._book.begin(adapter, self._clock.now())
        try:
            if not self._book.is_loaded(adapter):
                await self._wait(adapter)
            yield
        finally:
            self._book.end(adapter)

    async def _wait(self, adapter: str) -> None:
        """Wait until the adapter is loaded. Raises `NoTarget`."""
        failed_s, retry_s = self._failed_s.get(adapter), self._settings.retry_s
        if (loading := self._loadings.get(adapter)) is None:
            if failed_s is not None and self._clock.now() - failed_s < retry_s:
                raise self._refusal(adapter)
            loading = self._tasks.spawn(f"load {adapter}", self._load(adapter))
            self._loadings[adapter] = loading
        _, late = await asyncio.wait([loading], timeout=self._settings.wait_s)
        if late or not self._book.is_loaded(adapter):
            raise self._refusal(adapter)

    async def _load(self, adapter: str) -> None:
        """Load the adapter where there is room, or where another one makes room."""
        try:
            error = await self._carry_out(adapter)
        finally:
            del self._loadings[adapter]
        if error is None:
            self._failed_s.pop(adapter, None)
        else:
            self._failed_s[adapter] = self._clock.now()
            log.error("adapter %s was not loaded: %s", adapter, error)

    async def _carry_out(self, adapter: str) -> str | None:
        """Return why the adapter was not loaded; None: it was."""
        config = self.adapters[adapter]
        if (plan := self._book.plan(config.base)) is None:
            return f"no instance that serves {config.base} has room for it"
        instance = plan.instance
        self._book.loading[instance] += 1
        try:
            if plan.unload is not None and (error := await self._unload(instance, plan.unload)) is not None:
                return error
            body = load_body(adapter, config.path)
            answer = await self._fetch(instance, "POST", LOAD, body, timeout_s=self._settings.wait_s)
            error = "no answer" if answer is None else find_load_error(answer.status, answer.body)
            if error is not None:
                return f"instance {instance}: {error}"
            self._change_cards(instance, None, ModelCard(adapter, config.path, config.base, None))
        finally:
            self._book.loading[instance] -= 1
        log.info("adapter %s is loaded on instance %s", adapter, instance)
        return None

    async def _unload(self, instance: str, adapter: str) -> str | None:
        """Unload an adapter, to which no request is sent from now on. Return why it was not unloaded; None: it was."""
        card = self._change_cards(instance, adapter, None)
        answer = await self._fetch(instance, "POST", UNLOAD, unload_body(adapter), timeout_s=self._settings.wait_s)
        error = "no answer" if answer is None else find_unload_error(answer.status, answer.body)
        if error is None:
            log.info("adapter %s is unloaded from instance %s", adapter, instance)
            return None
        if card is not None:
            self._change_cards(instance, None, card)
        return f"instance {instance}: {adapter} was not unloaded: {error}"

    def _change_cards(self, instance: str, gone: str | None, new: ModelCard | None) -> ModelCard | None:
        """Change what an instance serves; return the card that is gone, if there was one."""
        member = self._fleet.get(instance)
        if member is None:
            return None
        before, replaced = member.cards, gone if new is None else new.id
        kept = [card for card in before if card.id != replaced]
        self._fleet.set_models(instance, kept if new is None else [*kept, new])
        return next((card for card in before if card.id == gone), None)

    def _refusal(self, adapter: str) -> NoTarget:
        text = f"the adapter `{quote_name(adapter)}` could not be loaded; try again"
        return NoTarget(text, retry_after_s=max(1, round(self._settings.retry_s)), code="adapter_not_loaded")


def build_adapter_loader(
    config: Config, fleet: Fleet, fetch: Fetch, tasks: Tasks, clock: Clock
) -> AdapterLoader | None:
    """Return what loads adapters; None where none are configured."""
    return AdapterLoader(config, fleet, fetch, tasks, clock) if config.adapters else None
