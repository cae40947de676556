"""What a log line looks like, whatever is in it."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

from router.cli.terminal.logs import JsonFormatter, PrintableFormatter


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


def as_json(message: str, *args: object, worker: int | None = None, **extra: object) -> dict[str, object]:
    record = logging.LogRecord("warmroute.web", logging.ERROR, __file__, 1, message, args, None)
    vars(record).update(extra)
    line = JsonFormatter(worker).format(record)
    assert line.isascii()
    assert "\n" not in line
    found: dict[str, object] = json.loads(line)
    return found


def test_a_json_line() -> None:
    line = as_json("POST %s failed", "/v1/größe\x1b[2J\nERROR", created=1_700_000_000.25)
    assert line == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "error",
        "logger": "warmroute.web",
        "message": "POST /v1/größe\\x1b[2J\nERROR failed",
    }


def test_a_json_line_has_what_it_is_about_and_who_says_it() -> None:
    line = as_json("x", worker=2, fields={"status": 200, "target": "a/0"})
    assert (line["worker"], line["status"], line["target"]) == (2, 200, "a/0")


def test_a_json_line_has_the_traceback() -> None:
    try:
        raise ValueError("no")
    except ValueError as error:
        line = as_json("it failed", exc_info=(ValueError, error, error.__traceback__))
    assert str(line["error_trace"]).endswith("ValueError: no")


def test_access_lines_are_written_at_any_level() -> None:
    code = (
        "import logging; from router.cli.terminal.logs import log_to_stderr;"
        "log_to_stderr('error', 'json', access=True);"
        "logging.getLogger('warmroute.access').info('%s', 'here', extra={'fields': {'status': 200}});"
        "logging.getLogger('warmroute.web').info('not here')"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr
    (line,) = said.splitlines()
    assert (json.loads(line)["message"], json.loads(line)["status"]) == ("here", 200)


def test_of_libraries_only_warnings_are_written() -> None:
    code = (
        "import logging; from router.cli.terminal.logs import log_to_stderr;"
        "log_to_stderr('debug');"
        "[logging.getLogger(name).log(level, 'at %d', level)"
        " for name in ('watchfiles.main', 'warmroute.files') for level in (10, 20, 30)]"
    )
    written = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr
    lines = [line.split(" ", 2)[2].split() for line in written.splitlines()]
    assert [(logger, number) for _, logger, _, number in lines] == [
        ("watchfiles.main:", "30"),
        ("warmroute.files:", "10"),
        ("warmroute.files:", "20"),
        ("warmroute.files:", "30"),
    ]
