"""The head of a request as llhttp parsed it, checked for faults that llhttp allows.

A request is refused if two HTTP parsers could read it differently, if this server does not support it (CONNECT,
transfer codings other than chunked), or if it does not name its host exactly once and validly (RFC 9112 3.2). Pure.
"""

from __future__ import annotations

import string
import urllib.parse
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import httptools
import msgspec

from router.proxy.call import Headers

STATUS_LINES: Final = {s.value: b"HTTP/1.1 %d %b\r\n" % (s.value, s.phrase.encode()) for s in HTTPStatus}
MAX_HEADERS: Final = 100  # the default of Apache and Envoy; as objects, short ones take 50 times their bytes
UPGRADE = (b"upgrade", b"http2-settings")  # headers, and options of `Connection`
HOST_BYTES: Final = (
    string.ascii_letters + string.digits + "-._~%!$&'()*+,;=:[]"
).encode()  # RFC 3986 3.2.2, and a port


class UnfitRequest(Exception):
    """The request is refused and its connection closed. Raised in a parser callback, this stops the parser."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class RequestHead:
    """A request's head. `target` is the path with its query; `keep_alive` and `http_1_1` are the client's; `fields`
    are the headers by name, with the first of several values.
    """

    def __init__(
        self,
        method: str,
        path: str,
        target: bytes,
        headers: Headers,  # names in lower case
        fields: Mapping[bytes, bytes],
        http_1_1: bool,
        keep_alive: bool,
    ) -> None:
        self.method = method
        self.path = path
        self.target = target
        self.headers = headers
        self.fields = fields
        self.http_1_1 = http_1_1
        self.keep_alive = keep_alive


def read_head(parser: httptools.HttpRequestParser, target: bytes, headers: Headers) -> RequestHead:
    """Return the head that `parser` has just completed. Raises `UnfitRequest`."""
    _check_count(headers)
    version, method = parser.get_http_version(), parser.get_method()
    if version not in ("1.1", "1.0"):
        raise UnfitRequest(505, "this version of HTTP is not supported")
    if method == b"CONNECT":
        raise UnfitRequest(400, "CONNECT is not supported: this is no proxy")
    if not target.startswith(b"/") or b"#" in target:
        url: Any = httptools.parse_url(target)  # a part may be None, which the type stub omits
        target = (url.path or b"/") + (b"?" + url.query if url.query else b"")
    path = target.partition(b"?")[0].decode("ascii")
    head = RequestHead(
        method.decode("ascii"),
        urllib.parse.unquote(path) if "%" in path else path,
        target,
        headers,
        dict(reversed(headers)),
        version == "1.1",
        version == "1.1" and parser.should_keep_alive(),
    )
    _check_host(head)
    _check_coding(head)
    return head


def render_without_upgrade(parser: httptools.HttpRequestParser, target: bytes, headers: Headers) -> bytes:
    """Return the head that `parser` has just completed, without its offer to switch to another protocol."""
    lines = [b"%b %b HTTP/%b" % (parser.get_method(), target, parser.get_http_version().encode())]
    for name, value in headers:
        if name == b"connection":
            options = [option for option in value.split(b",") if option.strip().lower() not in UPGRADE]
            lines.append(b"connection: " + b",".join(options))
        elif name not in UPGRADE:
            lines.append(b"%b: %b" % (name, value))
    return b"\r\n".join([*lines, b"", b""])


def measure_head(target: bytes, headers: Headers) -> int:
    """Return the size of a request's head, bytes."""
    return len(target) + sum(len(name) + len(value) + 4 for name, value in headers)


def check_begun(bytes_: int, headers: Headers, limit_bytes: int) -> None:
    """Raise `UnfitRequest` if more of an unfinished head has arrived than a whole one may have."""
    if bytes_ > limit_bytes:
        raise UnfitRequest(431, f"the request's head is larger than {limit_bytes} bytes")
    _check_count(headers)


def _check_count(headers: Headers) -> None:
    if len(headers) > MAX_HEADERS:
        raise UnfitRequest(431, f"the request has more than {MAX_HEADERS} headers")


def _check_host(head: RequestHead) -> None:
    host = head.fields.get(b"host")
    if host is None:
        if head.http_1_1:
            raise UnfitRequest(400, "the request has no Host header")
    elif host.translate(None, HOST_BYTES):
        raise UnfitRequest(400, "the Host header is not a host and a port")
    elif len(head.fields) != len(head.headers) and sum(name == b"host" for name, _ in head.headers) > 1:
        raise UnfitRequest(400, "the request has more than one Host header")


def _check_coding(head: RequestHead) -> None:
    if b"transfer-encoding" in head.fields:
        if not head.http_1_1:
            raise UnfitRequest(400, "HTTP/1.0 has no transfer codings")
        codings = [value.lower() for name, value in head.headers if name == b"transfer-encoding"]
        if any(coding != b"chunked" for coding in codings):
            raise UnfitRequest(400, "a transfer coding other than chunked")


def find_fault(error: Exception, parser: httptools.HttpRequestParser) -> UnfitRequest:
    """Return why the request is refused for which `parser` failed with `error`."""
    reason = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else error
    if isinstance(reason, UnfitRequest):
        return reason
    if parser.get_method() == b"PRI":  # of the connection preface
        return UnfitRequest(505, "HTTP/2 is not supported: use HTTP/1.1")
    return UnfitRequest(400, "this is not valid HTTP")


def render_refusal(refusal: UnfitRequest) -> bytes:
    """Return the answer to a request that is refused."""
    error = {"message": str(refusal), "type": "invalid_request_error", "param": None, "code": None}
    body = msgspec.json.encode({"error": error})
    head = b"%bcontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    return head % (STATUS_LINES[refusal.status], len(body)) + body
