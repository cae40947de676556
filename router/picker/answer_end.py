"""The end of an exchange that a gateway carries out, as far as the gateway reports it."""

from __future__ import annotations

from typing import Literal, NamedTuple

EndKind = Literal["whole", "cut", "left", "late", "moved", "connect", "busy", "died", "local"]
"""
    whole    the answer was relayed to its last byte
    cut      the gateway ended the exchange before its last byte: the engine failed, or the client left
    left     the picker left the exchange after the answer's first piece, as agreed; the access log reports the end
    late     no answer began in time
    moved    another endpoint answers than the first one named; the answer that follows is from that endpoint
    connect  the gateway did not reach the engine, and has answered the client itself, as it also does after `died`
    died     the engine closed the connection before its answer
    local    the gateway answered the client itself for another reason
    busy     the engine answered 503, which is being relayed to the client
"""

UNREACHED = ("connection_failure", "connection_timeout", "no_healthy_upstream", "cluster_not_found", "protocol_error")
CLOSED = ("connection_termination", "remote_reset", "local_reset")
BUSY = 503
LOCAL_ERRORS = frozenset((502, 503, 504))


class AnswerEnd(NamedTuple):
    """`status` is the status sent to the client, `served` the endpoint that answered; None: unknown."""

    kind: EndKind
    status: int | None = None
    served: str | None = None
    detail: str = ""


def classify_failure(status: int, details: str | None, content_type: bytes) -> EndKind | None:
    """Return why the head of an answer is not followed by an engine's answer; None if an engine gave the answer,
    other than a 503.

    `details` are Envoy's response code details. If a gateway sends none, its own answers are recognised by content
    type: Envoy's are plain text, those of engines JSON.
    """
    if details is not None and details != "via_upstream":
        if any(word in details for word in UNREACHED):
            return "connect"
        return "died" if any(word in details for word in CLOSED) else "local"
    if status == BUSY and (details is not None or not content_type.startswith(b"text/plain")):
        return "busy"
    return "connect" if details is None and status == BUSY else None
