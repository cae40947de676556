"""Failures of commands: exit codes and one message on standard error, without a traceback."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from router.errors import ConfigError, WarmrouteError, quote_lines

if TYPE_CHECKING:
    from router.cli.terminal.console import PrintableConsole

MAX_LINES = 100  # a message may quote the end of a log or an endpoint's answer


def error_console() -> PrintableConsole:
    """Return a console for standard error. Rich is loaded here, as a router's process does not need it."""
    from router.cli.terminal.console import PrintableConsole

    return PrintableConsole(stderr=True)


def run(app: typer.Typer) -> None:
    """Run a command line and exit: 2 for a wrong configuration or option, 1 for a failure while running."""
    try:
        app()
    except ConfigError as error:
        error_console().print(str(error), style="red", markup=False, soft_wrap=True)
        sys.exit(2)
    except WarmrouteError as failure:
        error_console().print(quote_lines(str(failure), MAX_LINES), style="red", markup=False, soft_wrap=True)
        sys.exit(1)
