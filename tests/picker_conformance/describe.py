"""What a picker did, in a line for people: parts of `received` in the report.

Texts of the picker are cut and escaped.
"""

from __future__ import annotations

import json
from itertools import groupby

from router.errors import quote_name
from tests.picker_conformance.conversation import RequestOutcome, ResponseOutcome, StreamedBody
from tests.picker_conformance.stream import NoMessage, PickerSilence

TEXT_CHARS = 60


def describe_end(end: NoMessage | None) -> str:
    """Return why no more came, as "nothing for 5 s" or "stream ended: OK"."""
    if end is None:
        return "complete"
    if isinstance(end, PickerSilence):
        return f"nothing for {end.seconds:g} s"
    return f"stream ended: {end.status}" + (f", {quote_name(end.details, TEXT_CHARS)}" if end.details else "")


def describe_request(outcome: RequestOutcome) -> str:
    """Return the refusal, or the choice, or what was missing."""
    if outcome.refusal is not None:
        text = quote_name(outcome.refusal.body.decode("utf-8", "replace"), TEXT_CHARS)
        return f"ImmediateResponse {outcome.status}" + (f": {text}" if text else "")
    parts = [] if outcome.end is None else [describe_end(outcome.end)]
    if not outcome.messages:
        return ", ".join(parts) or "no message"
    if outcome.header is None and outcome.metadata is None:
        parts.append(f"no choice in {describe_kinds(outcome.kinds)}")
    elif outcome.header == outcome.metadata:
        parts.append(f"chose {quote_name(outcome.header or '', TEXT_CHARS)}")
    else:
        parts.append(f"header {_quote(outcome.header)}, metadata {_quote(outcome.metadata)}")
    return ", ".join(parts)


def describe_response(outcome: ResponseOutcome) -> str:
    """Return the answers by kind, and why no more came."""
    end = "" if outcome.end is None else f"; {describe_end(outcome.end)}"
    return (describe_kinds(outcome.kinds) or "no message") + end


def describe_kinds(kinds: list[str]) -> str:
    """Return kinds of messages in order, as "request_headers, 3 request_body"."""
    counted = ((kind, len(list(run))) for kind, run in groupby(kinds))
    return ", ".join(kind if number == 1 else f"{number} {kind}" for kind, number in counted)


def describe_body(body: StreamedBody, sent: bytes) -> str:
    """Return how a body came back: unchanged, rewritten, or how much of it."""
    content = body.content
    if content == sent:
        how = "unchanged"
    elif is_rewritten(sent, content):
        how = "rewritten, same fields"
    else:
        how = f"different: {quote_name(content.decode('utf-8', 'replace'), TEXT_CHARS)!r}"
    if body.ends_once:
        ends = "end_of_stream on the last"
    else:
        ends = f"end_of_stream on {', '.join(str(n + 1) for n in body.ends) or 'none'}"
    return f"{len(content):,} of {len(sent):,} bytes in {count_pieces(body)}, {ends}, {how}"


def count_pieces(body: StreamedBody) -> str:
    """Return the number of pieces that came back, as "1 piece"."""
    return f"{len(body.pieces):,} piece{'' if len(body.pieces) == 1 else 's'}"


def is_same_body(sent: bytes, content: bytes) -> bool:
    """Return whether `content` is the body that was sent, or a rewritten one."""
    return content == sent or is_rewritten(sent, content)


def is_rewritten(sent: bytes, content: bytes) -> bool:
    """Return whether `content` is the JSON object `sent` written anew: a picker may rewrite `model` and add fields."""
    try:
        before, after = json.loads(sent), json.loads(content)
    except ValueError:
        return False
    if not isinstance(before, dict) or not isinstance(after, dict):
        return False
    return all(key in after and (key == "model" or after[key] == value) for key, value in before.items())


def _quote(value: str | None) -> str:
    return "missing" if value is None else quote_name(value, TEXT_CHARS)
