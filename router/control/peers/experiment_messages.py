"""Messages about experiments and splits of models: requests of units that another process counts, and counts."""

from __future__ import annotations

from router.control.peers.parts import Message
from router.scheduling.experiments.counts import ExperimentCounts
from router.scheduling.policy.record import AttemptEnd


class UnitRequestBegan(Message, frozen=True):
    """A request began whose unit the receiver counts. `number` is the sender's; the request may be in several
    experiments.
    """

    experiment: str  # see `PartitionedExperiment.id`
    number: int
    arm: str
    unit: bytes
    age_s: float  # since the request arrived


class UnitRequestAnswered(Message, frozen=True):
    """The first byte of the answer arrived."""

    experiment: str
    number: int
    ttft_ms: float


class UnitRequestEnded(Message, frozen=True):
    """The outcome: fields of the request's record."""

    experiment: str
    number: int
    end: AttemptEnd | None  # of its last attempt; None: it had none
    target: str | None
    status: int | None
    ttft_ms: float | None
    duration_ms: float | None
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    uncontinued: str | None


class CountsShared(Message, frozen=True):
    """The counts of an experiment at the run `by`. The highest `number` of a run is its latest."""

    experiment: str
    by: str
    number: int
    counts: ExperimentCounts


ExperimentMessage = UnitRequestBegan | UnitRequestAnswered | UnitRequestEnded | CountsShared
