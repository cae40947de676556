"""Shared prefixes of a model's live programs at their targets. A shared prefix is charged to one program only.

A target keeps a prefix once, however many programs begin with it: a tool's instructions, or the context that a
sub-agent has from its parent. If the programs at a target are in lexicographic order of their last prompts, the
prefix that a program shares with its predecessor is the longest that it shares with any program before it
(`router/fleet/live_blocks.py`). The length of this prefix is the program's `shared_tokens`; the prompts without
their `shared_tokens` add up to the distinct tokens. When a program comes or leaves, the `shared_tokens` of at most
one other program change.

One key per `STEP_TOKENS` of a prompt is kept, less than 2 KiB for 100,000 tokens, because silent programs are many.
So `shared_tokens` are rounded down to this step.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from router.fleet.live_blocks import LiveBlocks, LivePrompt
from router.kvcache.events import Key
from router.kvcache.tokenized_prompt import TokenizedPrompt
from scorers.admission.contract import AgentProgram

STEP_TOKENS = 512  # at least a block


class PromptPrefix(NamedTuple):
    """Chained keys of a prompt's first `step_tokens`, 2 x `step_tokens`, ..."""

    keys: bytes  # 8 each, in the machine's byte order; sent between workers
    step_tokens: int


class _Place(NamedTuple):
    program: AgentProgram
    target: str
    prompt: LivePrompt
    step_tokens: int


class SharedPrefixes:
    """Sets `shared_tokens` of the programs that have a place."""

    def __init__(self, on_change: Callable[[AgentProgram], object]) -> None:
        """Call `on_change` with each program whose `shared_tokens` change as another one comes, moves or leaves."""
        self._on_change = on_change
        self._targets: dict[str, LiveBlocks] = {}
        self._places: dict[AgentProgram, _Place] = {}
        self._by_prompt: dict[LivePrompt, _Place] = {}

    def __len__(self) -> int:
        """Count the programs that have a place."""
        return len(self._places)

    def place(self, program: AgentProgram, target: str, prefix: PromptPrefix | None) -> None:
        """Count `program` with its newest prompt at `target`, and at no other target. `prefix` None: unknown."""
        self.remove(program)
        if prefix is None or not prefix.keys:
            return
        if (live := self._targets.get(target)) is None:
            live = self._targets[target] = LiveBlocks(self._on_shared)
        prompt = live.add(cast("Sequence[Key]", memoryview(prefix.keys).cast("Q")))
        place = self._places[program] = self._by_prompt[prompt] = _Place(program, target, prompt, prefix.step_tokens)
        _count(place)

    def remove(self, program: AgentProgram) -> None:
        """Stop counting `program`, if it has a place."""
        if (place := self._places.pop(program, None)) is None:
            return
        del self._by_prompt[place.prompt]
        live = self._targets[place.target]
        live.remove(place.prompt)
        if not live:
            del self._targets[place.target]
        program.shared_tokens = None

    def _on_shared(self, prompt: LivePrompt) -> None:
        place = self._by_prompt[prompt]
        _count(place)
        self._on_change(place.program)


def _count(place: _Place) -> None:
    place.program.shared_tokens = place.prompt.shared * place.step_tokens


def sample_prefix(tokens: TokenizedPrompt) -> PromptPrefix | None:
    """Return a prompt's keys, one per about `STEP_TOKENS`; None if the prompt has no keys."""
    size = min(tokens.keys, default=0)
    if not size:
        return None
    step = max(1, STEP_TOKENS // size)
    return PromptPrefix(array("Q", tokens.keys[size][step - 1 :: step]).tobytes(), step * size)
