"""Resolves the name that a client gives a model, where it is an alias, and prepares the request for what it stands for.

Only the body's `model` changes, unless the alias has defaults or caps that do: then the body is read once more, since
what is derived from it (the prompt, the limit on the answer, whether the answer could be carried on) may depend on
them. Reading it again costs as much as reading it, and only for such requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import NamedTuple

import msgspec
from msgspec import Raw

from router.clock import Clock
from router.config.schema import Config
from router.errors import BadRequest, Forbidden, NoTarget, NotFound, list_names, quote_name
from router.fleet.fleet import Fleet
from router.fleet.instance import Instance, ServedModel
from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.api.size_limits import LARGE_BODY_BYTES
from router.prompt.body_rewrite import open_body, set_members
from router.prompt.form_data import edit_fields, open_form
from router.prompt.prompt import Endpoint, Prompt
from router.request.experiment_unit import derive_unit
from router.scheduling.model_aliases import Alias, ModelAliases, ModelChoice
from router.scheduling.scheduler import Scheduler
from router.tenants.tenant import Tenant, own_name

AS_IT_IS = ReadOptions(frozenset(), inject_usage=False, want_source=False)

Read = Callable[[bytes], Awaitable[Prompt]]
"""Reads a body that has changed as the request's own was read."""


class NamedPrompt(NamedTuple):
    """A prompt for a model that engines serve; `choice` None: the client named it so."""

    prompt: Prompt
    choice: ModelChoice | None


class ModelNames:
    """Resolves names. Requests of which no session is known get names for their units by a number and `run_id`."""

    def __init__(self, aliases: ModelAliases, scheduler: Scheduler, clock: Clock, run_id: str) -> None:
        self.aliases = aliases
        self._clock = clock
        self._scheduler = scheduler
        self._run_id = run_id
        self._numbers = count()

    async def resolve(
        self, prompt: Prompt, body: bytes, tenant: Tenant | None, read: Read, sender: str | None = None
    ) -> NamedPrompt:
        """Return the prompt as it goes on; `body` is what it was read from. Raises `Forbidden` for a name that the
        tenant may not use, `BadRequest` for a field that a cap does not understand.
        """
        check_allowed(prompt.model, tenant)
        if (alias := self.aliases.find(prompt.model)) is None:
            return NamedPrompt(prompt, None)
        choice = self._choose(prompt, alias, tenant, sender)
        if len(body) <= LARGE_BODY_BYTES:
            changed = apply_alias(prompt, body, alias, choice.model)
        else:
            changed = await asyncio.to_thread(apply_alias, prompt, body, alias, choice.model)
        return NamedPrompt(prompt if changed is None else await read(changed), choice)

    async def fall_back(self, prompt: Prompt, choice: ModelChoice) -> Prompt:
        """Return `prompt`, which was prepared for another model of its alias, for the model of `choice`."""
        if len(prompt.body) <= LARGE_BODY_BYTES:
            return name_other(prompt, choice.model)
        return await asyncio.to_thread(name_other, prompt, choice.model)

    def _choose(self, prompt: Prompt, alias: Alias, tenant: Tenant | None, sender: str | None) -> ModelChoice:
        maker = self._find_maker(prompt, tenant)
        if maker is not None and (choice := self.aliases.choose_of(alias, maker)) is not None:
            return choice
        unit = None
        if (split := alias.split) is not None:
            client = None if tenant is None else tenant.name
            unit = derive_unit(
                split.spec, prompt, self._scheduler.conversations, client, f"{self._run_id}/{next(self._numbers)}", 0.0
            )
        return self.aliases.choose(alias, self._clock.now(), unit, sender)

    def _find_maker(self, prompt: Prompt, tenant: Tenant | None) -> Instance | None:
        """Return the instance that made the response which the prompt goes on from; None: none, or it is not known."""
        if prompt.previous_response_id is None:
            return None
        target = self._scheduler.response_target(own_name(tenant, prompt.previous_response_id))
        found = None if target is None else self._scheduler.fleet.target(target)
        return None if found is None else found.instance


def build_model_names(config: Config, scheduler: Scheduler, clock: Clock, run_id: str) -> ModelNames | None:
    """Return what resolves aliases; None where there are none."""
    if not config.models:
        return None
    bases = {name: adapter.base for name, adapter in config.adapters.items()}
    return ModelNames(ModelAliases(config.models, scheduler.fleet, bases), scheduler, clock, run_id)


def apply_alias(prompt: Prompt, body: bytes, alias: Alias, model: str) -> bytes | None:
    """Let `prompt` name `model`. Return the changed `body` instead where more than that changes in it. Raises
    `BadRequest`.
    """
    if prompt.endpoint is not Endpoint.OTHER:
        members = open_body(body, ()).members
        if changes := alias.parameters.find_changes(prompt.endpoint, members):
            return msgspec.json.encode(members | changes | {"model": Raw(msgspec.json.encode(model))})
    if model != prompt.model:
        prompt.model, prompt.body = model, set_model(prompt, model)
    return None


def name_other(prompt: Prompt, model: str) -> Prompt:
    """Return `prompt` for another model. Its content is read anew: what was read may have been dropped."""
    body = set_model(prompt, model)
    source = prompt.source if prompt.delimiter is not None else read_prompt(prompt.path, None, body, AS_IT_IS).source
    return msgspec.structs.replace(prompt, model=model, body=body, source=source)


def set_model(prompt: Prompt, model: str) -> bytes:
    """Return the body of `prompt` with another `model`."""
    if prompt.delimiter is not None:
        return edit_fields(prompt.body, open_form(prompt.body, prompt.delimiter), {"model": model.encode()})
    return set_members(prompt.body, {"model": Raw(msgspec.json.encode(model))})


def name_model(prompt: Prompt, fleet: Fleet, tenant: Tenant | None, *, implied: bool = True) -> None:
    """Let a prompt that names no model be for the only base model, as engines take it; the body stays. One that is
    placed by load needs no name, unless its tenant may use some models only: whatever its body is, an engine of another
    model must not get it. Raises `BadRequest` where there are several models, or none is `implied`; `NoTarget` where
    none is known yet.
    """
    if prompt.endpoint is Endpoint.OTHER and may_use_all(tenant):
        return
    names = fleet.base_models()
    if not names:
        raise NoTarget("no engine is ready yet; try again", retry_after_s=1)
    if len(names) > 1 or not implied:
        usable = [name for name in names if tenant is None or tenant.service_class.allows(name)]
        listed = list_names(usable) or "none that you may use"
        raise BadRequest(f"`model` is missing; models here: {listed}", param="model")
    (prompt.model,) = names


def may_use_all(tenant: Tenant | None) -> bool:
    """Return whether there is no list of the models that the tenant may use."""
    return tenant is None or tenant.service_class.allows_all


def check_allowed(model: str | None, tenant: Tenant | None) -> None:
    """Raise `Forbidden` for a model that the tenant may not use, by the name that the client gives it."""
    if model is None or tenant is None or tenant.service_class.allows(model):
        return
    raise Forbidden(
        f"the model `{quote_name(model)}` is not among those that {quote_name(tenant.name)} may use",
        param="model",
        code="model_not_allowed",
    )


def resolve_model(prompt: Prompt, scheduler: Scheduler, choice: ModelChoice | None = None) -> ServedModel | None:
    """Return what the model's name stands for; `None` where the request names none (load-placed endpoints only). The
    name is the client's own unless an alias made the `choice`. Raises `NotFound` for one that no instance serves,
    `NoTarget` for one that never was while no instance is ready to say what it serves.
    """
    if prompt.model is None:
        return None
    served = scheduler.fleet.resolve(prompt.model)
    if served is None:
        name = quote_name(prompt.model if choice is None else choice.alias)
        others = list_names(card.id for card in scheduler.fleet.models())
        if not others:
            raise NoTarget("no engine is ready yet; try again", retry_after_s=1)
        raise NotFound(
            f"the model `{name}` does not exist; models here: {others}", param="model", code="model_not_found"
        )
    return served
