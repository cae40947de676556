"""Log lines on standard error, for every process of the router.

Messages quote what strangers send: paths, names, texts of engines. So every record is written as printable text: no
terminal escape gets through, and a line break inside a record cannot pass for a record of its own, because all lines
but the first are indented.
"""

from __future__ import annotations

import logging
import sys

from router.errors import quote_lines

MAX_RECORD_LINES = 200  # with a traceback
MAX_RECORD_LINE_CHARS = 2_000


class PrintableFormatter(logging.Formatter):
    """Formats a record as printable text of a bounded size."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's lines, those after the first indented."""
        return quote_lines(super().format(record), MAX_RECORD_LINES, MAX_RECORD_LINE_CHARS).replace("\n", "\n    ")


def log_to_stderr(level: str, origin: str = "") -> None:
    """Write log lines of this level and above to standard error; `origin` is put in front of the logger's name."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PrintableFormatter(f"%(asctime)s %(levelname)-7s {origin}%(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)  # httpx logs every request at info
