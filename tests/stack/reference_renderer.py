"""`reference_renderer.py MODEL JOBS` renders request bodies with the render server of the installed vLLM, no sockets.

Run with the Python of the stack's environment: this project is not in it. JOBS is a file with one line of JSON per
template, `{"template": text, "requests": [[path, body]]}`; for each, one line goes to standard output, a list with one
entry per request: the prompt's token ids, or `{"refused": [status, answer]}`. Requests pass through vLLM's own
application, so validation, conversion and errors are its own too. Its clock stands still at `--clock`, for templates
that print the time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

MODEL = "tiny"


def stop_clock(wall_s: float) -> None:
    """Let templates of transformers print this time."""
    from transformers.utils import chat_template_utils

    class Stopped(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Stopped:
            return cls.fromtimestamp(wall_s, tz)

    chat_template_utils.datetime = Stopped


async def render_server(model: str, options: Sequence[str]) -> Any:
    """Return the application of `vllm launch render`, set up as its own entry point does."""
    from vllm import AsyncEngineArgs
    from vllm.config import VllmConfig
    from vllm.entrypoints.launchers.app import build_app
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.entrypoints.launchers.render.app_state import init_render_app_state
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    always = ["--model", model, "--served-model-name", MODEL, "--dtype", "bfloat16", "--enable-auto-tool-choice"]
    args = make_arg_parser(FlexibleArgumentParser()).parse_args([*always, *options])
    config = VllmConfig(model_config=AsyncEngineArgs.from_cli_args(args).create_model_config())
    app = build_app(args, ("render",))
    await init_render_app_state(config, app.state, args)
    return app


async def post(app: Any, path: str, body: bytes) -> tuple[int, bytes]:
    """Return status and body of one request's answer."""
    headers = [(b"content-type", b"application/json"), (b"host", b"reference")]
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http"}
    scope |= {"path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers}
    scope |= {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 1)}
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


async def render(app: Any, path: str, body: Any) -> Any:
    """Return the prompt's token ids, or how the engine refuses the request."""
    try:
        status, answer = await post(app, f"{path}/render", json.dumps(body).encode())
    except Exception as error:  # noqa: BLE001  what leaves the application is its failure: 500
        return {"refused": [500, repr(error)]}
    if status != 200:
        return {"refused": [status, answer.decode()]}
    return json.loads(answer)["token_ids"]


async def render_all(model: str, options: Sequence[str], jobs: Path, out: Any) -> None:
    """Write one line per template."""
    from vllm.entrypoints.scale_out.factories import init_render_state

    app = await render_server(model, options)
    for line in jobs.open():
        job = json.loads(line)
        if job["template"] is not None:
            app.state.online_renderer.chat_template = job["template"]
        init_render_state(app.state, None)  # it examines the template
        rendered = [await render(app, path, body) for path, body in job["requests"]]
        out.write(json.dumps(rendered) + "\n")
        out.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("jobs", type=Path)
    parser.add_argument("--clock", type=float, required=True)
    given, options = parser.parse_known_args()  # the rest: of `vllm serve`
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM logs to standard output
    sys.path.pop(0)  # this folder's modules are none of vLLM's
    stop_clock(given.clock)
    asyncio.run(render_all(given.model, options, given.jobs, results))
