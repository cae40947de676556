"""Recorded answers of a real vLLM 0.32 to requests that are odd or wrong: what an emulated engine must answer, too.

`data/vllm-0.32-answers.json` has a line for each: its name, the request, and of the answer what clients and routers act
on: the status, headers, the form of the error with its type and parameter, and whether the body was cut. `tests/stack`
compares the recording with the real engine.
"""

from __future__ import annotations

import base64
import json
from http.client import HTTPConnection, IncompleteRead
from typing import Any, NamedTuple

from tests.paths import DATA

HEADERS = ("allow", "connection", "content-type", "location", "vary")  # and those of CORS
USUAL = {"content-type": "application/json", "vary": "Origin"}  # headers of an answer that has none here
EVENT_ERROR = 'data: {"error": '


class Recorded(NamedTuple):
    name: str
    method: str
    path: str
    headers: dict[str, str]
    body: str | None  # base64, if it begins with that word and a colon
    answer: dict[str, Any]

    @property
    def content(self) -> bytes | None:
        if self.body is None:
            return None
        kind, _, encoded = self.body.partition(":")
        return base64.b64decode(encoded) if kind == "base64" else self.body.encode()


def recorded() -> list[Recorded]:
    cases = (Recorded(*case) for case in json.loads((DATA / "vllm-0.32-answers.json").read_text()))
    return [case._replace(answer={"headers": USUAL, **case.answer}) for case in cases]


def ask(host: str, port: int, case: Recorded) -> dict[str, Any]:
    """Send one request on a connection of its own, and return what matters of the answer."""
    connection = HTTPConnection(host, port, timeout=120)  # a case may generate a whole context
    try:
        connection.request(case.method, case.path, case.content, case.headers)
        response = connection.getresponse()
        try:
            body, cut = response.read(), False
        except IncompleteRead as short:
            body, cut = short.partial, True
        headers = [(name.lower(), value) for name, value in response.getheaders()]
    finally:
        connection.close()
    return summarise(f"http://{host}:{port}", response.status, headers, body, cut)


def summarise(url: str, status: int, headers: list[tuple[str, str]], body: bytes, cut: bool) -> dict[str, Any]:
    """Return what matters of an answer."""
    told = {name: value for name, value in headers if name in HEADERS or name.startswith("access-control-")}
    if "location" in told:
        told["location"] = told["location"].removeprefix(url)
    answer: dict[str, Any] = {"status": status, "headers": dict(sorted(told.items()))}
    if form := _form(status, body):
        answer["form"] = form
    return answer | {"cut": True} if cut else answer


def _form(status: int, body: bytes) -> Any:
    """Return an error without its message, and other refusals whole; of answers, only an error in a stream."""
    text = body.decode()
    if status == 200:
        if not text.startswith(EVENT_ERROR):
            return None
        text = text.removeprefix("data: ").partition("\n")[0]
    try:
        content = json.loads(text)
    except ValueError:
        return text
    if isinstance(content, dict) and isinstance(content.get("error"), dict):
        content["error"].pop("message")
    return content
