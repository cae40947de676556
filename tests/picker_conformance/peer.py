"""The picker under test: its address, what is known of it by asking, and how to open streams to it."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import dataclass

import grpc

from router.errors import WarmrouteError
from tests.picker_conformance.conversation import PickerConversation, RequestOutcome, is_endpoint
from tests.picker_conformance.describe import describe_request
from tests.picker_conformance.messages import (
    Headers,
    MetadataFields,
    RequestVector,
    chat_body,
    subset,
)
from tests.picker_conformance.stream import PickerStream

LEARNING_REQUESTS = 16  # open at the same time, so that a picker that balances by load spreads them
MODELS_PATH = "/v1/models"
SOME_MODEL = "conformance"


@dataclass(frozen=True)
class LearnedFleet:
    """What a picker told about itself. `refusal` is what it answered when it chose no endpoint at all."""

    model: str
    endpoints: tuple[str, ...]
    refusal: RequestOutcome | None = None
    pool: tuple[str, ...] = ()  # all endpoints of the pool, where somebody named them


@dataclass(frozen=True)
class PickerPeer:
    """`health` is where its health services are asked: the same channel, or that of another port."""

    channel: grpc.aio.Channel
    health: grpc.aio.Channel
    timeout_s: float
    api_key: str | None = None
    fleet: LearnedFleet = LearnedFleet(SOME_MODEL, ())

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The endpoints that are known, in alphabetical order."""
        return self.fleet.endpoints

    @property
    def pool(self) -> tuple[str, ...]:
        return self.fleet.pool

    def converse(self, timeout_s: float | None = None) -> PickerConversation:
        """Open a stream, to be used as a context manager."""
        return PickerConversation(PickerStream(self.channel, timeout_s or self.timeout_s))

    def chat(
        self, *pieces: bytes, prompt: str = "Which way?", headers: Headers = (), metadata: MetadataFields | None = None
    ) -> RequestVector:
        """Return a chat completion request, with this body where one is given."""
        body = pieces or (chat_body(self.fleet.model, prompt),)
        return RequestVector(body, headers=self.credentials + headers, metadata=metadata or {})

    def get(self, metadata: MetadataFields | None = None, path: str | None = None) -> RequestVector:
        """Return a request without a body; the default path is none that a picker may answer by itself."""
        path = path or "/version"
        return RequestVector(None, method="GET", path=path, headers=self.credentials, metadata=metadata or {})

    def within(self, endpoints: list[str] | str) -> RequestVector:
        """Return a chat completion request whose choice is restricted to a subset."""
        return self.chat(metadata=subset(endpoints))

    @property
    def credentials(self) -> Headers:
        return () if self.api_key is None else (("authorization", f"Bearer {self.api_key}"),)


async def learn_fleet(peer: PickerPeer, model: str | None, endpoints: tuple[str, ...]) -> LearnedFleet:
    """Return what the picker serves: the endpoints that it chooses for some requests at once, and `endpoints`.

    The model is `model`, or the first one of the answer to `GET /v1/models` where the picker answers that itself, or a
    name of the suite's own. Raises WarmrouteError when the picker wants a key, or does not serve a model that was not
    named: a model that was named and is refused is an empty pool.
    """
    named, model = model is not None, model or await _ask_model(peer)
    outcomes: list[RequestOutcome] = []
    async with AsyncExitStack() as opened:
        conversations = [await opened.enter_async_context(peer.converse()) for _ in range(LEARNING_REQUESTS)]
        requests = [
            RequestVector((chat_body(model, f"Question {number}"),), headers=peer.credentials)
            for number in range(LEARNING_REQUESTS)
        ]
        asked = zip(conversations, requests, strict=True)
        outcomes += await asyncio.gather(*(one.ask(request) for one, request in asked))
    found = {one for outcome in outcomes for one in outcome.endpoints if is_endpoint(one)} | set(endpoints)
    refusal = next((one for one in outcomes if not one.endpoints), None)
    if not found and refusal is not None and (option := _missing_option(refusal.status, named)) is not None:
        raise WarmrouteError(
            f"the picker refuses a request for the model {model!r}: {describe_request(refusal)}; see {option}"
        )
    return LearnedFleet(model, tuple(sorted(found)), None if found else refusal, endpoints)


def _missing_option(status: int | None, model_named: bool) -> str | None:
    """Return the option without which requests are refused with this status; None: there is none."""
    if status in (401, 403):
        return "--api-key"
    return "--model" if status in (400, 404) and not model_named else None


async def _ask_model(peer: PickerPeer) -> str:
    async with peer.converse() as conversation:
        outcome = await conversation.ask(peer.get(path=MODELS_PATH))
    if outcome.refusal is None or outcome.status != 200:
        return SOME_MODEL
    try:
        first = json.loads(outcome.refusal.body)["data"][0]["id"]
    except (ValueError, LookupError, TypeError):
        return SOME_MODEL
    return first if isinstance(first, str) else SOME_MODEL
