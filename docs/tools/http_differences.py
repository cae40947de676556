"""The section of the HTTP reference on answers that differ from those of an engine asked directly.

`tests/oracle` reads its tables from the page. A difference that is not listed fails there, and so does a row that no
request of the corpus needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from docs.tools.markdown import table


class AnswerDifference(NamedTuple):
    """Requests that the router answers itself. `engine`, `router`: the statuses of both, `any` for each one."""

    key: str
    requests: str
    engine: str
    router: str
    why: str


ANSWERS = (
    AnswerDifference(
        *("paths", "a path that is not served here, or a method that a path does not have", "any", "404, 405"),
        "an engine serves its administration beside the OpenAI paths; 405 names the methods in `Allow`",
    ),
    AnswerDifference(
        *("head", "`HEAD`", "any", "200, 404, 405"),
        "answered wherever `GET` is (RFC 9110 9.3.2); vLLM answers 405 on most paths",
    ),
    AnswerDifference(
        *("options", "`OPTIONS`", "any", "200, 400, 404, 405"),
        "the router answers for the fleet: preflights by `edge.cors_origins`, others with 405",
    ),
    AnswerDifference(
        *("models", "`GET /v1/models`, `GET /v1/models/{id}`", "200, 404, 405", "200, 404, 405"),
        "the models of the whole fleet; engines have no path for a single one, OpenAI's clients use it",
    ),
    AnswerDifference(
        *("websocket", "`GET /v1/responses` with an upgrade to WebSocket", "any", "426"),
        "clients that offer it (Codex) continue with `POST`",
    ),
    AnswerDifference(
        *("encodings", "a body in UTF-16 or UTF-32, or with a byte order mark", "200", "400"),
        "RFC 8259 8.1 allows neither; the router reads and edits bodies as UTF-8",
    ),
    AnswerDifference(
        *("python-json", "`NaN`, `Infinity` or half of a surrogate pair in a body", "200, 400, 500", "400"),
        "Python's JSON module takes them, RFC 8259 does not",
    ),
    AnswerDifference(
        *("depth", "a body nested more deeply than the router reads", "200, 400", "400"),
        "the limit is Python's recursion limit on both sides, which they reach at different depths",
    ),
    AnswerDifference(
        *("stored-responses", "`/v1/responses/{id}` with an id that the router does not know", "any", "404, 405"),
        "only the engine that made a response has it",
    ),
    AnswerDifference(
        *(
            "own-fields",
            "an invalid value in `edge.strip_fields`, or in an isolated tenant's `cache_salt`",
            "400",
            "200",
        ),
        "the router removes or replaces the field, whatever it holds",
    ),
    AnswerDifference(
        *("fields", "a body with more than 1,000 fields", "200", "400"),
        "fields are split before some of them are removed or set; real requests have a few dozen",
    ),
    AnswerDifference(
        *("content-encoding", "a body with a `Content-Encoding`", "200, 400", "415"),
        "vLLM reads the compressed bytes as JSON, which fails with a misleading message",
    ),
)
BODIES = (
    (
        "stream-fingerprint",
        "`system_fingerprint` of streamed chats and completions without `stream_options.include_usage`",
        "vLLM 0.32 puts it into the usage chunk, which the router requested and removed (`usage: observe`: same bytes)",
    ),
    (
        "usage-not-asked",
        "the usage chunk of a stream whose client did not ask for it",
        "removed, even if the engine sends it to everybody (`--enable-force-include-usage`)",
    ),
    (
        "done-after-error",
        "`[DONE]` after an engine's own 5xx in a stream of chat or completion chunks",
        "always sent: the router reads no further, as another engine may complete the answer",
    ),
)
HEADERS = (
    ("`x-warmroute-*`", "added, see above"),
    ("`connection`, `keep-alive`, `transfer-encoding`, `content-length`", "each connection has its own framing"),
    ("`date`, `server`", "relayed from engines, absent from answers of the router itself"),
    ("`x-ratelimit-*`, `anthropic-ratelimit-*`", "added where a tenant has limits"),
)


def differences() -> Iterator[str]:
    yield "## Differences from an engine\n"
    yield "Every other request is answered through the router with the status, headers and bytes of the engine: tests"
    yield "send the requests of 19 clients, all methods and malformed bodies to both and compare them. Errors that the"
    yield "router finds itself have the engine's status, and OpenAI's `type` and `code` (for Anthropic's clients"
    yield "Anthropic's `type`) where vLLM writes the name of a Python class and the status.\n"
    yield "### Answers\n"
    yield from table(("key", "request", "engine", "router", "why"), [(f"`{row.key}`", *row[1:]) for row in ANSWERS])
    yield "### Bodies\n"
    yield from table(("key", "what", "why"), [(f"`{key}`", *rest) for key, *rest in BODIES])
    yield "### Headers\n"
    yield from table(("header", "why"), HEADERS)
