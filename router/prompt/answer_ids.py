"""The token ids of one streamed answer and of its prompt, within a memory budget that all answers share.

The ids are kept as received, as JSON numbers separated by commas: only another engine reads them. Pure.
"""

from __future__ import annotations

ANSWERS = 16  # one answer may take 1/ANSWERS of the budget
RESERVE_BYTES = 4096  # taken from the budget at a time


class ContinuationBudget:
    """The memory budget for the token ids of answers, shared by all requests."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.taken_bytes = 0

    def take(self, bytes_: int) -> bool:
        """Take `bytes_` more from the budget; return False, taking nothing, if fewer are free."""
        if self.taken_bytes + bytes_ > self.capacity_bytes:
            return False
        self.taken_bytes += bytes_
        return True

    def give_back(self, bytes_: int) -> None:
        self.taken_bytes -= bytes_


class AnswerMemory:
    """The memory of one answer, taken from the budget. The owner of `answer` appends to it, and calls `grow` when
    `answer` exceeds the size that `grow` returned last. `full`: the answer did not fit, and is not kept.
    """

    __slots__ = ("_budget", "_reserved_bytes", "_room_bytes", "answer", "full")

    def __init__(self, budget: ContinuationBudget) -> None:
        self._budget = budget
        self._reserved_bytes = 0  # taken from the budget
        self._room_bytes = 0  # the part of these bytes that is for the answer
        self.answer = bytearray()
        self.full = False

    def grow(self) -> int:
        """Reserve memory for the answer so far and some more; return how many bytes the answer may have. If the
        budget has too little left, all memory of the answer is given up.
        """
        more = len(self.answer) - self._room_bytes + RESERVE_BYTES
        if self._reserve(more):
            self._room_bytes += more
        else:
            self.answer.clear()
        return self._room_bytes

    def _reserve(self, bytes_: int) -> bool:
        fits = self._reserved_bytes + bytes_ <= self._budget.capacity_bytes // ANSWERS
        if not self.full and fits and self._budget.take(bytes_):
            self._reserved_bytes += bytes_
            return True
        self.full = True
        self.close()
        return False

    def close(self) -> None:
        """Give the memory back; twice is harmless."""
        self._budget.give_back(self._reserved_bytes)
        self._reserved_bytes = self._room_bytes = 0
        self.answer.clear()


class AnswerIds(AnswerMemory):
    """The token ids of one answer and its prompt. `prompt`: None until the engine has sent the prompt's ids.
    `answer` has a comma after each id.
    """

    __slots__ = ("prompt",)

    def __init__(self, budget: ContinuationBudget) -> None:
        super().__init__(budget)
        self.prompt: bytes | None = None

    def open(self, prompt: bytes) -> None:
        """Keep the ids of the prompt."""
        self.prompt = prompt
        self._reserve(len(prompt))

    @property
    def tokens(self) -> int:
        """Number of tokens in the answer."""
        return self.answer.count(b",")

    @property
    def prompt_tokens(self) -> int:
        return self.prompt.count(b",") + 1 if self.prompt else 0

    def drop(self, tokens: int) -> None:
        """Forget the last `tokens` ids of the answer."""
        for _ in range(tokens):
            del self.answer[self.answer.rfind(b",", 0, -1) + 1 :]

    def join(self) -> bytes:
        """Return the ids of the prompt followed by the ids of the answer."""
        return b",".join(filter(None, (self.prompt, bytes(self.answer[:-1]))))
