"""Resolves a client's name of a model if it is an alias, and prepares the request for the alias's model.

Only the body's `model` changes, unless the alias has defaults or caps that change more. Then the body is read a
second time, because what is derived from it (the prompt, the limit on the answer, whether the answer could be
continued) may depend on the changes. The second reading costs as much as the first, and only such requests need it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple, final

import msgspec
from msgspec import Raw

from router.clock import Clock
from router.control.feature import ReadBody
from router.features.aliases.aliases import Alias, ModelAliases, ModelChoice
from router.fleet.engine_facts import ModelCard
from router.fleet.instance import Instance
from router.prompt.answer_model import AnswerModel
from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.api.size_limits import LARGE_BODY_BYTES
from router.prompt.body_rewrite import open_body, set_members
from router.prompt.form_data import edit_fields, open_form
from router.prompt.prompt import Endpoint, Prompt
from router.proxy.call import ClientRequest
from router.proxy.relay import RelayEnd, RelayNotStarted
from router.request.experiment_unit import derive_unit
from router.request.reading import parse
from router.request.request import Held, Request
from router.request.request_record import describe_tokens
from router.request.route import place
from router.request.services import Services
from router.scheduling.availability import Unavailability
from router.scheduling.policy.record import Record
from router.scheduling.scheduler import Scheduler
from router.scheduling.ticket import Ticket
from router.tenants.tenant import Tenant, own_name

AS_IT_IS = ReadOptions(frozenset(), inject_usage=False, want_source=False)


class NamedPrompt(NamedTuple):
    """A prompt for a model that engines serve; `choice` is None if the client named this model itself."""

    prompt: Prompt
    choice: ModelChoice | None


@final
class ModelNames:
    """Resolves names. Requests without a known session get unit names from a number and `run_id`."""

    def __init__(self, aliases: ModelAliases, scheduler: Scheduler, clock: Clock, run_id: str) -> None:
        self.aliases = aliases
        self._clock = clock
        self._scheduler = scheduler
        self._run_id = run_id
        self._numbers = count()

    # of a request

    async def resolve_name(self, request: Request, services: Services) -> None:
        """Replace an alias in the prompt by the model that it stands for."""
        sender = request.call.sender
        named = await self.resolve(
            request.prompt, request.body, request.call.tenant, lambda body: parse(request, body, services), sender
        )
        request.prompt = named.prompt
        if named.choice is not None:
            _name_model(request, named.choice)
            request.hold(AliasUse(self.aliases, named.choice, self._clock))

    async def try_next_model(
        self, request: Request, record: Record, end: RelayEnd | None, services: Services
    ) -> RelayEnd | None:
        """Place the request with the next models of its alias, one after the other, while no engine begins to
        answer. A request of which an engine may have died goes to no other model.
        """
        use = request.find(AliasUse)
        while use is not None and not request.call.started and request.bound_to is None:
            if record.deaths or (reason := _find_reason(end)) is None:
                break
            before, now = use.choice, self._clock.now()
            if (choice := self.aliases.fall_back(before, reason, now, record.sender)) is None:
                break
            self.aliases.leave(before, record, now)
            use.choice = choice
            request.prompt = await self.fall_back(request.prompt, choice)
            _name_model(request, choice)
            for stage in services.path.again:
                if (wait := stage(request, services)) is not None:
                    await wait
            record.model, record.revision, record.fallback = choice.model, None, choice.fallback
            record.tokens_from, record.prompt_tokens_counted = describe_tokens(request.tokens)
            end = await place(request, record, services)
        return end

    def add_cards(self, cards: Sequence[ModelCard], call: ClientRequest) -> Sequence[ModelCard]:
        """Return the model cards with those of the aliases."""
        return self.aliases.add_cards(cards)

    # of a prompt

    async def resolve(
        self, prompt: Prompt, body: bytes, tenant: Tenant | None, read: ReadBody, sender: str | None = None
    ) -> NamedPrompt:
        """Return the prompt for the alias's model; `body` is what the prompt was read from. Raises `BadRequest` for
        a field that a cap cannot be applied to.
        """
        if (alias := self.aliases.find(prompt.model)) is None:
            return NamedPrompt(prompt, None)
        choice = self._choose(prompt, alias, tenant, sender)
        if len(body) <= LARGE_BODY_BYTES:
            changed = apply_alias(prompt, body, alias, choice.model)
        else:
            changed = await asyncio.to_thread(apply_alias, prompt, body, alias, choice.model)
        return NamedPrompt(prompt if changed is None else await read(changed), choice)

    async def resolve_prompt(self, prompt: Prompt, body: bytes, tenant: Tenant | None, read: ReadBody) -> Prompt:
        """Return the prompt for the model that its alias stands for, as `resolve` does."""
        return (await self.resolve(prompt, body, tenant, read)).prompt

    async def fall_back(self, prompt: Prompt, choice: ModelChoice) -> Prompt:
        """Return `prompt`, prepared before for another model of its alias, for the model of `choice`."""
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
        """Return the instance that made the response which the prompt continues; None if there is none, or it is
        unknown.
        """
        if prompt.previous_response_id is None:
            return None
        target = self._scheduler.response_target(own_name(tenant, prompt.previous_response_id))
        found = None if target is None else self._scheduler.fleet.target(target)
        return None if found is None else found.instance


class AliasUse(Held):
    """The model that answers a request for an alias, for its record and the comparison of the alias's arms."""

    def __init__(self, aliases: ModelAliases, choice: ModelChoice, clock: Clock) -> None:
        self.choice = choice
        self._first = choice  # the choice whose outcome is counted
        self._aliases = aliases
        self._clock = clock

    def on_record(self, record: Record) -> None:
        choice = self.choice
        record.alias, record.model_arm = choice.alias, choice.arm
        record.revision, record.fallback = choice.revision, choice.fallback
        self._aliases.begin(choice, record, self._clock.now())

    def on_first_byte(self, ticket: Ticket) -> None:
        self._aliases.first_byte(self.choice, ticket.record)

    def release(self, request: Request) -> None:
        if request.record is not None:
            self._aliases.end(self._first, request.record)


def _name_model(request: Request, choice: ModelChoice) -> None:
    """Have the model renamed to the client's name in the answer, if the engine uses another name."""
    request.rename = None if choice.alias == choice.model else AnswerModel(choice.model, choice.alias)
    request.other_model = choice.other


def _find_reason(end: RelayEnd | None) -> Unavailability | None:
    """Return why no engine with the model has begun to answer; None if another model must not be tried."""
    if end is None:
        return "no_instance"
    if isinstance(end, RelayNotStarted) and end.reason in ("busy", "connect"):
        return "busy" if end.reason == "busy" else "unreachable"
    return None


def apply_alias(prompt: Prompt, body: bytes, alias: Alias, model: str) -> bytes | None:
    """Set the model of `prompt` to `model`. If more than the model changes, return the changed `body` instead.
    Raises `BadRequest`.
    """
    if prompt.endpoint is not Endpoint.OTHER:
        members = open_body(body, ()).members
        if changes := alias.parameters.find_changes(prompt.endpoint, members):
            return msgspec.json.encode(members | changes | {"model": Raw(msgspec.json.encode(model))})
    if model != prompt.model:
        prompt.model, prompt.body = model, set_model(prompt, model)
    return None


def name_other(prompt: Prompt, model: str) -> Prompt:
    """Return `prompt` for another model. Its content is read again, because it may have been dropped."""
    body = set_model(prompt, model)
    source = prompt.source if prompt.delimiter is not None else read_prompt(prompt.path, None, body, AS_IT_IS).source
    return msgspec.structs.replace(prompt, model=model, body=body, source=source)


def set_model(prompt: Prompt, model: str) -> bytes:
    """Return the body of `prompt` with another `model`."""
    if prompt.delimiter is not None:
        return edit_fields(prompt.body, open_form(prompt.body, prompt.delimiter), {"model": model.encode()})
    return set_members(prompt.body, {"model": Raw(msgspec.json.encode(model))})
