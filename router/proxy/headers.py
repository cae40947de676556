"""Header rules in both directions: which headers pass, and which the router sets itself.

Every header passes unchanged, in its order and with its duplicates, except: headers for one hop (RFC 9110 7.6.1,
and those that `Connection` lists), headers that the router sets (length, host, request id, rank, credentials),
headers that the operator forbids clients to set, and `accept-encoding`, because a compressed answer would hide its
`usage`. llhttp allows no line break in a name or value. A line break would let a client inject headers of its own,
so this module checks for one again. Headers by which routers direct engines and their sidecars (`STEERING`) are
never taken from a client: they would override the choice, or make a sidecar connect to an address that the client
names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from router.config.schema import Config
from router.errors import BadRequest

Headers = list[tuple[bytes, bytes]]

HOP_BY_HOP: Final = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
SET_BY_ROUTER = frozenset(
    (b"host", b"content-length", b"expect", b"accept-encoding", b"http2-settings", b"x-request-id")
)
CREDENTIALS: Final = frozenset((b"authorization", b"x-api-key"))
STEERING = frozenset(
    (
        b"x-data-parallel-rank",  # vLLM, and an alias in Dynamo
        # llm-d's sidecar at an engine: `pkg/common/routing` of llm-d-inference-scheduler, and names of earlier versions
        b"x-prefiller-host-port",
        b"x-prefiller-url",
        b"x-encoder-hosts-ports",
        b"x-kv-cache-source-host-port",
        b"x-data-parallel-host-port",
        b"x-llm-d-prefiller-host-port",
        b"x-llm-d-encoder-hosts-ports",
        b"x-llm-d-kv-cache-source-host-port",
        # Dynamo's frontend as a sidecar: `nvext.rs` and its picker; the names without `dynamo` are the older ones
        b"x-worker-instance-id",
        b"x-prefill-instance-id",
        b"x-dp-rank",
        b"x-prefill-dp-rank",
        b"x-enable-local-updates",
        b"x-epp-inject-nvext-token-data",
        b"x-dynamo-worker-instance-id",
        b"x-dynamo-prefill-instance-id",
        b"x-dynamo-dp-rank",
        b"x-dynamo-prefill-dp-rank",
        b"x-dynamo-routing-mode",
        b"x-dynamo-token-data",
        b"x-dynamo-epp-prefill-reservation-id",
        # Envoy, in front of engines or beside them: the endpoint picker protocol, and clusters of type ORIGINAL_DST
        b"x-gateway-destination-endpoint",
        b"x-gateway-destination-endpoint-subset",
        b"x-envoy-original-dst-host",
    )
)
"""Headers that name the engine, rank or helper that serves a request: only routers may set them."""
GATEWAY_REMOVES = STEERING | {b"accept-encoding"}
"""Headers that no client may set where a gateway sends the request; the gateway handles all others by itself."""
RESIZED: Final = HOP_BY_HOP | {b"content-length"}
REQUEST_ID: Final = b"x-request-id"
NO_NAMES: Final[frozenset[bytes]] = frozenset()
PREFIX: Final = b"x-warmroute-"
COMMON_CONNECTION: Final = (b"keep-alive", b"close", b"Keep-Alive")


class ForwardedHeaders:
    """A client's headers for the engine, rendered once per request, for all its attempts. `credentials` are the
    client's own; an instance with an `api_key` receives the key instead.
    """

    def __init__(self, lines: bytes, credentials: bytes) -> None:
        self.lines = lines
        self.credentials = credentials


class TraceHeader(NamedTuple):
    """The `traceparent` of one call to an engine."""

    parent: bytes
    begins: bool  # the trace begins here: a `tracestate` of the client belongs to no trace


class HeaderEdits(NamedTuple):
    """The changes that a gateway makes to a client's headers before it sends them to an engine."""

    removed: list[str]
    own_id: bool  # True: the client sent an `x-request-id`


class HeaderRules:
    """Rules for requests. `strip`: headers that clients may not set. `own_keys`: the clients' API keys are issued
    by the router and are not forwarded to engines.
    """

    def __init__(self, strip: Iterable[str] = (), *, own_keys: bool = False) -> None:
        self._own_keys = own_keys
        stripped = {name.lower().encode() for name in strip}
        self._dropped = HOP_BY_HOP | SET_BY_ROUTER | CREDENTIALS | STEERING | stripped
        self._dropped_continued = self._dropped | {b"traceparent"}
        self._dropped_begun = self._dropped | {b"traceparent", b"tracestate"}
        self._removed = GATEWAY_REMOVES | stripped | (CREDENTIALS if own_keys else frozenset())

    def forward(self, headers: Headers, request_id: str, trace: TraceHeader | None = None) -> ForwardedHeaders:
        """Return the client's headers for the engine; `request_id` is used where the client sent no `x-request-id`.
        The `traceparent` of `trace`, if given, replaces the client's. Raises `BadRequest` for a line break inside a
        header.
        """
        if hop_headers := find_hop_headers(headers):
            headers = [header for header in headers if header[0] not in hop_headers]
        dropped, lines, credentials, own_id = self._dropped, [], [], request_id.encode()
        if trace is not None:
            dropped = self._dropped_begun if trace.begins else self._dropped_continued
            lines.append(b"traceparent: %b\r\n" % trace.parent)
        for name, value in headers:
            if name not in dropped:
                if not name.startswith(PREFIX):
                    lines.append(b"%b: %b\r\n" % (name, value))
            elif name in CREDENTIALS:
                credentials.append(b"%b: %b\r\n" % (name, value))
            elif name == REQUEST_ID:
                own_id = value or own_id
        lines.append(b"x-request-id: %b\r\n" % own_id)
        return ForwardedHeaders(_join(lines), b"" if self._own_keys or not credentials else _join(credentials))

    def edit(self, headers: Headers) -> HeaderEdits:
        """Return the changes by which a gateway, which has the headers, applies the same rules."""
        removed = [name for name, _ in headers if name in self._removed or name.startswith(PREFIX)]
        return HeaderEdits([name.decode("latin-1") for name in removed], any(n == REQUEST_ID for n, _ in headers))


def build_header_rules(config: Config) -> HeaderRules:
    """Return the rules by which a client's headers are forwarded to engines: without the client's key for this
    router, and without the tenant name that a proxy added.
    """
    clients, strip = config.clients, config.edge.strip_headers
    named = [] if clients.tenant_header is None else [clients.tenant_header]
    return HeaderRules([*strip, *named], own_keys=clients.keys_file is not None or clients.jwt is not None)


NO_HEADERS = ForwardedHeaders(b"", b"")


class AnswerLabels:
    """The values of the router's own headers of an answer, `x-warmroute-target` and so on. `model`: the model that
    answers in place of an alias's first one; None if the first one answers, or there is no alias.
    """

    def __init__(self, target: str, record: str, waited_ms: float | None = None, model: str | None = None) -> None:
        self.target = target
        self.record = record
        self.waited_ms = waited_ms  # for admission; None: it did not wait
        self.model = model

    @property
    def headers(self) -> Headers:
        headers = [(b"x-warmroute-target", self.target.encode()), (b"x-warmroute-record", self.record.encode())]
        if self.waited_ms is not None:
            headers.append((b"x-warmroute-waited-ms", b"%d" % self.waited_ms))
        if self.model is not None:
            headers.append((b"x-warmroute-model", self.model.encode()))
        return headers


def response_headers(headers: Headers, labels: AnswerLabels, *, resized: bool) -> Headers:
    """Return an engine's headers for the client. `resized`: the body's length may change and is dropped."""
    dropped = RESIZED if resized else HOP_BY_HOP
    if hop_headers := find_hop_headers(headers):
        dropped |= hop_headers
    kept = [h for h in headers if h[0] not in dropped and not h[0].startswith(PREFIX)]
    return kept + labels.headers


def split_lines(lines: bytes) -> Headers:
    """Return the headers in `lines`, whole lines that the router wrote."""
    return [(name, value) for name, _, value in (line.partition(b": ") for line in lines.splitlines())]


def last_value(headers: Headers, name: bytes) -> bytes:
    """Return the last value of header `name`; empty if the header is missing."""
    found = b""
    for each, value in headers:
        if each == name:
            found = value
    return found


def content_encoding(headers: Headers) -> bytes:
    """Return the encodings by which a body is compressed; empty for a plain body."""
    values = [value.lower() for name, value in headers if name == b"content-encoding"]
    codings = [coding.strip() for value in values for coding in value.split(b",")]
    return b", ".join(coding for coding in codings if coding not in (b"", b"identity"))


def find_hop_headers(headers: Headers) -> frozenset[bytes]:
    """Return the names that `Connection` declares to be for this hop only."""
    for name, value in headers:
        if name == b"connection" and value not in COMMON_CONNECTION:
            return frozenset(token.strip().lower() for n, v in headers if n == b"connection" for token in v.split(b","))
    return NO_NAMES


def _join(lines: list[bytes]) -> bytes:
    block = b"".join(lines)
    if block.count(b"\n") != len(lines) or block.count(b"\r") != len(lines):
        raise BadRequest("a header contains a line break")
    return block
