"""`warmroute doctor`: report what is wrong with a configuration, a fleet and its routers, and the line to change.

Exit codes: 0 without a fault (warnings do not count), 1 with one, 2 for wrong usage or an invalid configuration.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from router.cli.terminal.options import CaOption, read_path, web_url
from router.cli.terminal.variables import read_variable
from router.errors import ConfigError

if TYPE_CHECKING:  # imported where it is needed: commands start faster
    from router.operate.doctor.gather import DoctorOptions

ConfigArgument = Annotated[
    Path | None,
    typer.Argument(metavar="[CONFIG]", help="main configuration file", callback=read_path("file")),
]
UrlOption = Annotated[
    list[str] | None,
    typer.Option(
        "--url", metavar="URL", help="admin listener of a running router; repeatable", callback=web_url("--url")
    ),
]


def doctor(
    config: ConfigArgument = None,
    url: UrlOption = None,
    passive: Annotated[
        bool, typer.Option("--passive", help="send no prompts; without it every engine computes some small ones")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    fix: Annotated[
        bool, typer.Option("--fix", help="print changes of CONFIG as a patch (`patch -p0`), findings to standard error")
    ] = False,
    token_env: Annotated[
        str | None, typer.Option("--token-env", metavar="NAME", help="environment variable with the admin token")
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="environment variable with the API key of engines that only a router names"),
    ] = None,
    ca_file: CaOption = None,
) -> None:
    """Name what is wrong with a fleet. It examines a configuration, running routers, or both, and changes nothing.

    Each engine gets about seven small prompts (three cache blocks, one token of answer), twice each, to prove that
    what its events promise is what it delivers; --passive leaves them out. It may run anywhere that reaches engines
    and routers, and takes less than 30 seconds for up to 32 engines. Exit code 1 when there is a fault.
    """
    import asyncio
    import logging

    from router.cli.doctor.report import print_report, to_json
    from router.cli.terminal.failures import error_console
    from router.cli.terminal.output import readable_console
    from router.clock import SystemClock
    from router.operate.doctor.suite import examine

    logging.getLogger("warmroute").addHandler(logging.NullHandler())  # the findings cover what router modules log
    options = _read_options(config, url or [], token_env, api_key_env, passive=passive, fix=fix)
    options = options._replace(ca_file=None if ca_file is None else str(ca_file))
    examination = asyncio.run(examine(options, SystemClock()))
    if fix and config is not None:
        from router.operate.doctor.patch import make_patch

        edits = [edit for one in examination.findings for edit in one.edits]
        print_report(error_console(), examination)
        sys.stdout.write(make_patch(examination.text, config, edits))
    elif json:
        import msgspec

        sys.stdout.write(msgspec.json.format(msgspec.json.encode(to_json(examination)), indent=2).decode() + "\n")
    else:
        print_report(readable_console(), examination)
    sys.exit(1 if examination.faults else 0)


def _read_options(
    config: Path | None, urls: list[str], token_env: str | None, api_key_env: str | None, *, passive: bool, fix: bool
) -> DoctorOptions:
    """Return the options of the examination. Raises ConfigError if there is nothing to examine, `--fix` has no file
    to patch, or a variable is not set.
    """
    from router.operate.doctor.gather import DoctorOptions

    if config is None and not urls:
        raise ConfigError("doctor: give a configuration, --url of a running router, or both")
    if fix and config is None:
        raise ConfigError("--fix: there is no configuration to change: warmroute doctor FILE --fix")
    token, api_key = read_variable("--token-env", token_env), read_variable("--api-key-env", api_key_env)
    return DoctorOptions(config, tuple(url.rstrip("/") for url in urls), token, api_key, passive)
