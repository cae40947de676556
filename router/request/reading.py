"""The stages of every request: they read its body, resolve its model, and find its prompt's token ids."""

from __future__ import annotations

import asyncio
from typing import Final

from router.backends.vllm.disaggregation import PARAMS
from router.config.schema import Config
from router.errors import NotFound, UnsupportedCoding, quote_name
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.api.parse import ReadOptions, read_prompt, read_request_headers
from router.prompt.api.size_limits import LARGE_BODY_BYTES
from router.prompt.prompt import Endpoint, Prompt, UnknownIds
from router.proxy.call import ClientRequest
from router.proxy.headers import content_encoding
from router.request.admin_tokens import read_override
from router.request.models import name_model
from router.request.models import resolve_model as find_served
from router.request.request import Request
from router.request.services import Services

STORED: Final = "/v1/responses/{id}"  # the endpoint's name in records and metrics
NOT_NEEDED: Final = UnknownIds("not_needed")


def build_read_options(config: Config, *, want_source: bool = False, relays: bool = False) -> ReadOptions:
    """Return how to read bodies; the prompt in a body is read only when its token ids are needed. A data path that
    relays the answers (`relays`) may also request fields that it then removes from them.
    """
    stripped = frozenset(config.edge.strip_fields)
    continues = relays and config.limits.continuation_bytes > 0 and PARAMS in stripped
    return ReadOptions(stripped, config.usage == "inject", want_source=want_source, continues=continues)


def check_coding(call: ClientRequest) -> None:
    """Raise `UnsupportedCoding` for a compressed body: engines accept none, and its fields cannot be checked."""
    if b"content-encoding" in call.fields and (coding := content_encoding(call.headers)):
        name = quote_name(coding.decode("latin-1"))
        raise UnsupportedCoding(f"a body in `Content-Encoding: {name}` cannot be read: send it plain")


async def read_request(request: Request, services: Services) -> None:
    """Read the body into a prompt that names a model. The request takes its slot when the body is complete."""
    call = request.call
    policies = services.scheduler.selector.policy_set.policies
    request.override = read_override(call.fields, services.admin_tokens, policies)
    request.body = await call.body(services.config.limits.body_bytes, request.slot)
    request.slot.take()
    request.read_s = services.clock.now()
    prompt = request.prompt = await parse(request, request.body, services)
    if prompt.previous_response_id is not None:
        await services.stored_responses.find(prompt.previous_response_id, call.tenant)
    if prompt.model is None:
        name_model(prompt, services.scheduler.fleet, call.tenant, implied=services.data_path.implies_model)
    request.name = prompt.model


def end_reading(request: Request, services: Services) -> None:
    """Record how long reading took, including the stages that changed the body."""
    request.durations.parse_ms = (services.clock.now() - request.read_s) * 1e3


async def parse(request: Request, body: bytes, services: Services) -> Prompt:
    """Read the parts of a body that routing needs; the prompt itself stays `Unread`. Large bodies are read in a
    thread, one at a time, because several at once would delay the event loop.
    """
    call, override = request.call, request.override
    chosen = services.scheduler.selector.policy_set if override is None else override.policy
    options = services.read_options if chosen.continuation else services.read_options.uncontinued
    scope = None if call.tenant is None else call.tenant.scope
    fields = call.path, call.text(b"content-type"), body, options, read_request_headers(call.fields), scope
    if len(body) <= LARGE_BODY_BYTES:
        return read_prompt(*fields)
    async with services.large_body:
        return await asyncio.to_thread(read_prompt, *fields)


async def find_response(request: Request, services: Services) -> None:
    """Find the stored response that the request is about, and read the request's body. Raises `NotFound` for an
    unknown response id.
    """
    call, response_id = request.call, request.response_id
    assert response_id is not None, "its path names one"
    if await services.stored_responses.find(response_id, call.tenant) is None:
        raise NotFound(f"the response `{quote_name(response_id)}` is not known here", code="unknown_response")
    request.body = await call.body(services.config.limits.body_bytes, request.slot)
    request.slot.take()
    request.read_s = services.clock.now()
    request.tokens = UnknownIds("endpoint")
    request.prompt = Prompt(
        Endpoint.OTHER, STORED, None, request.body, request.tokens, previous_response_id=response_id
    )


def resolve_model(request: Request, services: Services) -> None:
    """Find the model that the request's model name stands for. Raises `NotFound` and `NoTarget`."""
    request.served = find_served(request.prompt, services.scheduler, request.name)


async def tokenize(request: Request, services: Services) -> None:
    """Find the prompt's token ids and block keys, or the reason why they are unknown: for instance, the prompt is
    certainly longer than allowed.
    """
    request.tokens = await _find_tokens(request, services)


async def _find_tokens(request: Request, services: Services) -> TokenizedPrompt | UnknownIds:
    prompt, served, override, scheduler = request.prompt, request.served, request.override, services.scheduler
    if isinstance(prompt.source, UnknownIds):
        return prompt.source
    if served is None:
        return UnknownIds("no_model")
    if not (scheduler.selector.policy_set.needs_cache or (override is not None and override.policy.needs_cache)):
        prompt.source = NOT_NEEDED
        return NOT_NEEDED
    instances: list[str] = []
    if services.tokenization.source(served.base, prompt.endpoint) == "remote":
        candidates = scheduler.fleet.candidates(served.base, (), services.clock.now())
        instances = list(dict.fromkeys(target.instance.id for target in candidates))
    sizes = scheduler.block_sizes(served.base)
    longest = scheduler.fleet.context_tokens(served.base)
    if request.most_tokens is not None:
        longest = request.most_tokens if longest is None else min(longest, request.most_tokens)
    known = await services.tokenization.tokenize(
        prompt, served.base, served.adapter, sizes, instances, context_tokens=longest, client=request.call.sender
    )
    if isinstance(known, TokenizedPrompt) and (missed := scheduler.indexer.missed).needed:
        known = known._replace(origin=scheduler.hash_inputs(prompt.salt, served))
        for _ in missed.recall(known):
            await asyncio.sleep(0)
    return known
