"""The way in which an attempt is carried out: the only interface between the modes in which the router runs.

`relay_path.py` sends the request to the engine and relays the answer; `picker_path.py` passes the chosen endpoint
to a gateway and follows the gateway's reports. Everything before and after (the choice, the bookings and the
record) is the same in both modes.
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

from router.fleet.instance import Target
from router.prompt.continuable_stream import ContinuableStream
from router.prompt.prompt import Prompt
from router.proxy.call import ClientRequest
from router.proxy.disaggregated import PairWatch
from router.proxy.headers import AnswerLabels
from router.proxy.relay import RelayEnd
from router.request.request import Request
from router.scheduling.policy.record import Record
from router.scheduling.ticket import Ticket


class AttemptWatch(PairWatch, Protocol):
    """Observes one attempt. It is used with `with`, so that a cancelled attempt is observed as well."""

    @property
    def begun(self) -> bool:
        """Whether the first byte of the answer has arrived."""

    def can_move(self) -> bool:
        """Return whether another engine can answer instead, or continue the answer."""

    def on_end(self, end: RelayEnd) -> None:
        """Handle the end of the attempt."""

    def __enter__(self) -> AttemptWatch: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class DataPath(Protocol):
    @property
    def renames(self) -> bool:
        """Whether an answer's body may change its length, so that it can have the client's name for the model."""

    @property
    def implies_model(self) -> bool:
        """Whether a prompt that names no model is for the only model of the fleet."""

    def excludes(self, call: ClientRequest) -> set[str]:
        """Return the ids of the targets to which this request cannot go."""

    def follow(self, prompt: Prompt) -> ContinuableStream | None:
        """Return the stream that keeps the answer to `prompt` so that another engine can continue it; None if no
        engine can.
        """

    async def run(
        self, request: Request, ticket: Ticket, kv_transfer_params: bytes | None, watch: AttemptWatch
    ) -> RelayEnd:
        """Carry out the attempt of `ticket` and return how it ended; `watch` gets the same end.
        `kv_transfer_params` are the parameters of an earlier attempt's prefill half whose KV can still be fetched;
        None if there is none.
        """


def label_answer(request: Request, record: Record, target: Target) -> AnswerLabels:
    """Return the router's own headers for an answer of `target`."""
    return AnswerLabels(target.id, record.id, record.stages.admission_ms, request.other_model)
