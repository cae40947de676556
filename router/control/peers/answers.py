"""Forwards each log entry of a gateway to the process that has its answer open, whichever process received it.

A gateway opens its log streams on separate connections, and several routers behind one address share these out like
any others. If a gateway has a log stream at any process, every process with answers of this gateway waits for their
log entries. The workers of a host stop together: a worker with log streams stops after the workers with open
answers, whose log entries have no other route.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from router.control.peers.parts import Message, Peers
from router.picker.answer_log import AnswerLog, LoggedEnd
from router.prompt.usage import Usage
from router.tasks import Tasks


class LoggedAnswer(Message, frozen=True):
    """The end of an answer that the receiver has open."""

    key: str
    status: int
    details: str
    served: str | None
    usage: tuple[int | None, int | None, int | None] | None  # a `Usage`, which msgspec cannot decode once compiled


class GatewaysFollowed(Message, frozen=True):
    """All gateways that have log streams at the sender."""

    gateways: list[str]


class AnswersOpen(Message, frozen=True):
    """The sender has open answers, or none any more."""

    some: bool


class SharedAnswers:
    """Connects `log` with the answer logs of the peers."""

    messages: ClassVar[Sequence[type[Message]]] = (LoggedAnswer, GatewaysFollowed, AnswersOpen)

    def __init__(self, log: AnswerLog, peers: Peers) -> None:
        self._log = log
        self._peers = peers
        self._with_answers: set[str] = set()  # runs of peers
        log.others = self

    def start(self, tasks: Tasks) -> None:
        pass  # it has no tasks

    # from this process's gateways

    def pass_on(self, key: str, end: LoggedEnd) -> None:
        run = key.partition("-")[0]  # a key begins with the id of a record
        if run != self._peers.run:
            counts = end.usage
            usage = None if counts is None else (counts.prompt_tokens, counts.cached_tokens, counts.output_tokens)
            self._peers.send_to(run, LoggedAnswer(key, end.status, end.details, end.served, usage))

    def on_follow(self) -> None:
        self._peers.share(GatewaysFollowed(self._log.gateways))

    def on_open(self) -> None:
        self._peers.share_near(AnswersOpen(len(self._log) > 0))

    def wait_here(self) -> bool:
        return not self._with_answers.isdisjoint(self._peers.near_runs())

    # from peers

    def state(self) -> Iterator[Message]:
        yield GatewaysFollowed(self._log.gateways)
        yield AnswersOpen(len(self._log) > 0)

    def apply(self, message: Message, run: str) -> None:
        match message:
            case LoggedAnswer(key, status, details, served, usage):
                self._log.join(key, LoggedEnd(status, details, served, None if usage is None else Usage(*usage)))
            case GatewaysFollowed(gateways):
                self._log.follow_elsewhere(run, gateways)
            case AnswersOpen(some):
                (self._with_answers.add if some else self._with_answers.discard)(run)

    def forget(self, run: str) -> None:
        self._log.follow_elsewhere(run, ())
        self._with_answers.discard(run)
