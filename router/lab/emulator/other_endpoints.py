"""vLLM's endpoints beside generation: tokenisation, models, and stand-ins for embeddings, scores and
transcriptions.

The stand-ins' answers have the right shape and are the same every time, but mean nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from email import message_from_bytes
from email.message import Message
from typing import Any

import msgspec
import xxhash

from router.clock import Clock
from router.errors import BadRequest, Forbidden
from router.lab.emulator.http_server import HttpExchange
from router.lab.emulator.options import EngineOptions
from router.lab.emulator.request_params import CHAT, COMPLETIONS, MESSAGES, RequestParamsReader
from router.lab.emulator.request_schema import CheckedBody, read_body
from router.lab.emulator.vocabulary import Vocabulary

DIMENSIONS = 8


class OtherEndpoints:
    def __init__(
        self,
        options: EngineOptions,
        vocabulary: Vocabulary,
        params_reader: RequestParamsReader,
        clock: Clock,
        adapters: Mapping[str, str],
    ) -> None:
        self._options = options
        self._vocabulary = vocabulary
        self._params_reader = params_reader
        self._clock = clock
        self._adapters = adapters
        self._started = int(clock.wall())

    async def tokenize(self, exchange: HttpExchange) -> None:
        """Answer with token ids. Raises BadRequest for chats that this engine's `/tokenize` rejects."""
        raw, body = self._read(exchange)
        if "messages" in body:
            if self._params_reader.refuses_calls(body["messages"]):
                raise BadRequest("Tool calls in the history are not supported here.", param="messages")
            (tokens,) = self._params_reader.read_prompts(CHAT, raw, body)
        else:
            tokens = self._vocabulary.encode(body["prompt"], special=body.get("add_special_tokens", True))
        names = self._vocabulary.names(tokens) if body.get("return_token_strs") else None
        sizes = {"count": len(tokens), "max_model_len": self._options.context_tokens}
        await exchange.send_json(sizes | {"tokens": tokens, "token_strs": names})

    async def render_chat(self, exchange: HttpExchange) -> None:
        (rendered,) = self._render(exchange, CHAT)
        await exchange.send_json(rendered)

    async def render_completion(self, exchange: HttpExchange) -> None:
        await exchange.send_json(self._render(exchange, COMPLETIONS))

    def _render(self, exchange: HttpExchange, path: str) -> list[dict[str, Any]]:
        """Return one GenerateRequest per prompt, reduced to the fields that name the prompt."""
        raw, body = self._read(exchange)
        if not self._options.scale_out:
            raise Forbidden("Rendering is off: start the server with --enable-scale-out.")
        prompts = self._params_reader.read_prompts(path, raw, body, generates=True)
        return [{"request_id": uuid.uuid4().hex, "model": body["model"], "token_ids": ids} for ids in prompts]

    async def detokenize(self, exchange: HttpExchange) -> None:
        _, body = self._read(exchange)
        await exchange.send_json({"prompt": self._vocabulary.decode(msgspec.convert(body["tokens"], list[int]))})

    async def count_tokens(self, exchange: HttpExchange) -> None:
        raw, body = self._read(exchange)
        (tokens,) = self._params_reader.read_prompts(MESSAGES, raw, body)
        management = {"original_input_tokens": len(tokens)}
        await exchange.send_json({"input_tokens": len(tokens), "context_management": management})

    async def models(self, exchange: HttpExchange) -> None:
        base = self._card(self._options.model, self._options.tokenizer or self._options.model, None)
        base["max_model_len"] = self._options.context_tokens
        adapters = [self._card(name, path, self._options.model) for name, path in self._adapters.items()]
        await exchange.send_json({"object": "list", "data": [base, *adapters]})

    async def version(self, exchange: HttpExchange) -> None:
        await exchange.send_json({"version": self._options.version})

    async def embeddings(self, exchange: HttpExchange) -> None:
        _, body = self._read(exchange)
        texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
        data = [{"index": n, "object": "embedding", "embedding": _embedding(str(text))} for n, text in enumerate(texts)]
        await exchange.send_json(self._listing("embd", body, data) | {"usage": self._usage(texts)})

    async def rerank(self, exchange: HttpExchange) -> None:
        _, body = self._read(exchange)
        documents, query = body["documents"], str(body["query"])
        results: list[dict[str, Any]] = []
        for index, text in enumerate(documents):
            document = {"text": str(text), "multi_modal": None}
            results.append({"index": index, "document": document, "relevance_score": _score(query, text)})
        results.sort(key=lambda result: -float(result["relevance_score"]))
        usage = self._usage([query, *documents])
        answer = {"id": f"rerank-{uuid.uuid4().hex[:16]}", "model": body.get("model") or self._options.model}
        answer["usage"] = {name: usage[name] for name in ("prompt_tokens", "total_tokens")}
        await exchange.send_json(answer | {"results": results[: body.get("top_n")]})

    async def score(self, exchange: HttpExchange) -> None:
        _, body = self._read(exchange)
        left = _read_list(body, "text_1", "data_1", "queries")
        right = _read_list(body, "text_2", "data_2", "documents")
        pairs = list(zip(left * len(right) if len(left) == 1 else left, right, strict=True))
        data = [{"index": index, "object": "score", "score": _score(*pair)} for index, pair in enumerate(pairs)]
        await exchange.send_json(self._listing("embd", body, data) | {"usage": self._usage([*left, *right])})

    async def transcribe(self, exchange: HttpExchange) -> None:
        """Answer with the uploaded file's length, in words. Raises BadRequest without a form and a file."""
        kind = exchange.headers.get("content-type", "")
        message = message_from_bytes(f"content-type: {kind}\r\n\r\n".encode("latin-1") + exchange.body)
        if not message.is_multipart():
            raise BadRequest("There was an error parsing the body")
        fields: dict[str, bytes] = {}
        for part in message.get_payload():
            if isinstance(part, Message):
                name = str(part.get_param("name", "", "content-disposition"))
                fields[name] = bytes(part.get_payload(decode=True) or b"")
        if "file" not in fields:
            raise BadRequest("Field required", param="file")
        if model := fields.get("model", b"").decode():
            self._params_reader.read_adapter(model)
        usage = {"type": "duration", "seconds": 1}
        await exchange.send_json({"text": f"{len(fields['file'])} bytes of sound", "usage": usage})

    def _read(self, exchange: HttpExchange) -> CheckedBody:
        """Return the body of a request for a model that is served."""
        request = read_body(exchange, self._options.model)
        self._params_reader.read_adapter(request.fields["model"])
        return request

    def _card(self, id: str, root: str, parent: str | None) -> dict[str, Any]:
        card = {"id": id, "object": "model", "created": self._started, "owned_by": "vllm", "root": root}
        permission = {"id": f"modelperm-{id}", "object": "model_permission", "created": self._started}
        return card | {"parent": parent, "max_model_len": None, "permission": [permission]}

    def _listing(self, prefix: str, body: dict[str, Any], data: list[dict[str, Any]]) -> dict[str, Any]:
        head = {"id": f"{prefix}-{uuid.uuid4().hex[:16]}", "object": "list", "created": int(self._clock.wall())}
        return head | {"model": body.get("model") or self._options.model, "data": data}

    def _usage(self, texts: list[Any]) -> dict[str, Any]:
        count = sum(len(self._vocabulary.encode(str(text))) for text in texts)
        return {"prompt_tokens": count, "total_tokens": count, "completion_tokens": 0, "prompt_tokens_details": None}


def _read_list(body: dict[str, Any], *names: str) -> list[Any]:
    value = next((body[name] for name in names if name in body), None)
    if value is None:
        raise BadRequest(f"`{names[0]}` is missing", param=names[0])
    return value if isinstance(value, list) else [value]


def _score(left: object, right: object) -> float:
    return xxhash.xxh3_64_intdigest(f"{left}\0{right}".encode()) / 2**64


def _embedding(text: str) -> list[float]:
    return [xxhash.xxh3_64_intdigest(text.encode(), seed) / 2**63 - 1 for seed in range(DIMENSIONS)]
