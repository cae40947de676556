"""Trace ids: read from headers, drawn, and derived for spans."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from router.telemetry.trace_context import HeadSampler, TraceContext, attempt_number, draw_ids, read_parent

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("header", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),  # random, and sampled
        (f"00-{TRACE}-{SPAN}-02", False),
        (f"01-{TRACE}-{SPAN}-01-later", True),
    ],
)
def test_a_parent(header: str, sampled: bool) -> None:
    assert read_parent(header.encode()) == (TRACE, SPAN, sampled)


@pytest.mark.parametrize(
    "header",
    [
        "",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01\n",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}g-{SPAN}-01",
        "\xe9" * 55,
    ],
)
def test_no_parent(header: str) -> None:
    assert read_parent(header.encode("latin-1")) is None


def test_ids_are_different_and_of_the_right_length() -> None:
    ids = draw_ids()
    drawn = {next(ids) for _ in range(1000)}
    assert len(drawn) == 1000
    assert {len(id) for id in drawn} == {48}


def test_the_ids_of_spans() -> None:
    trace = TraceContext(TRACE, SPAN, None, sampled=True)
    numbers = [1, 2, 3, *(attempt_number(a) + part for a in range(3) for part in range(4))]
    ids = [trace.span_id(number) for number in numbers]
    assert len({*ids, SPAN}) == len(ids) + 1
    assert {len(id) for id in ids} == {16}
    assert TraceContext(TRACE, f"{attempt_number(0):016x}", None, True).span_id(attempt_number(0)) != "0" * 16
    assert trace.traceparent(16).decode() == f"00-{TRACE}-{trace.span_id(16)}-01"
    assert replace(trace, sampled=False).traceparent(16)[-3:] == b"-00"


@pytest.mark.parametrize(("ratio", "least", "most"), [(0, 0, 0), (0.1, 130, 270), (1, 2000, 2000), (1e-20, 0, 0)])
def test_the_ratio(ratio: float, least: int, most: int) -> None:
    sampler = HeadSampler(ratio, draw_ids().__next__)
    assert least <= sum(sampler.begin({}).sampled for _ in range(2000)) <= most  # five standard deviations


def test_the_ratio_is_of_the_last_seven_bytes() -> None:
    """As samplers of other services see it, so that all of them sample the same traces."""
    for tail, sampled in (("00000000000000", True), ("3fffffffffffff", True), ("40000000000000", False)):
        drawn = "f" * 18 + tail + SPAN
        assert HeadSampler(0.25, lambda drawn=drawn: drawn).begin({}).sampled is sampled  # type: ignore[misc]
