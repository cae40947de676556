"""Starts real clients: SDKs, each by a script in its own language, and agents by their own command.

Clients run without the settings of whoever runs the tests: HOME is a temporary folder, the environment has little more
than PATH, and telemetry and update checks are off. Nothing here knows what a right answer is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.clients.install import SDK, home, program, why_missing

DEADLINE_S = 120.0  # of one conversation: it hangs otherwise
NOWHERE = "http://127.0.0.1:9"  # nobody listens on `discard`
QUIET = {  # no telemetry, no look for updates, and whatever else goes beyond this machine fails at once
    "ALL_PROXY": NOWHERE,
    "HTTP_PROXY": NOWHERE,
    "HTTPS_PROXY": NOWHERE,
    "NO_PROXY": "127.0.0.1,localhost",
    "ANONYMIZED_TELEMETRY": "false",
    "DO_NOT_TRACK": "1",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "NO_COLOR": "1",
    "TERM": "dumb",
}
Turn = dict[str, Any]
"""One turn as the client shows it: text, tool, finish, prompt, output, cached, error; see sdk/conversation.py."""


def require(client: str) -> None:
    """Skip the test where the client is not installed."""
    if (reason := why_missing(client)) is not None:
        pytest.skip(reason)


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a client whose HOME is `folder`."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return kept | QUIET | {"HOME": str(folder)}


class Sdk(NamedTuple):
    """One API of one SDK."""

    client: str
    api: str

    def __str__(self) -> str:
        return f"{self.client}-{self.api}"


SDKS = [
    *(Sdk(client, api) for client in ("openai_python", "openai_node") for api in ("chat", "responses")),
    *(Sdk(client, "messages") for client in ("anthropic_python", "anthropic_node")),
    *(Sdk(client, api) for client in ("langchain_python", "vercel_ai") for api in ("chat", "responses", "messages")),
]


class SdkScripts:
    """The scripts in sdk/, each started when it is first used; `close` ends them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, Process] = {}

    async def talk(self, sdk: Sdk, url: str, *users: str, key: str = "none", **job: Any) -> list[Turn]:
        """Hold a conversation at `url` and return its turns; it ends with the first that has an error.

        `users` are the user's messages. Of a job: `stream`, `model`, `max_tokens`, and `tool`, the result of the tool
        that the first turn calls.
        """
        result = job.pop("tool", None)
        steps = [{"user": text} for text in users] + ([] if result is None else [{"result": result}])
        defaults = {"api": sdk.api, "url": url, "key": key, "model": "warm-tiny", "stream": False, "max_tokens": 12}
        line = json.dumps(defaults | job | {"steps": steps, "tool": result is not None})
        process = self._running.get(sdk.client) or await self._start(sdk.client)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line.encode() + b"\n")
        try:
            async with asyncio.timeout(DEADLINE_S):
                answer = await process.stdout.readline()
        except TimeoutError:
            self._running.pop(sdk.client).kill()  # its late answer would be taken for the next one's
            raise
        assert answer, f"{sdk.client} ended with {await process.wait()}: see its standard error"
        turns: list[Turn] = json.loads(answer)
        return turns

    async def _start(self, client: str) -> Process:
        process = await asyncio.create_subprocess_exec(
            *self._command(client), stdin=PIPE, stdout=PIPE, env=environment(self._folder), limit=2**24
        )
        self._running[client] = process
        return process

    def _command(self, client: str) -> list[str]:
        if (SDK / f"{client}.mjs").exists():
            require("node")
            return ["node", str(self._with_modules() / f"{client}.mjs")]
        python = sys.executable
        if client == "langchain_python":
            require("langchain")
            python = str(home("langchain") / "bin" / "python")
        return [python, str(SDK / f"{client}.py")]

    def _with_modules(self) -> Path:
        """Return a folder with the scripts beside `node_modules`, which is where node looks for packages."""
        folder = self._folder / "node"
        if not folder.exists():
            shutil.copytree(SDK, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
            (folder / "node_modules").symlink_to(home("node") / "node_modules")
        return folder

    async def close(self) -> None:
        for process in self._running.values():
            assert process.stdin is not None
            process.stdin.close()
        for process in self._running.values():
            async with asyncio.timeout(DEADLINE_S):
                await process.wait()


class Run(NamedTuple):
    """A command that has ended."""

    status: int
    output: str  # standard output and error


async def run(
    client: str, folder: Path, *words: str, env: Mapping[str, str] | None = None, typed: str | None = None
) -> Run:
    """Run an agent's command in `folder`, which is also its HOME; `typed` is its standard input. Fails when it does not
    end.
    """
    require(client)
    process = await asyncio.create_subprocess_exec(
        *(str(program(client)), *words),
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL if typed is None else PIPE,
        stdout=PIPE,
        stderr=STDOUT,
        env=environment(folder) | dict(env or {}),
        start_new_session=True,  # some are a process that starts the real one
    )
    try:
        async with asyncio.timeout(DEADLINE_S):
            output, _ = await process.communicate(None if typed is None else typed.encode())
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    return Run(process.returncode or 0, output.decode(errors="replace"))
