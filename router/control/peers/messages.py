"""Messages of schedulers to their peers: bookings, sessions, and findings about engines.

A load message carries the whole load of a target, not a change: the latest message is valid by itself, so a lost
message does no lasting harm, and a peer that ended is forgotten in one step.
"""

from __future__ import annotations

from router.control.peers.parts import Message
from router.fleet.overlap_accuracy import Finding
from router.fleet.worker_share import WorkerShare


class LoadMessage(Message, frozen=True):
    """The sender's bookings of a target."""

    target: str
    share: WorkerShare


class AllLoads(Message, frozen=True):
    """All bookings of the sender: it has none at other targets."""

    loads: dict[str, WorkerShare]


class SessionMoved(Message, frozen=True):
    """A session's last target."""

    prefill: bool  # of the prefill halves of pairs
    model: str
    session: str
    target: str
    at_s: float  # by the sender's monotonic clock; the exchange converts it to the receiver's


class SessionAnswered(Message, frozen=True):
    """A session's progress after another answer; see `SessionProgress`."""

    model: str
    session: str
    turn: int
    answered_s: float  # by the sender's monotonic clock; the exchange converts it to the receiver's
    tool_call: bool | None


class ResponseStored(Message, frozen=True):
    """A response is stored at `target`. `tenant` is empty if clients need not identify themselves."""

    response: str
    target: str
    tenant: str = ""


class BlocksSent(Message, frozen=True):
    """Blocks that a request brings into a target's cache, before any event reports them."""

    target: str
    keys: bytes  # of `pack_keys`
    computed: bool = False  # all blocks of a prompt, by a target without trusted events; else they are in flight


class PredictionChecked(Message, frozen=True):
    """An answer's evidence about the overlap that a target's events predicted."""

    target: str
    finding: Finding


class StateWanted(Message, frozen=True):
    """Requests the receiver's state: the sender has missed messages, has just started, or knows other decisions."""


class DrainMessage(Message, frozen=True):
    """An operator's decision. The highest `version` counts; among equal versions, the greatest `by`."""

    instance: str
    on: bool
    version: int
    by: str  # run id of the process that decided


class CacheForgotten(Message, frozen=True):
    """The weights of an instance changed: nothing that its caches hold is of use."""

    instance: str
    number: int  # of those that `by` decided, from 1
    by: str  # run id of the process that decided


class BreakerMoved(Message, frozen=True):
    """The circuit breaker of a target opened after failures of its engine, or closed after an answer."""

    target: str
    opened: bool
    client: str | None = None  # of the last failure: the client's key name or address; None: unknown
    several: bool = False  # whether several clients had failures


class InstanceSuspected(Message, frozen=True):
    """A request could not connect to an instance, or failed there; the receiver probes the instance now."""

    instance: str
