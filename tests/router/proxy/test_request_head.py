"""What a parsed head must have, beyond what llhttp lets pass. What clients see of it: `test_client_connection.py`."""

from __future__ import annotations

import json

import httptools
import pytest

from router.proxy.request_head import (
    MAX_HEADERS,
    UnfitRequest,
    check_begun,
    find_fault,
    measure_head,
    read_head,
    render_refusal,
)


class Parsed:
    """A parser that has just completed a head."""

    def __init__(self, head: bytes) -> None:
        self.url, self.headers = b"", []
        self.parser = httptools.HttpRequestParser(self)
        self.parser.feed_data(head)

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))


def head_of(text: bytes):
    parsed = Parsed(text)
    return read_head(parsed.parser, parsed.url, parsed.headers)


def test_a_head_is_read():
    head = head_of(b"POST /a%20b?c=%20 HTTP/1.1\r\nHost: r\r\nX: 1\r\nx: 2\r\n\r\n")
    assert (head.method, head.path, head.target) == ("POST", "/a b", b"/a%20b?c=%20")
    assert head.headers == [(b"host", b"r"), (b"x", b"1"), (b"x", b"2")]
    assert head.fields == {b"host": b"r", b"x": b"1"}
    assert (head.http_1_1, head.keep_alive) == (True, True)


def test_http_1_0_needs_no_host_and_keeps_no_connection():
    head = head_of(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert (head.http_1_1, head.keep_alive) == (False, False)


def test_of_an_absolute_target_path_and_query_count():
    assert head_of(b"GET http://h:1/a?b#c HTTP/1.1\r\nHost: h:1\r\n\r\n").target == b"/a?b"
    assert head_of(b"GET http://h HTTP/1.1\r\nHost: h\r\n\r\n").target == b"/"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"", 400),
        (b"Host: a\r\nHost: a\r\n", 400),
        (b"Host: a/b\r\n", 400),
        (b'Host: "a"\r\n', 400),
        (b"Host: a\r\nTransfer-Encoding: gzip, chunked\r\n", 400),
        (b"Host: a\r\n" + b"x:\r\n" * MAX_HEADERS, 431),
    ],
)
def test_a_head_is_refused(headers, status):
    with pytest.raises(UnfitRequest) as refused:
        head_of(b"POST / HTTP/1.1\r\n" + headers + b"\r\n")
    assert refused.value.status == status


def test_a_head_may_be_as_large_as_the_limit():
    assert measure_head(b"/a", [(b"host", b"r")]) == 2 + 4 + 1 + 4
    check_begun(100, [(b"x", b"")] * MAX_HEADERS, 100)
    with pytest.raises(UnfitRequest, match="larger than 100 bytes"):
        check_begun(101, [], 100)
    with pytest.raises(UnfitRequest, match="more than 100 headers"):
        check_begun(1, [(b"x", b"")] * 101, 100)


@pytest.mark.parametrize(
    ("sent", "status", "message"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "HTTP/2 is not supported: use HTTP/1.1"),
        (b"\x16\x03\x01", 400, "this is not valid HTTP"),
        (b"GET / HTTP/1.1\r\na b\r\n\r\n", 400, "this is not valid HTTP"),
    ],
)
def test_why_bytes_are_refused(sent, status, message):
    parser = httptools.HttpRequestParser(object())
    with pytest.raises(httptools.HttpParserError) as failed:
        parser.feed_data(sent)
    fault = find_fault(failed.value, parser)
    assert (fault.status, str(fault)) == (status, message)
    head, _, body = render_refusal(fault).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"content-length: %d\r\nconnection: close" % len(body) in head
    assert json.loads(body)["error"]["message"] == message
