"""One line per request, when its answer has ended: logger `warmroute.access`, with `log.access`.

The facts of a line are its fields: a sequence of `name=value` in a text log, keys of the object in a JSON log
(`log.format`). A line contains nothing of a prompt. Only lines that are logged are built.
"""

from __future__ import annotations

import logging

import msgspec

from router.errors import RequestRefused, quote_name
from router.scheduling.policy.record import Record
from router.telemetry.failure import failure_reason

Field = str | int | float | bool

log = logging.getLogger("warmroute.access")


def log_request(record: Record) -> None:
    """Log a request that ended with a record."""
    _log(
        {
            "path": record.endpoint,
            "status": record.status,
            "error": failure_reason(record),
            "model": quote_name(record.model) or None,
            "client": record.sender,
            "target": record.target,
            "policy": None if record.policy is None else record.policy.name,
            "attempts": len(record.attempts),
            "stream": record.stream,
            "ttft_ms": _round(record.ttft_ms),
            "duration_ms": _round(record.duration_ms),
            "prompt_tokens": record.prompt_tokens,
            "cached_tokens": record.cached_tokens,
            "output_tokens": record.output_tokens,
            "record": record.id,
            "trace": record.trace_id,
        }
    )


def log_refused(path: str, sender: str, refusal: RequestRefused) -> None:
    """Log a request that was refused before it had a record."""
    _log_unrecorded(path, sender, refusal.status, refusal.code or refusal.kind)


def log_disconnect(path: str, sender: str) -> None:
    """Log a request whose client left before it had a record."""
    _log_unrecorded(path, sender, None, "client_gone")


def log_own_answer(path: str, sender: str) -> None:
    """Log a request that the router answered by itself."""
    _log_unrecorded(path, sender, 200, None)


def _log_unrecorded(path: str, sender: str, status: int | None, error: str | None) -> None:
    _log({"path": quote_name(path), "status": status, "error": error, "client": sender})


def _log(facts: dict[str, Field | None]) -> None:
    known = {name: value for name, value in facts.items() if value is not None}
    log.info("%s", _Fields(known), extra={"fields": known})


class _Fields:
    """Facts as text, rendered only where a text log needs them."""

    def __init__(self, fields: dict[str, Field]) -> None:
        self._fields = fields

    def __str__(self) -> str:
        return " ".join(f"{name}={_quote(value)}" for name, value in self._fields.items())


def _quote(value: Field) -> str:
    """Return the value so that it ends at the next space, because clients choose names of models and paths."""
    text = str(value)
    return msgspec.json.encode(text).decode() if '"' in text or any(map(str.isspace, text)) else text


def _round(ms: float | None) -> float | None:
    return None if ms is None else round(ms, 3)
