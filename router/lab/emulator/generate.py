"""The four generating endpoints: a core generates a request's tokens, an answer shape turns them into bytes.

All generating requests pass through this module, which also injects the request faults: errors, rejections, and
connections cut before the first byte or inside the answer.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import msgspec

from router.clock import Clock
from router.errors import BadRequest, NoTarget
from router.lab.emulator.answer_shape import (
    DONE,
    AnswerFacts,
    AnswerShape,
    AnswerUsage,
    ChoiceText,
    TokenPiece,
)
from router.lab.emulator.disaggregation import DecodeParams
from router.lab.emulator.engine_cores import EngineCores, EngineFailed, RequestGone, TokenStream
from router.lab.emulator.http_server import HttpExchange
from router.lab.emulator.kv_connectors import KvConnectors
from router.lab.emulator.messages import MessageShape
from router.lab.emulator.openai_shapes import ChatShape, CompletionShape
from router.lab.emulator.options import EngineOptions
from router.lab.emulator.request_params import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    RequestParams,
    RequestParamsReader,
)
from router.lab.emulator.request_schema import read_body
from router.lab.emulator.responses import ResponseShape, StoredResponses, input_items
from router.lab.emulator.sampling_limits import find_late_refusal
from router.lab.emulator.vocabulary import Vocabulary
from router.lab.rng import Rng
from router.lab.simulator.engine_types import SequenceOutput
from router.tasks import Tasks

SHAPES: dict[str, Callable[[AnswerFacts], AnswerShape]] = {
    CHAT: ChatShape,
    COMPLETIONS: CompletionShape,
    MESSAGES: MessageShape,
    RESPONSES: ResponseShape,
}
CUT_AFTER_TOKENS = 3  # where `die_mid_stream` ends an answer


class _StreamWriter:
    """Writer of a streamed answer. At most `left_bytes` are sent; None: no limit."""

    def __init__(self, exchange: HttpExchange, left_bytes: int | None) -> None:
        self._exchange = exchange
        self._left_bytes = left_bytes

    async def write(self, piece: bytes) -> None:
        """Write `piece`. Raises RequestGone if a fault cuts the answer inside it."""
        left = self._left_bytes
        if left is None:
            await self._exchange.write(piece)
            return
        self._left_bytes = left - len(piece)
        if left > 0:
            await self._exchange.write(piece[:left])
        if self._left_bytes <= 0:
            raise RequestGone


class GenerateEndpoints:
    """Handler of the four generating endpoints. `in_flight` counts running requests for `/load`."""

    def __init__(
        self,
        options: EngineOptions,
        vocabulary: Vocabulary,
        cores: EngineCores,
        connectors: KvConnectors,
        clock: Clock,
        tasks: Tasks,
    ) -> None:
        self.params_reader = RequestParamsReader(options, vocabulary, clock, lambda: cores.faults, cores.adapters)
        self.responses = StoredResponses()
        self.in_flight = 0
        self._options = options
        self._vocabulary = vocabulary
        self._cores = cores
        self._connectors = connectors
        self._clock = clock
        self._tasks = tasks
        self._rng = Rng(options.seed)
        self._background: dict[str, TokenStream] = {}

    async def __call__(self, exchange: HttpExchange) -> None:
        """Answer one request. Raises RequestRefused or EngineFailed if the caller must answer with an error."""
        self._inject_errors()
        raw, body = read_body(exchange, self._options.model)
        if self._cores.faults.no_ids:
            body.pop("return_token_ids", None)
        rank = self._read_rank(exchange)
        if exchange.path == RESPONSES and body.get("previous_response_id") is not None:
            body = self.responses.expand(body) | {"previous_response_id": None}
            raw = msgspec.json.encode(body)
        id = exchange.headers.get("x-request-id") or uuid.uuid4().hex[:16]
        params = self.params_reader.read(exchange.path, raw, body)
        late = find_late_refusal(exchange.path, body, self._vocabulary.size)
        if late is not None and not params.stream:
            raise late
        params = await self._connectors.find(params, f"{id}-{uuid.uuid4().hex[:8]}", self._cores.all[rank])
        facts = AnswerFacts(id, int(self._clock.wall()), params, self._options.cached_tokens)
        shape = SHAPES[exchange.path](facts)
        if late is not None:
            await _refuse_late(exchange, shape, late)
            return
        stream = self._submit(params, rank)
        self._connectors.begin(params, stream)
        if isinstance(shape, ResponseShape) and body.get("background"):
            await exchange.send_json(self._start_background(shape, params, stream))
            return
        watch = self._tasks.spawn("watch", _abandon_when_closed(exchange, stream))
        self.in_flight += 1
        try:
            await self._answer(exchange, params, stream, shape)
        except RequestGone:
            await exchange.abort()
        except EngineFailed as failure:
            if not exchange.started:
                raise
            await _end_with_error(exchange, str(failure), "InternalServerError", None, 500)
        finally:
            self.in_flight -= 1
            stream.close()
            watch.cancel()

    def cancel(self, response_id: str) -> dict[str, Any]:
        """Cancel a background response. Raises NotFound for an unknown id, BadRequest for any other response."""
        response = self.responses.get(response_id)
        stream = self._background.pop(response_id, None)
        if stream is None:
            raise BadRequest("Cannot cancel a synchronous response.", param="response_id")
        stream.abandon()
        response["status"] = "cancelled"
        return response

    async def _answer(
        self, exchange: HttpExchange, params: RequestParams, stream: TokenStream, shape: AnswerShape
    ) -> None:
        if self._rng.happens(self._cores.faults.die_before_first_byte):
            raise RequestGone
        dies = self._rng.happens(self._cores.faults.die_mid_stream)
        choices, usage = [ChoiceText() for _ in params.sequences], AnswerUsage(params.prompt_tokens, 0, 0)
        stream_writer = _StreamWriter(exchange, self._cores.faults.die_after_bytes)
        if params.stream:
            await exchange.start_stream()
            if greeting := shape.greeting():
                await stream_writer.write(greeting)
        while pieces := self._pieces(params, await stream.tokens(), choices, usage):
            if params.stream:
                opening = shape.opening(pieces[0].usage) if usage.completion_tokens == 0 else b""
                await stream_writer.write(opening + b"".join(map(shape.piece, pieces)))
            usage = pieces[-1].usage
            if dies and usage.completion_tokens >= CUT_AFTER_TOKENS:
                raise RequestGone
        if dies:
            raise RequestGone
        whole = shape.whole(choices, usage)
        if (transfer := self._connectors.end(params, stream, usage.cached_tokens)) is not None:
            whole["kv_transfer_params"] = transfer
        if isinstance(shape, ResponseShape) and params.body.get("store") is not False:
            self.responses.put(whole, input_items(params.body))
        if params.stream:
            await stream_writer.write(shape.closing(choices, usage))
            await exchange.finish_stream()
        else:
            await exchange.send_json(whole, cut_after_bytes=self._cores.faults.die_after_bytes)

    def _pieces(
        self,
        params: RequestParams,
        tokens: list[tuple[int, SequenceOutput]],
        choices: list[ChoiceText],
        usage: AnswerUsage,
    ) -> list[TokenPiece]:
        """Append new tokens to their choices, and return them as pieces."""
        pieces = []
        prefill_cached = params.transfer.cached_tokens if isinstance(params.transfer, DecodeParams) else None
        for number, output in tokens:
            usage = usage.and_token(output.cached_tokens if prefill_cached is None else prefill_cached)
            text = "" if output.finish == "stop" else self._vocabulary.text(output.token)
            choice = choices[number]
            choice.tokens.append(output.token)
            choice.texts.append(text)
            choice.finish = output.finish
            pieces.append(TokenPiece(number, output.token, text, output.finish, usage))
        return pieces

    def _start_background(self, shape: ResponseShape, params: RequestParams, stream: TokenStream) -> dict[str, Any]:
        response = shape.unfinished("queued")
        self.responses.put(response, input_items(params.body))
        self._background[response["id"]] = stream
        self._tasks.spawn("background response", self._finish_background(shape, params, stream))
        return response

    async def _finish_background(self, shape: ResponseShape, params: RequestParams, stream: TokenStream) -> None:
        choices, usage = [ChoiceText()], AnswerUsage(params.prompt_tokens, 0, 0)
        try:
            while pieces := self._pieces(params, await stream.tokens(), choices, usage):
                usage = pieces[-1].usage
        except RequestGone:
            return
        finally:
            stream.close()
        whole = shape.whole(choices, usage)
        self._background.pop(whole["id"], None)
        self.responses.put(whole, input_items(params.body))

    def _submit(self, params: RequestParams, rank: int) -> TokenStream:
        stream = self._cores.all[rank].submit(params.sequences)
        if stream == "queue full":
            raise NoTarget("The engine's queue is full.")
        if isinstance(stream, str):
            raise BadRequest(f"The engine refuses the request: {stream}.")
        return stream

    def _read_rank(self, exchange: HttpExchange) -> int:
        """Read the rank header as vLLM does: ignore what is not a number, reject a rank that does not exist."""
        try:
            rank = int(exchange.headers.get("x-data-parallel-rank", ""))
        except ValueError:
            return self._cores.least_busy()
        if not 0 <= rank < len(self._cores.all):
            raise BadRequest(f"data_parallel_rank {rank} is out of range [0, {len(self._cores.all)}).")
        return rank

    def _inject_errors(self) -> None:
        faults = self._cores.faults
        if faults.refuse:
            raise NoTarget("The engine takes no requests.")
        if self._rng.happens(faults.error_rate):
            raise EngineFailed("The engine failed: fault error_rate.")


async def _refuse_late(exchange: HttpExchange, shape: AnswerShape, refusal: BadRequest) -> None:
    """Answer a stream that the engine core rejects after its beginning was sent."""
    await exchange.start_stream()
    if isinstance(shape, ResponseShape):  # vLLM fails to report the error and cuts the stream
        await exchange.write(shape.greeting())
        await exchange.abort()
        return
    await _end_with_error(exchange, refusal.message, "BadRequestError", refusal.param, refusal.status)


async def _end_with_error(exchange: HttpExchange, message: str, kind: str, param: str | None, status: int) -> None:
    error = {"message": message, "type": kind, "param": param, "code": status}
    await exchange.write(b"data: " + json.dumps({"error": error}).encode() + b"\n\n" + DONE)
    await exchange.finish_stream()


async def _abandon_when_closed(exchange: HttpExchange, stream: TokenStream) -> None:
    await exchange.wait_closed()
    stream.abandon()
