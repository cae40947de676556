"""Requests as stages see them, without a router."""

from __future__ import annotations

from router.config import schema
from router.fleet.fleet import Fleet
from router.fleet.instance import Instance, ServedModel, Target
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.prompt import Endpoint, Prompt, UnknownIds
from router.request.concurrency import ConcurrencyLimiter
from router.request.request import Request
from router.tenants.tenant import Tenant
from tests.router.proxy.connections import an_exchange

UNKNOWN = UnknownIds("not_needed")
SERVED = ServedModel("m", None)


def a_target() -> Target:
    """Return the only target of an instance."""
    instance = Fleet(schema.FleetConfig()).join(schema.InstanceConfig(url="http://a:1"))
    assert isinstance(instance, Instance)
    return instance.targets[0]


def a_request(
    prompt: Prompt | None = None,
    tokens: TokenizedPrompt | UnknownIds = UNKNOWN,
    *,
    model: str = "m",
    served: ServedModel | None = SERVED,
    tenant: Tenant | None = None,
) -> Request:
    """Return a request that was read; `prompt` None: one of a chat with `model`."""
    call = an_exchange(path="/v1/chat/completions")
    call.tenant = tenant
    request = Request(call, ConcurrencyLimiter(100, 1 << 20).open("client"), 0.0)
    request.prompt = prompt or Prompt(Endpoint.CHAT, Endpoint.CHAT.value, model, b"{}", UNKNOWN)
    request.name, request.served, request.tokens = request.prompt.model, served, tokens
    return request
