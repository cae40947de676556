"""The four generating endpoints: an order goes to a core, tokens come back, a shape puts them into bytes.

This is the line every request of an emulated engine takes, and the place of its request faults: errors, refusals, and
connections cut before the first byte or inside the answer.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import msgspec

from router.clock import Clock
from router.errors import BadRequest, NoTarget
from router.tasks import Tasks
from router.testbed.emulator.answer_shape import (
    DONE,
    AnswerFacts,
    AnswerShape,
    AnswerUsage,
    ChoiceText,
    TokenPiece,
    sse_data,
)
from router.testbed.emulator.chat import ChatShape
from router.testbed.emulator.completions import CompletionShape
from router.testbed.emulator.disaggregation import DecodeParams
from router.testbed.emulator.engine_cores import EngineCores, EngineFailed, RequestGone, TokenStream
from router.testbed.emulator.http_exchange import HttpExchange
from router.testbed.emulator.kv_connectors import KvConnectors
from router.testbed.emulator.messages import MessageShape
from router.testbed.emulator.options import EngineOptions
from router.testbed.emulator.request_params import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    RequestParams,
    RequestParamsReader,
)
from router.testbed.emulator.responses import ResponseShape, StoredResponses, input_items
from router.testbed.emulator.vocabulary import Vocabulary
from router.testbed.rng import Rng
from router.testbed.simulator.engine_types import SequenceOutput

SHAPES: dict[str, Callable[[AnswerFacts], AnswerShape]] = {
    CHAT: ChatShape,
    COMPLETIONS: CompletionShape,
    MESSAGES: MessageShape,
    RESPONSES: ResponseShape,
}
CUT_AFTER_TOKENS = 3  # where `die_mid_stream` ends an answer


class GenerateEndpoints:
    """Serves all four; `in_flight` is what `/load` tells."""

    def __init__(
        self,
        options: EngineOptions,
        vocabulary: Vocabulary,
        cores: EngineCores,
        connectors: KvConnectors,
        clock: Clock,
        tasks: Tasks,
    ) -> None:
        self.params_reader = RequestParamsReader(options, vocabulary, clock, lambda: cores.faults)
        self.kept = StoredResponses()
        self.in_flight = 0
        self._options = options
        self._vocabulary = vocabulary
        self._cores = cores
        self._connectors = connectors
        self._clock = clock
        self._tasks = tasks
        self._dice = Rng(options.seed)
        self._background: dict[str, TokenStream] = {}

    async def __call__(self, call: HttpExchange) -> None:
        """Answers, or raises what is to be told as an error: Refused, Broken."""
        self._fail_by_chance()
        raw, body = call.body, read_json(call)
        rank = self._rank(call)
        if call.path == RESPONSES and body.get("previous_response_id") is not None:
            body = self.kept.continued(body) | {"previous_response_id": None}
            raw = msgspec.json.encode(body)
        id = call.headers.get("x-request-id") or uuid.uuid4().hex[:16]
        order = self.params_reader.read(call.path, raw, body)
        order = await self._connectors.find(order, f"{id}-{uuid.uuid4().hex[:8]}", self._cores.all[rank])
        answer = self._submit(order, rank)
        self._connectors.begin(order, answer)
        facts = AnswerFacts(id, int(self._clock.wall()), order, self._options.cached_tokens)
        shape = SHAPES[call.path](facts)
        if isinstance(shape, ResponseShape) and body.get("background"):
            await call.answer(self._start_background(shape, order, answer))
            return
        watch = self._tasks.spawn("watch", _abandon(call, answer))
        self.in_flight += 1
        try:
            await self._speak(call, order, answer, shape)
        except RequestGone:
            await call.cut()
        except EngineFailed as broken:
            if not call.started:
                raise
            error = {"message": str(broken), "type": "InternalServerError", "param": None, "code": 500}
            await call.write(sse_data({"error": error}) + DONE)
            await call.end()
        finally:
            self.in_flight -= 1
            answer.close()
            watch.cancel()

    def cancel(self, response_id: str) -> dict[str, Any]:
        """A background response is ended; others cannot be. Raises NotFound, BadRequest."""
        response = self.kept.get(response_id)
        answer = self._background.pop(response_id, None)
        if answer is None:
            raise BadRequest("Cannot cancel a synchronous response.", param="response_id")
        answer.abandon()
        response["status"] = "cancelled"
        return response

    async def _speak(self, call: HttpExchange, order: RequestParams, answer: TokenStream, shape: AnswerShape) -> None:
        if self._dice.happens(self._cores.faults.die_before_first_byte):
            raise RequestGone
        dies = self._dice.happens(self._cores.faults.die_mid_stream)
        said, usage = [ChoiceText() for _ in order.requests], AnswerUsage(order.prompt_tokens, 0, 0)
        if order.stream:
            await call.stream()
            if greeting := shape.greeting():
                await call.write(greeting)
        while pieces := self._pieces(order, await answer.tokens(), said, usage):
            if order.stream:
                opening = shape.opening(pieces[0].usage) if usage.completion_tokens == 0 else b""
                await call.write(opening + b"".join(map(shape.piece, pieces)))
            usage = pieces[-1].usage
            if dies and usage.completion_tokens >= CUT_AFTER_TOKENS:
                raise RequestGone
        if dies:
            raise RequestGone
        whole = shape.whole(said, usage)
        if (params := self._connectors.end(order, answer, usage.cached_tokens)) is not None:
            whole["kv_transfer_params"] = params
        if isinstance(shape, ResponseShape) and order.body.get("store") is not False:
            self.kept.keep(whole, input_items(order.body))
        if order.stream:
            await call.write(shape.closing(said, usage))
            await call.end()
        else:
            await call.answer(whole)

    def _pieces(
        self, order: RequestParams, tokens: list[tuple[int, SequenceOutput]], said: list[ChoiceText], usage: AnswerUsage
    ) -> list[TokenPiece]:
        """Writes new tokens down, and makes pieces of them."""
        pieces = []
        told = order.half.cached_tokens if isinstance(order.half, DecodeParams) else None
        for choice, output in tokens:
            usage = usage.and_token(output.cached_tokens if told is None else told)
            text = "" if output.finish == "stop" else self._vocabulary.text(output.token)
            one = said[choice]
            one.tokens.append(output.token)
            one.texts.append(text)
            one.finish = output.finish
            pieces.append(TokenPiece(choice, output.token, text, output.finish, usage))
        return pieces

    def _start_background(self, shape: ResponseShape, order: RequestParams, answer: TokenStream) -> dict[str, Any]:
        response = shape.unfinished("queued")
        self.kept.keep(response, input_items(order.body))
        self._background[response["id"]] = answer
        self._tasks.spawn("background response", self._finish_background(shape, order, answer))
        return response

    async def _finish_background(self, shape: ResponseShape, order: RequestParams, answer: TokenStream) -> None:
        said, usage = [ChoiceText()], AnswerUsage(order.prompt_tokens, 0, 0)
        try:
            while pieces := self._pieces(order, await answer.tokens(), said, usage):
                usage = pieces[-1].usage
        except RequestGone:
            return
        finally:
            answer.close()
        whole = shape.whole(said, usage)
        self._background.pop(whole["id"], None)
        self.kept.keep(whole, input_items(order.body))

    def _submit(self, order: RequestParams, rank: int) -> TokenStream:
        answer = self._cores.all[rank].submit(order.requests)
        if answer == "queue full":
            raise NoTarget("The engine's queue is full.")
        if isinstance(answer, str):
            raise BadRequest(f"The engine refuses the request: {answer}.")
        return answer

    def _rank(self, call: HttpExchange) -> int:
        """As vLLM reads the header: what is no number is ignored, a rank that is not there is refused."""
        try:
            rank = int(call.headers.get("x-data-parallel-rank", ""))
        except ValueError:
            return self._cores.least_busy()
        if not 0 <= rank < len(self._cores.all):
            raise BadRequest(f"data_parallel_rank {rank} is out of range [0, {len(self._cores.all)}).")
        return rank

    def _fail_by_chance(self) -> None:
        faults = self._cores.faults
        if faults.refuse:
            raise NoTarget("The engine takes no requests.")
        if self._dice.happens(faults.error_rate):
            raise EngineFailed("The engine failed, as it was told to.")


def read_json(call: HttpExchange) -> dict[str, Any]:
    """The body as an object. Raises BadRequest."""
    if not call.headers.get("content-type", "").startswith("application/json"):
        raise BadRequest("Unsupported Media Type: Only 'application/json' is allowed")
    try:
        return msgspec.json.decode(call.body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
        raise BadRequest(f"The body is not a JSON object: {wrong}") from None


async def _abandon(call: HttpExchange, answer: TokenStream) -> None:
    await call.gone()
    answer.abandon()
