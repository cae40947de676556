"""Resolves the name that a client gives a model, where it is an alias, and prepares the request for what it stands for.

Only the body's `model` changes, unless the alias has defaults or caps that do: then the body is read once more, since
what is derived from it (the prompt, the limit on the answer, whether the answer could be carried on) may depend on
them. Reading it again costs as much as reading it, and only for such requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec
from msgspec import Raw

from router.config.schema import Config
from router.errors import Forbidden, quote_name
from router.prompt.api.size_limits import LARGE_BODY_BYTES
from router.prompt.body_rewrite import open_body, set_members
from router.prompt.prompt import Prompt
from router.scheduling.model_aliases import Alias, ModelAliases, ModelChoice
from router.tenants.tenant import Tenant

Read = Callable[[bytes], Awaitable[Prompt]]
"""Reads a body that has changed as the request's own was read."""


class NamedPrompt(NamedTuple):
    """A prompt for a model that engines serve; `choice` None: the client named it so."""

    prompt: Prompt
    choice: ModelChoice | None


class ModelNames:
    def __init__(self, aliases: ModelAliases) -> None:
        self.aliases = aliases

    async def resolve(self, prompt: Prompt, body: bytes, tenant: Tenant | None, read: Read) -> NamedPrompt:
        """Return the prompt as it goes on; `body` is what it was read from. Raises `Forbidden` for a name that the
        tenant may not use, `BadRequest` for a field that a cap does not understand.
        """
        check_allowed(prompt.model, tenant)
        if (alias := self.aliases.find(prompt.model)) is None:
            return NamedPrompt(prompt, None)
        choice = self.aliases.choose(alias)
        if len(body) <= LARGE_BODY_BYTES:
            changed = apply_alias(prompt, body, alias, choice.model)
        else:
            changed = await asyncio.to_thread(apply_alias, prompt, body, alias, choice.model)
        return NamedPrompt(prompt if changed is None else await read(changed), choice)


def build_model_names(config: Config) -> ModelNames | None:
    """Return what resolves aliases; None where there are none."""
    return ModelNames(ModelAliases(config.models)) if config.models else None


def apply_alias(prompt: Prompt, body: bytes, alias: Alias, model: str) -> bytes | None:
    """Let `prompt` name `model`. Return the changed `body` instead where more than that changes in it. Raises
    `BadRequest`.
    """
    name = {"model": Raw(msgspec.json.encode(model))}
    members = open_body(body, ()).members
    if changes := alias.parameters.find_changes(prompt.endpoint, members):
        return msgspec.json.encode(members | changes | name)
    if model != prompt.model:
        prompt.model, prompt.body = model, set_members(prompt.body, name)
    return None


def check_allowed(model: str | None, tenant: Tenant | None) -> None:
    """Raise `Forbidden` for a model that the tenant may not use, by the name that the client gives it."""
    if model is None or tenant is None or tenant.service_class.allows(model):
        return
    raise Forbidden(
        f"the model `{quote_name(model)}` is not among those that {quote_name(tenant.name)} may use",
        param="model",
        code="model_not_allowed",
    )
