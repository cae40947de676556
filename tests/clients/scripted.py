"""An emulated engine that says what a test wants: a text, a call of a tool that was not forced, a refusal.

    say(fake, lambda path, body: ToolCall("bash", {"command": "ls"}) if body.get("tools") else None)

The script is asked about every generating request; `None` leaves the answer to the engine, and a RequestRefused that it
raises is answered as vLLM answers. Everything else is the emulator's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from router.lab.emulator.request_params import ForcedTool, RequestParams, RequestParamsReader
from tests.fakes.engines import FakeEngine


class ToolCall(NamedTuple):
    name: str
    arguments: dict[str, Any]


Script = Callable[[str, dict[str, Any]], str | ToolCall | None]


def say(fake: FakeEngine, script: Script) -> None:
    """Have `script(path, body)` say what the engine answers from now on."""
    generate = fake.server.app._generate
    generate.params_reader = _ScriptedReader(generate.params_reader, generate._vocabulary.encode, script)


class _ScriptedReader:
    """Reads requests as `engine` does, and puts the script's answer in."""

    def __init__(self, engine: RequestParamsReader, encode: Callable[[str], list[int]], script: Script) -> None:
        self._engine = engine
        self._encode = encode
        self._script = script

    def read(self, path: str, raw: bytes, body: dict[str, Any]) -> RequestParams:
        said = self._script(path, body)
        params = self._engine.read(path, raw, body)
        if said is None:
            return params
        text = json.dumps(said.arguments) if isinstance(said, ToolCall) else said
        tool = ForcedTool(said.name, text, chosen_by_name=False) if isinstance(said, ToolCall) else None
        sequences = [one._replace(script=self._encode(text)) for one in params.sequences]
        return params._replace(sequences=sequences, tool=tool)
