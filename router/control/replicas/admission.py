"""One admission for several routers: each holds a place for the admitted requests of all, and decides by itself.

A session is one session whichever routers its requests reach, and the room that one router gives away another one does
not give once more. A request that begins is reported, not asked for, so nobody waits for another router: two of them
may give the same room away within the time that a message takes.

After a gap a router is told which requests run, and what is known of the sessions that were answered last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import count

from router.control.replicas.policy_messages import AdmissionBegan, AdmissionsOpen, ProgramKnown
from router.control.workers.messages import AdmissionAnswered, AdmissionEnded, AdmissionPlaced, Message
from router.request.admission.computed_prompt import ComputedPrompt
from router.request.admission.shared_prefixes import PromptPrefix
from router.request.admission.waiting import AdmissionQueues, QueueLease
from router.tasks import Tasks
from scorers.admission.contract import Admission, Claim

MEMBERS_S = 0.25  # between looks at which routers are heard
KNOWN_PROGRAMS = 5_000  # of a model, told after a gap


class SharedAdmission:
    """Reports with `send` what the leader's `queues` admit, and holds places there for what others admit. `heard_runs`
    returns the runs of the routers that are heard.
    """

    def __init__(
        self, queues: AdmissionQueues, send: Callable[[Message], None], heard_runs: Callable[[], Sequence[str]]
    ) -> None:
        self._queues = queues
        self._send = send
        self._heard_runs = heard_runs
        self._numbers = count()
        self._open: dict[int, list[Message]] = {}  # what was said of each admitted request of this router
        self._held: dict[str, dict[int, QueueLease]] = {}  # for requests of others, by run and number
        self._others: set[str] = set()
        queues.listen(self)

    def start(self, tasks: Tasks) -> None:
        tasks.supervise("admission of replicas", self._follow)

    # admitted here

    def on_begin(self, model: str, admission: Admission, prefix: PromptPrefix | None) -> int:
        number, claim = next(self._numbers), admission.claim
        self._open[number] = []
        session, prompt_tokens = admission.program.name, admission.prompt_tokens
        self._tell(number, AdmissionBegan(number, model, session, prompt_tokens, prefix, claim.tenant, claim.weight))
        return number

    def on_placed(self, number: int, target: str, held_tokens: int | None) -> None:
        self._tell(number, AdmissionPlaced(number, target, held_tokens))

    def on_first_byte(self, number: int) -> None:
        self._tell(number, AdmissionAnswered(number))

    def on_end(self, number: int, computed: ComputedPrompt | None) -> None:
        if self._open.pop(number, None) is not None:
            self._send(AdmissionEnded(number, computed))

    def _tell(self, number: int, message: Message) -> None:
        if (said := self._open.get(number)) is not None:
            said.append(message)
            self._send(message)

    # admitted elsewhere

    def report(self, message: Message) -> None:
        pass  # what workers tell each other of admission is between them and their leader

    def state(self) -> Iterator[Message]:
        yield AdmissionsOpen(list(self._open))
        for said in self._open.values():
            yield from said
        for model_admission in self._queues:
            for program in model_admission.controller.list_silent(KNOWN_PROGRAMS):
                yield ProgramKnown(model_admission.model, program)

    def apply(self, message: Message, run: str) -> None:
        held = self._held.setdefault(run, {})
        match message:
            case AdmissionBegan():
                queue = self._queues.queue_of(message.model)
                if queue is not None and message.number not in held:
                    claim = Claim(message.tenant, message.weight)
                    lease = queue.hold(message.session, message.prompt_tokens, message.prefix, claim)
                    held[message.number] = lease
            case AdmissionPlaced(number, target, held_tokens) if number in held:
                held[number].on_placed(target, held_tokens)
            case AdmissionAnswered(number) if number in held:
                held[number].on_first_byte()
            case AdmissionEnded(number, computed) if number in held:
                held.pop(number).end(computed)
            case AdmissionsOpen(numbers):
                for number in held.keys() - set(numbers):
                    held.pop(number).end(None)
            case ProgramKnown(model, program):
                if (queue := self._queues.queue_of(model)) is not None:
                    queue.learn(program)

    async def _follow(self) -> None:
        """Give the places of routers back that are not heard any more, until cancelled."""
        while True:
            await asyncio.sleep(MEMBERS_S)
            self.poll()

    def poll(self) -> None:
        """Give the places of routers back that are not heard any more."""
        others = set(self._heard_runs())
        for run in self._others - others:
            for lease in self._held.pop(run, {}).values():
                lease.end(None)
        self._others = others
