"""Failures of commands: exit codes and one message on standard error, without a traceback."""

from __future__ import annotations

import sys

import typer

from router.cli.terminal.console import PrintableConsole
from router.errors import ConfigError, WarmrouteError, quote_lines

MAX_LINES = 100  # a message may quote the end of a log or an endpoint's answer

err = PrintableConsole(stderr=True)


def run(app: typer.Typer) -> None:
    """Run a command line and exit: 2 for a wrong configuration or option, 1 for a failure while running."""
    try:
        app()
    except ConfigError as error:
        err.print(str(error), style="red", markup=False, soft_wrap=True)
        sys.exit(2)
    except WarmrouteError as failure:
        err.print(quote_lines(str(failure), MAX_LINES), style="red", markup=False, soft_wrap=True)
        sys.exit(1)
