"""End of an exchange carried out by a gateway, as far as the gateway reports it."""

from __future__ import annotations

from typing import Literal, NamedTuple

EndKind = Literal["whole", "cut", "left", "late", "moved", "connect", "busy", "died", "local"]
"""
    whole    the answer passed to its last byte
    cut      the gateway ended the exchange before that: the engine failed, or the client left
    left     the picker has left the exchange after the first piece of the answer, as agreed; the access log has its end
    late     no answer began in time
    moved    another endpoint answers than the first one named; what follows is its answer
    connect  the gateway did not reach the engine, and has answered the client itself; so for
    died     the engine closed the connection before its answer
    local    the gateway answered for another reason
    busy     the engine answered 503, which is on its way to the client
"""

UNREACHED = ("connection_failure", "connection_timeout", "no_healthy_upstream", "cluster_not_found", "protocol_error")
CLOSED = ("connection_termination", "remote_reset", "local_reset")
BUSY = 503
LOCAL_ERRORS = frozenset((502, 503, 504))


class AnswerEnd(NamedTuple):
    """`status` is the client's, `served` the endpoint that answered; None where unknown."""

    kind: EndKind
    status: int | None = None
    served: str | None = None
    detail: str = ""


def classify_failure(status: int, details: str | None, content_type: bytes) -> EndKind | None:
    """Return why no engine's answer follows an answer's head; None for one that an engine gave, and not for being
    busy.

    `details` are Envoy's response code details. A gateway that sends none is read by its own answers: Envoy's are
    plain text, those of engines JSON.
    """
    if details is not None and details != "via_upstream":
        if any(word in details for word in UNREACHED):
            return "connect"
        return "died" if any(word in details for word in CLOSED) else "local"
    if status == BUSY and (details is not None or not content_type.startswith(b"text/plain")):
        return "busy"
    return "connect" if details is None and status == BUSY else None
