"""Compares the router's answer to a request with the engine's own answer to it.

An answer with `x-warmroute-target` was relayed: status, headers and bytes must be the engine's, but for what the page
lists. One without is the router's own: it must be listed, or be an error with the engine's status in the API's form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tests.oracle.corpus import Case
from tests.oracle.differences import Differences
from tests.oracle.http1 import Reply

TARGET = b"x-warmroute-target"
OPENAI_ERROR, ANTHROPIC_ERROR = {"message", "type", "param", "code"}, {"type", "message"}
VARYING = re.compile(
    rb'(?<="id":")(?:chatcmpl|cmpl|resp|msg|rs|fc|call|embd|rerank|score|pool)[-_][^"]*'
    rb'|(?<="item_id":")[^"]*|(?<="call_id":")[^"]*|(?<="id":")chatcmpl-tool-[^"]*'
    rb'|(?<="created":)\d+|(?<="created_at":)[\d.]+|(?<="completed_at":)[\d.]+'
)  # what an engine draws anew for each answer
BODY_RULES = {
    "stream-fingerprint": re.compile(rb',"system_fingerprint":"[^"]*"'),
    "usage-not-asked": re.compile(rb'data: [^\n]*"choices":\[\],"usage":[^\n]*\n\n'),
    "done-after-error": re.compile(rb"(?<=\n\n)data: \[DONE\]\n\n\Z"),
}  # by row: what is left out of both bodies before they are compared


class Comparison:
    """Compares answers. `recorded`: the statuses of a real vLLM by the request's name, for what the router refuses.
    `used` collects the rows of the table that were needed.
    """

    def __init__(self, table: Differences, recorded: Mapping[str, int] | None = None) -> None:
        self._table = table
        self._recorded = recorded or {}
        self.used: set[str] = set()

    def find_fault(self, case: Case, engine: Reply, router: Reply) -> str | None:
        """Return what differs and is not listed; None if nothing does."""
        if router.header(TARGET) is None:
            return self._check_own(case, engine, router)
        if (engine.status, engine.whole) != (router.status, router.whole):
            if self._allowed(case, engine.status, router.status):
                return None
            return f"the engine answers {_brief(engine)}, the router relays {_brief(router)}"
        if self._recorded.get(case.name, 0) >= 400 > engine.status:
            return None  # what a real engine refuses, the emulated one answers in a way of its own
        ours, theirs = self._headers(router), self._headers(engine)
        if ours != theirs:
            return f"headers: the engine's {theirs}, the router's {ours}"
        return self._check_body(case, VARYING.sub(b"*", engine.body), VARYING.sub(b"*", router.body))

    def _allowed(self, case: Case, engine: int, router: int) -> bool:
        """Return whether a row of the table allows these statuses for the case."""
        rows = [row for row in case.rows if row in self._table.answers]
        allowed = [row for row in rows if self._table.answers[row].allows(engine, router)]
        self.used.update(allowed)
        return bool(allowed)

    def _headers(self, reply: Reply) -> list[tuple[bytes, bytes]]:
        """Return the headers that must be the same; those that `Connection` names are for one hop (RFC 9110 7.6.1)."""
        hop = (reply.header(b"connection") or b"").lower().split(b", ")
        return sorted(one for one in reply.headers if one[0] not in hop and not self._table.names_header(one[0]))

    def _check_body(self, case: Case, engine: bytes, router: bytes) -> str | None:
        if engine == router:
            return None
        for row in self._table.bodies.intersection(case.rows):
            self.used.add(row)
            engine, router = (BODY_RULES[row].sub(b"", body) for body in (engine, router))
        if engine == router:
            return None
        pairs = enumerate(zip(engine, router, strict=False))
        at = next((n for n, (theirs, ours) in pairs if theirs != ours), min(len(engine), len(router)))
        part = slice(max(0, at - 40), at + 80)
        return f"bodies differ at {at}: the engine's {engine[part]!r}, the router's {router[part]!r}"

    def _check_own(self, case: Case, engine: Reply, router: Reply) -> str | None:
        """Check an answer that the router made itself."""
        theirs = self._recorded.get(case.name) or engine.status
        allowed = self._allowed(case, theirs, router.status)
        if not allowed and (router.status != theirs or router.status < 400):
            return f"{theirs} is right, the engine answers {_brief(engine)}, the router itself {_brief(router)}"
        if router.status >= 400 and case.request.method != "HEAD":
            return find_error_fault(case, router)
        return None


def find_error_fault(case: Case, reply: Reply) -> str | None:
    """Return what is wrong with an error in the form of the API that the client speaks."""
    if reply.header(b"content-type") != b"application/json":
        return f"an error that is no JSON: {_brief(reply)}"
    body: dict[str, Any] = json.loads(reply.body)
    speaks = dict(case.request.headers)
    anthropic = case.request.path.startswith("/v1/messages") or b"anthropic-version" in speaks
    if set(body) != ({"type", "error"} if anthropic else {"error"}):
        return f"an error in another API's form: {_brief(reply)}"
    if set(body["error"]) != (ANTHROPIC_ERROR if anthropic else OPENAI_ERROR) or not body["error"]["message"]:
        return f"an error without its parts: {_brief(reply)}"
    return None


def _brief(reply: Reply) -> str:
    return f"{reply.status} {reply.body[:200]!r}{'' if reply.whole else ' (cut off)'}"
