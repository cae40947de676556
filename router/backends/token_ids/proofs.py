"""Proves the token ids of each instance's model when it joins, and again after an answer with another token count.

The proof itself is in `prompt/tokenization/proof.py`: ten one-token chats, or, where the engine offers `/render`,
requests that generate nothing. No request waits for a proof. An instance that does not answer is tried again, ever
more rarely: it may be busy, or asleep. An instance whose proof found other ids is tried again every hour, because
it may have been restarted unnoticed. Where prompts contain the date, all instances are proved again after midnight.

An answer with another count refutes the ids until the next proof, which follows at once. If that proof agrees, the
probes are right and some prompt is wrong: for a while, twice as long each time, further counts refute nothing.
Otherwise clients with such prompts would deprive all other prompts of their ids.
"""

from __future__ import annotations

from asyncio import sleep
from collections.abc import Awaitable
from typing import Protocol

from router.clock import Clock
from router.tasks import Tasks

RETRY_PAUSES_S = (5.0, 30.0, 120.0, 600.0)  # after a proof without an answer; the last one from then on
REFUTED_PAUSE_S = 3600.0  # after a proof that found other ids
RENEWAL_DELAY_S = 5.0  # after a proof is void: clocks differ
HELD_S = 60.0  # how long a proof after the first other count holds against further ones; doubles with each proof
LONGEST_HELD_S = 3600.0


class Verifier(Protocol):
    """Runs one proof (`prompt/tokenization/tokenization.py`)."""

    def begin(self, instance: str, model: str) -> None:
        """Discard earlier proofs of an instance that joins."""

    def verify(self, instance: str, model: str) -> Awaitable[bool | None]:
        """Run one proof and return whether it agrees; None: no answer."""

    def proof_lasts_s(self, model: str) -> float | None:
        """Return the time until the model's proofs are void; None: they are not void by themselves."""

    def forget(self, instance: str) -> None:
        """Drop the proofs of an instance that has left."""


class _Proof:
    """State of the proofs of one instance since it joined."""

    __slots__ = ("completed", "holds_until_s", "miscounts", "model", "scheduled")

    def __init__(self, model: str) -> None:
        self.model = model
        self.completed = 0  # proofs that agreed
        self.miscounts = 0  # other counts that led to a proof
        self.holds_until_s = 0.0
        self.scheduled = False


class TokenizerProofs:
    """Schedules proofs, one at a time for each instance."""

    def __init__(self, verifier: Verifier, tasks: Tasks, clock: Clock) -> None:
        self._verifier = verifier
        self._tasks = tasks
        self._clock = clock
        self._proofs: dict[str, _Proof] = {}

    def on_joined(self, instance: str, model: str) -> None:
        """Prove the instance, which serves `model`, perhaps as a new process."""
        self._verifier.begin(instance, model)
        proof = self._proofs[instance] = _Proof(model)
        self._schedule(instance, proof)

    def on_miscount(self, instance: str, model: str) -> bool:
        """Prove an instance again after another count. Return whether its ids are refuted until that proof."""
        proof = self._proofs.get(instance)
        if proof is None or proof.model != model:
            return True
        if self._clock.now() < proof.holds_until_s:
            return False
        if not proof.scheduled:
            proof.miscounts += 1
            self._schedule(instance, proof)
        return True

    def forget(self, instance: str) -> None:
        """Forget an instance that has left."""
        self._proofs.pop(instance, None)
        self._verifier.forget(instance)

    def _schedule(self, instance: str, proof: _Proof) -> None:
        proof.scheduled = True
        self._tasks.spawn("prove tokenizer", self._run(instance, proof))

    async def _run(self, instance: str, proof: _Proof) -> None:
        """Prove until a proof agrees. `scheduled` is reset only then, and a miscount may follow at once."""
        tries = 0
        while self._proofs.get(instance) is proof:
            found = await self._verifier.verify(instance, proof.model)
            if found:
                break
            retry_s = RETRY_PAUSES_S[min(tries, len(RETRY_PAUSES_S) - 1)]
            await sleep(retry_s if found is None else REFUTED_PAUSE_S)
            tries += 1
        proof.completed += 1
        if (lasts_s := self._verifier.proof_lasts_s(proof.model)) is not None:
            self._tasks.spawn("renew proof", self._renew(instance, proof, lasts_s))
        if proof.miscounts:
            held_s = min(HELD_S * 2.0 ** min(proof.miscounts - 1, 20), LONGEST_HELD_S)
            proof.holds_until_s = self._clock.now() + held_s
        proof.scheduled = False

    async def _renew(self, instance: str, proof: _Proof, lasts_s: float) -> None:
        """Prove the instance again when its proof is void, unless a later proof has a renewal of its own."""
        completed = proof.completed
        await sleep(lasts_s + RENEWAL_DELAY_S)
        if self._proofs.get(instance) is proof and proof.completed == completed and not proof.scheduled:
            self._schedule(instance, proof)
