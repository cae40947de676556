"""Log lines on standard error, for every process of the router.

Messages quote untrusted text: paths, names, texts of engines. So every record is written as printable text: no
terminal escape gets through, and a line break inside a record cannot pass for a record of its own, because all
lines but the first are indented. In a JSON log each record is one line by itself.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from router.errors import quote_lines

MAX_RECORD_LINES = 200  # with a traceback
MAX_RECORD_LINE_CHARS = 2_000


class PrintableFormatter(logging.Formatter):
    """Formats a record as printable text of a bounded size."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's lines, those after the first indented."""
        return quote_lines(super().format(record), MAX_RECORD_LINES, MAX_RECORD_LINE_CHARS).replace("\n", "\n    ")


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON in ASCII: escapes keep control characters from a terminal."""

    def __init__(self, worker: int | None) -> None:
        super().__init__()
        self._own = {} if worker is None else {"worker": worker}

    def format(self, record: logging.LogRecord) -> str:
        """Return an object with time (UTC), level, logger and message, then `worker`, the fields of the record
        (`extra={"fields": ...}`), and the traceback as `error_trace`.
        """
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, Any] = {"time": time, "level": record.levelname.lower(), "logger": record.name}
        line |= {"message": self._bound(record.getMessage()), **self._own, **getattr(record, "fields", {})}
        if record.exc_info:
            line["error_trace"] = self._bound(self.formatException(record.exc_info))
        return json.dumps(line)

    def _bound(self, text: str) -> str:
        return quote_lines(text, MAX_RECORD_LINES, MAX_RECORD_LINE_CHARS)


def log_to_stderr(level: str, form: str = "text", *, access: bool = False, worker: int | None = None) -> None:
    """Write log lines of this level and above to standard error, as "text" or "json", and warnings of libraries.
    `access` adds the log lines of requests. `worker` is the number of this worker; None: there is one process, or
    this is the supervisor.
    """
    handler = logging.StreamHandler(sys.stderr)
    origin = "" if worker is None else f"worker {worker}: "
    text = PrintableFormatter(f"%(asctime)s %(levelname)-7s {origin}%(name)s: %(message)s")
    handler.setFormatter(JsonFormatter(worker) if form == "json" else text)
    own = logging.getLevelNamesMapping()[level.upper()]
    logging.basicConfig(level=max(own, logging.WARNING), handlers=[handler])
    logging.getLogger("warmroute").setLevel(own)
    logging.getLogger("opentelemetry").setLevel(logging.ERROR)  # it warns of every retried POST
    if access:
        logging.getLogger("warmroute.access").setLevel(logging.INFO)
