"""A thin HTTP forwarder in front of a service that only selects: Dynamo's (`python -m dynamo.select_service`). It has
an engine tokenize each chat, requests a selection, streams the answer from the selected engine, and reports the first
byte and the end. The CPU time and the delay of its own are not the service's.

    python -m tests.headtohead.forwarder JSON     # the fields of `ForwarderOptions`
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator

import httpx
import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tests.headtohead.engines import MODEL, Engine

STARTED_S, POLL_S = 30.0, 0.05
CHAT = "/v1/chat/completions"
STEP_TOKENS = 8192


class ForwarderOptions(msgspec.Struct, frozen=True):
    """`service`: the command that runs the service. `sessions`: send it the ids of sessions."""

    port: int
    service_port: int
    service: tuple[str, ...]
    engines: tuple[Engine, ...]
    sessions: bool


class Forwarder:
    """`ready` is set when the service knows all engines."""

    def __init__(self, options: ForwarderOptions) -> None:
        self._options = options
        self._service = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{options.service_port}", trust_env=False, timeout=30.0
        )
        self._http = httpx.AsyncClient(trust_env=False, timeout=900.0, limits=httpx.Limits(max_connections=None))
        self.ready = False

    async def register(self) -> None:
        """Wait for the service, and register the engines."""
        deadline = time.monotonic() + STARTED_S
        while not self.ready and time.monotonic() < deadline:
            try:
                await self._service.get("/health")
                self.ready = True
            except httpx.TransportError:
                await asyncio.sleep(POLL_S)
        for number, engine in enumerate(self._options.engines):
            worker = {
                "worker_id": number,
                "model_name": MODEL,
                "endpoint": engine.url,
                "kv_events_endpoint": engine.events,
                "replay_endpoint": engine.replay,
                "block_size": engine.block_tokens,
                "total_kv_blocks": engine.blocks,
                "max_num_batched_tokens": STEP_TOKENS,
            }
            (await self._service.post("/workers", json=worker)).raise_for_status()

    async def chat(self, request: Request) -> Response:
        """Answer a chat from the engine that the service selects."""
        body = await request.body()
        headers = {"content-type": "application/json"}
        rendered = await self._http.post(f"{self._options.engines[0].url}{CHAT}/render", content=body, headers=headers)
        wanted = {
            "model_name": MODEL,
            "token_ids": rendered.raise_for_status().json()["token_ids"],
            "expected_output_tokens": msgspec.json.decode(body)["max_tokens"],
        }
        session = request.headers.get("x-session-id")
        if self._options.sessions and session is not None:  # without, it chooses otherwise, sticky or not
            wanted["session_id"] = session
        found = (await self._service.post("/select_and_reserve", json=wanted)).raise_for_status().json()
        sent = self._http.build_request("POST", f"{found['endpoint']}{CHAT}", content=body, headers=headers)
        answer = await self._http.send(sent, stream=True)
        pieces = self._follow(answer, f"/reservations/{found['selection_id']}")
        return StreamingResponse(pieces, answer.status_code, {"content-type": answer.headers["content-type"]})

    async def _follow(self, answer: httpx.Response, reservation: str) -> AsyncIterator[bytes]:
        """Yield the answer's bytes, and report its first one and its end."""
        prefilled = False
        try:
            async for piece in answer.aiter_raw():
                if not prefilled:
                    prefilled = True
                    await self._service.post(f"{reservation}/prefill_complete")
                yield piece
        finally:
            await answer.aclose()
            await self._service.delete(reservation)

    async def health(self, _: Request) -> Response:
        return Response(status_code=200 if self.ready else 503)


async def serve(options: ForwarderOptions) -> None:
    """Run the service and the forwarder until the process is stopped."""
    forwarder = Forwarder(options)
    service = await asyncio.create_subprocess_exec(*options.service, env=os.environ | {"DYN_LOG": "error"})
    try:
        await forwarder.register()
        routes = [Route(CHAT, forwarder.chat, methods=["POST"]), Route("/health", forwarder.health)]
        config = uvicorn.Config(Starlette(routes=routes), host="127.0.0.1", port=options.port, log_level="error")
        await uvicorn.Server(config).serve()
    finally:
        service.terminate()
        await service.wait()


if __name__ == "__main__":
    asyncio.run(serve(msgspec.json.decode(sys.argv[1], type=ForwarderOptions)))
