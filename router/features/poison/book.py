"""The prompts on which two engines died, for as long as they are refused.

A prompt is named by a digest of its model and its token ids, or of its body if the ids are unknown: another
`temperature` does not make it another prompt, and prompts are not kept. At most `MOST` are remembered, the latest, each
for `KEPT_S`; so an engine that is mended, or that died for another reason, gets the prompt again.

An engine that dies takes all its requests with it. If several prompts ended with one engine at the same time, it is
unknown which one is to blame: all of them are *suspects*, served until two engines have died on one of them again.

A prompt that two engines answered with a 5xx harms no engine, so it is served. But its next 5xx is not retried:
a client that repeats it would use up the retries of all.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple, TypeVar

from router.kvcache.tokenized_prompt import TokenizedPrompt

T = TypeVar("T")

KEPT_S = 600.0
MOST = 1000
SAME_DEATH_S = 2.0  # within which the requests of a dead engine end
DIGEST_BYTES = 16


class PoisonPrompt(NamedTuple):
    """One prompt that is refused. `until_s`: by the monotonic clock of this process."""

    digest: bytes
    until_s: float
    found_wall_s: float
    model: str
    sender: str | None  # of the request; None: unknown
    targets: tuple[str, ...]  # that died, in order
    proven: bool = False  # whether two engines died on it twice


def name_prompt(model: str, known: TokenizedPrompt | None, body: bytes) -> bytes:
    """Return the digest of a prompt. `known`: its tokens; None: `body` names it."""
    content = known.ids.tobytes() if known is not None and known.complete else body
    return blake2b(content, digest_size=DIGEST_BYTES, key=blake2b(model.encode(), digest_size=32).digest()).digest()


class PoisonBook:
    """The prompts that are refused now, the suspects, and those that failed. All are empty almost always, so that
    requests are not even named.
    """

    def __init__(self) -> None:
        self._refused: dict[bytes, PoisonPrompt] = {}
        self._suspects: dict[bytes, float] = {}  # until this time
        self._failed: dict[bytes, float] = {}  # prompts that two engines answered with a 5xx, until this time
        self._blamed: list[PoisonPrompt] = []  # within the last `SAME_DEATH_S`

    def __len__(self) -> int:
        """Return the number of prompts that are refused."""
        return len(self._refused)

    @property
    def is_empty(self) -> bool:
        """Whether no prompt is refused, suspected, or known to fail."""
        return not self._refused and not self._suspects and not self._failed

    def suspects(self, digest: bytes) -> bool:
        """Return whether the prompt with this digest is suspected."""
        return digest in self._suspects

    def add_failed(self, digest: bytes, until_s: float) -> None:
        """Remember a prompt that two engines answered with a 5xx."""
        _put_last(self._failed, digest, until_s)

    def has_failed(self, digest: bytes, now: float) -> bool:
        """Return whether two engines answered this prompt with a 5xx a short time ago."""
        while self._failed and next(iter(self._failed.values())) <= now:
            del self._failed[next(iter(self._failed))]
        return digest in self._failed

    def add(self, prompt: PoisonPrompt) -> None:
        """Refuse this prompt; one that is refused already, for longer."""
        _put_last(self._refused, prompt.digest, prompt)

    def blame(self, prompt: PoisonPrompt) -> list[PoisonPrompt]:
        """Refuse this prompt, on which two engines have just died, or suspect it. Return the prompts that are no longer
        refused, because this one may be the cause as well.
        """
        latest = [other for other in self._blamed if prompt.until_s - other.until_s < SAME_DEATH_S]
        self._blamed = [*latest[1 - MOST :], prompt]
        last = prompt.targets[-1:]
        beside = [other for other in latest if other.targets[-1:] == last and other.digest != prompt.digest]
        suspected = self._suspects.pop(prompt.digest, 0.0) > prompt.until_s - KEPT_S
        if suspected or not beside:
            self.add(prompt._replace(proven=suspected))
            return []
        for other in (*beside, prompt):
            self._suspects[other.digest] = other.until_s
            if len(self._suspects) > MOST:
                del self._suspects[next(iter(self._suspects))]
        refused = [self._refused[other.digest] for other in beside if other.digest in self._refused]
        return [other for other in refused if not other.proven and self.lift(other.digest)]

    def acquit(self, digest: bytes) -> None:
        """Suspect this prompt no longer: it was answered."""
        self._suspects.pop(digest, None)

    def find(self, digest: bytes, now: float) -> PoisonPrompt | None:
        """Return the prompt with this digest; None if it is not refused."""
        prompt = self._refused.get(digest)
        if prompt is not None and now >= prompt.until_s:
            del self._refused[digest]
            return None
        return prompt

    def lift(self, digest: bytes) -> bool:
        """Accept a prompt again. Return False if it was not refused."""
        return self._refused.pop(digest, None) is not None

    def list(self, now: float) -> Iterator[PoisonPrompt]:
        """Yield all prompts that are refused, the latest last."""
        return (prompt for prompt in self._refused.values() if now < prompt.until_s)


def _put_last(table: dict[bytes, T], digest: bytes, value: T) -> None:
    """Store the value as the latest one, and drop the oldest beyond `MOST`."""
    table.pop(digest, None)
    table[digest] = value
    if len(table) > MOST:
        del table[next(iter(table))]
