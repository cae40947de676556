"""What routers tell each other about policies, experiments and admission, beside what the workers of one router do.

Fields are added at the end, with defaults: versions may differ by one.
"""

from __future__ import annotations

from router.control.workers.messages import (
    AdmissionAnswered,
    AdmissionEnded,
    AdmissionPlaced,
    Message,
    PolicyRule,
    RequestAnswered,
    RequestEnded,
)
from router.request.admission.shared_prefixes import PromptPrefix
from router.request.admission.verdicts import KnownProgram
from router.scheduling.experiments.counts import ExperimentCounts
from router.telemetry.audit_log import AuditEntry


class PolicyDecision(Message, frozen=True):
    """The policies that somebody put in force at one router. The highest `version` counts, of equal ones the greater
    `by`.
    """

    version: int
    by: str  # run id of the router that was asked
    what: str  # as in the audit log
    back: bool  # it undoes another one
    rule: PolicyRule  # without arms rolled back: `ArmRolledBack` names those
    started: int = 0  # version of the decision that started the experiment in it, and by whom
    started_by: str = ""


class ArmRolledBack(Message, frozen=True):
    """An arm stays out of the experiment with this fingerprint, whoever found it too bad."""

    experiment: str
    arm: str


class AuditShared(Message, frozen=True):
    """An entry of the sender's audit log."""

    number: int  # among those of its run, from 1
    entry: AuditEntry


class UnitRequestBegan(Message, frozen=True):
    """A request began whose unit the receiver counts. `RequestAnswered` and `RequestEnded` follow."""

    experiment: str  # see `SharedPolicies.experiment_id`
    number: int  # of the sender's
    arm: str
    unit: bytes
    age_s: float  # since it arrived


class CountsShared(Message, frozen=True):
    """The counts of an experiment at the run `by`. The highest `number` of a run is its latest."""

    experiment: str
    by: str
    number: int
    counts: ExperimentCounts


class AdmissionBegan(Message, frozen=True):
    """A request was admitted. `AdmissionPlaced`, `AdmissionAnswered` and `AdmissionEnded` follow."""

    number: int  # of the sender's
    model: str  # base model
    session: bytes | None
    prompt_tokens: int  # 0: unknown
    prefix: PromptPrefix | None = None  # None: unknown
    tenant: str | None = None
    weight: float = 1.0


class AdmissionsOpen(Message, frozen=True):
    """The admitted requests of the sender that have not ended."""

    numbers: list[int]


class ProgramKnown(Message, frozen=True):
    """A program of which no request runs or waits."""

    model: str
    program: KnownProgram


class RouterFacts(Message, frozen=True):
    """Digests of what the routers in front of one fleet should have in common."""

    policies: str  # digest of those in force
    instances: str  # digest of their names
    count: int  # of instances


PolicyMessage = PolicyDecision | ArmRolledBack | AuditShared | RouterFacts


AdmissionMessage = AdmissionBegan | AdmissionPlaced | AdmissionAnswered | AdmissionEnded | AdmissionsOpen | ProgramKnown
ExperimentMessage = UnitRequestBegan | RequestAnswered | RequestEnded | CountsShared
