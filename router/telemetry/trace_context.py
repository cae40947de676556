"""The trace that a request belongs to, as defined by W3C Trace Context (https://www.w3.org/TR/trace-context).

A client's `traceparent` is continued, including its decision whether the trace is sampled; without a valid one the
request begins a trace, sampled by ratio. Sampling is decided when the request arrives, because the flag in the
`traceparent` that the engine receives carries the decision. Span ids are derived from the id of the request's own
span, so that an id can be sent to an engine long before the span exists: only exported spans are ever built.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import msgspec

TRACEPARENT, TRACESTATE = b"traceparent", b"tracestate"
VALID = re.compile("(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]([0-9a-f])(-.*)?")
SAMPLED = frozenset("13579bdf")  # last digits of flags whose lowest bit is set
TRACE_DIGITS, SPAN_DIGITS = 32, 16
RATIO_DIGITS = 14  # the last of a trace id, which are random (level 2); samplers of other services compare them too
IDS_AT_ONCE = 128  # a system call per request would cost as much as everything else

TOKENS, ADMISSION, POOL = 1, 2, 3  # numbers of spans, for `TraceContext.span_id`
FIRST_ATTEMPT, PER_ATTEMPT = 16, 4
MATCH, DECIDE, PREFILL = 1, 2, 3  # after the attempt that they belong to


class TraceContext(msgspec.Struct, frozen=True, gc=False):
    """A request's place in a trace. Ids are in hex."""

    trace_id: str
    span: str  # the request's own
    parent: str | None  # the client's span; None: the trace begins here
    sampled: bool  # decided on arrival and sent to the engines
    state: bytes | None = None  # the client's `tracestate`

    @property
    def begun(self) -> bool:
        """True if the trace begins with this request, so that trace headers from the client are not forwarded."""
        return self.parent is None

    def span_id(self, number: int) -> str:
        """Return the id of another span of the request, different for every number from 1 to 2^32."""
        return f"{int(self.span, 16) ^ number or number << 32:016x}"  # 0 is no id

    def traceparent(self, number: int) -> bytes:
        """Return the header that makes span `number` the parent of the engine's spans."""
        if not self.sampled:
            return f"00-{self.trace_id}-{self.span}-00".encode()
        return f"00-{self.trace_id}-{self.span_id(number)}-01".encode()


def attempt_number(attempt: int) -> int:
    """Return the number of the span of attempt 0, 1, ..."""
    return FIRST_ATTEMPT + PER_ATTEMPT * attempt


def draw_ids() -> Iterator[str]:
    """Yield random ids of a trace and a span, together 48 hex digits. An id of zero, which is invalid, practically
    never occurs.
    """
    digits = TRACE_DIGITS + SPAN_DIGITS
    while True:
        drawn = os.urandom(digits // 2 * IDS_AT_ONCE).hex()
        for start in range(0, len(drawn), digits):
            yield drawn[start : start + digits]


class HeadSampler:
    """Decides about traces as requests arrive. `ratio` is the share of requests without a parent that are sampled;
    with `continues` off the headers of clients are ignored. `draw` returns 48 random hex digits.
    """

    def __init__(self, ratio: float, draw: Callable[[], str], *, continues: bool = True) -> None:
        bound = min(round(ratio * 16**RATIO_DIGITS), 16**RATIO_DIGITS)
        self._bound = f"{bound:0{RATIO_DIGITS}x}" if bound < 16**RATIO_DIGITS else "g"  # above every digit
        self._draw = draw
        self._continues = continues

    def begin(self, fields: Mapping[bytes, bytes]) -> TraceContext:
        """Return the trace of a request with these headers."""
        drawn = self._draw()
        header = fields.get(TRACEPARENT)
        if header is not None and self._continues and (parent := read_parent(header)) is not None:
            return TraceContext(
                parent.trace_id, drawn[TRACE_DIGITS:], parent.span_id, parent.sampled, fields.get(TRACESTATE)
            )
        trace_id = drawn[:TRACE_DIGITS]
        return TraceContext(trace_id, drawn[TRACE_DIGITS:], None, trace_id[-RATIO_DIGITS:] < self._bound)


class Parent(NamedTuple):
    """The span from which a request was sent."""

    trace_id: str
    span_id: str
    sampled: bool


def read_parent(header: bytes) -> Parent | None:
    """Return the parent named by a `traceparent`; None if it is not valid. Later versions may have more fields than
    version 00.
    """
    found = VALID.fullmatch(header.decode("latin-1"))
    if found is None or (found[1] == "00" and found[5] is not None):
        return None
    return Parent(found[2], found[3], found[4] in SAMPLED)
