"""What headers say of a request."""

from __future__ import annotations

from router.prompt.api.lineage import Lineage
from router.prompt.api.parse import NO_HEADERS, RequestHeaders, read_request_headers


def test_most_say_nothing() -> None:
    assert read_request_headers({b"host": b"a", b"x-session": b"s"}) is NO_HEADERS


def test_each_is_read_as_written_and_an_empty_one_is_none() -> None:
    said = {b"x-session-id": b"caf\xe9", b"x-slo-ttft-ms": b"500", b"x-slo-tpot-ms": b""}
    assert read_request_headers(said) == RequestHeaders(Lineage("caf\xe9", None, "caf\xe9"), "500", None)


def test_llm_ds_names_win() -> None:
    both = {b"x-slo-ttft-ms": b"1", b"x-llm-d-router-slo-ttft-ms": b"2", b"x-llm-d-router-slo-tpot-ms": b"3"}
    assert read_request_headers(both) == RequestHeaders(None, "2", "3")
