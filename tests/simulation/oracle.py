"""The answers that undisturbed engines give: at temperature 0 an emulated engine's answer follows from the prompt."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from router.clock import ManualClock
from router.lab.emulator.options import EngineOptions
from router.lab.emulator.request_params import RequestParamsReader
from router.lab.emulator.server import engine_shape
from router.lab.emulator.vocabulary import DATA, load_vocabulary
from router.lab.simulator.engine_types import Finish, SequenceRequest
from router.lab.simulator.step_engine import StepEngine


class RightAnswer(NamedTuple):
    """An answer to one prompt. Token counts are the engine's."""

    text: str
    finish: Finish
    prompt_tokens: int
    output_tokens: int


class Oracle:
    """Computes answers as engines with `options` do."""

    def __init__(self, options: EngineOptions) -> None:
        self._vocabulary = load_vocabulary(DATA)
        self._shape = engine_shape(options, self._vocabulary)
        self._reader = RequestParamsReader(options, self._vocabulary, ManualClock(), lambda: options.faults, {})

    def answer(self, path: str, body: dict[str, Any]) -> RightAnswer:
        """Return the answer to a request at temperature 0."""
        params = self._reader.read(path, msgspec.json.encode(body), body)
        request = params.sequences[0]
        tokens, finish = self._generate(request)
        text = "".join(map(self._vocabulary.text, tokens[:-1] if finish == "stop" else tokens))
        return RightAnswer(text, finish, len(request.token_ids), len(tokens))

    def _generate(self, request: SequenceRequest) -> tuple[list[int], Finish]:
        engine = StepEngine(self._shape)
        engine.submit(request, 0.0)
        tokens: list[int] = []
        now: float | None = 0.0
        while now is not None:
            result = engine.step(now)
            now = result.next_wake_s
            for output in result.outputs.values():
                tokens.append(output.token)
                if output.finish is not None:
                    return tokens, output.finish
        raise AssertionError("the engine refuses the request, so clients must not send it")
