"""The way in which an attempt is carried out: the one seam between the modes in which the router runs.

`relay_path.py` sends the request to the engine and relays the answer; `picker_path.py` tells a gateway where to
send it and follows what the gateway says. Everything before and after, the choice, the books and the record, is the
same.
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
    """Observes one attempt. Used with `with`, so that a cancelled attempt is seen as well."""

    def on_end(self, end: RelayEnd) -> None:
        """The attempt has ended."""

    def __enter__(self) -> AttemptWatch: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class DataPath(Protocol):
    @property
    def renames(self) -> bool:
        """An answer's body may change its length, so the client's name for a model can be in it."""

    @property
    def implies_model(self) -> bool:
        """A prompt that names no model is for the only one there is."""

    def excludes(self, call: ClientRequest) -> set[str]:
        """Return the ids of the targets that this request cannot go to."""

    def follow(self, prompt: Prompt) -> ContinuableStream | None:
        """Return the stream that keeps the answer to `prompt` for another engine to continue; None where none
        can.
        """

    async def run(
        self, request: Request, ticket: Ticket, kv_transfer_params: bytes | None, watch: AttemptWatch
    ) -> RelayEnd:
        """Carry out the attempt of `ticket` and return how it ended, as `watch` was notified.
        `kv_transfer_params`: those of an earlier attempt's prefill half, whose KV can still be fetched; None: none.
        """


def label_answer(request: Request, record: Record, target: Target) -> AnswerLabels:
    """Return the router's own headers of an answer of `target`."""
    return AnswerLabels(target.id, record.id, record.stages.admission_ms, request.other_model)
