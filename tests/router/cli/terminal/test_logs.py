"""What a log line looks like, whatever is in it."""

from __future__ import annotations

import logging
import sys

from router.cli.terminal.logs import PrintableFormatter


def formatted(message: str, *args: object, error: BaseException | None = None) -> str:
    trouble = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord("warmroute.web", logging.ERROR, __file__, 1, message, args, trouble)
    return PrintableFormatter("%(levelname)s %(name)s: %(message)s").format(record)


def test_what_is_printable_stays_as_it_is() -> None:
    assert formatted("POST %s failed", "/v1/größe") == "ERROR warmroute.web: POST /v1/größe failed"


def test_terminal_escapes_are_visible() -> None:
    assert formatted("%s", "\x1b]0;owned\x07\x9b2J\r") == r"ERROR warmroute.web: \x1b]0;owned\x07\x9b2J\r"


def test_a_line_break_does_not_forge_a_record() -> None:
    assert formatted("%s", "x\nERROR warmroute.web: y") == "ERROR warmroute.web: x\n    ERROR warmroute.web: y"


def test_tracebacks_are_escaped_and_indented() -> None:
    try:
        raise ValueError("\x1b[2J\nERROR forged")
    except ValueError as error:
        lines = formatted("it failed", error=error).split("\n")
    assert lines[0] == "ERROR warmroute.web: it failed"
    assert all(line.startswith("    ") for line in lines[1:])
    assert lines[-2:] == [r"    ValueError: \x1b[2J", "    ERROR forged"]


def test_a_record_is_bounded() -> None:
    assert len(formatted("%s", "x" * 30_000_000)) < 2_100
    lines = formatted("%s", "x\n" * 70_000).split("\n")
    assert (len(lines), lines[-1]) == (201, "    and 69,801 more")
    assert sys.getsizeof(formatted("%s", ("x" * 5_000 + "\n") * 1_000)) < 500_000
