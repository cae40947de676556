"""`warmroute init`: query engines for their properties, and write a checked configuration for them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from router.cli.terminal.options import written_path
from router.cli.terminal.variables import read_variable
from router.errors import ConfigError, WarmrouteError

if TYPE_CHECKING:
    from router.operate.doctor.survey import EngineSurvey

TokenizerOption = Annotated[
    list[str] | None,
    typer.Option("--tokenizer", metavar="MODEL=PATH", help="folder with the model's tokenizer.json; repeatable"),
]


def init(
    urls: Annotated[list[str], typer.Argument(metavar="URL...", help="engines, like http://10.0.0.1:8100")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="file to write; default: standard output", callback=written_path("file")),
    ] = None,
    policy: Annotated[str, typer.Option(help="policy that decides, see `warmroute policies`")] = "warm",
    port: Annotated[int, typer.Option(min=0, max=65535, help="public port of the router")] = 8000,
    admin_port: Annotated[int, typer.Option(min=0, max=65535, help="admin port of the router")] = 8001,
    tokenizer: TokenizerOption = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="environment variable with the engines' API key", metavar="NAME")
    ] = None,
) -> None:
    """Write a configuration for the engines at these URLs. It says what they are and what to turn on there."""
    import asyncio

    from router.cli.init.config_text import config_of_urls, config_text
    from router.config.reader import parse_config

    _check_absent(output)
    urls = [url.rstrip("/") for url in urls]
    config_of_urls(urls, tokenizer or [])  # reports wrong URLs and folders before any engine is queried
    surveys = asyncio.run(_survey_all(urls, read_variable("--api-key-env", api_key_env)))
    text = config_text(surveys, tokenizer or [], policy, (port, admin_port), api_key_env)
    parse_config(text, str(output or "init"), (output or Path("-")).absolute().parent)
    from router.cli.terminal.failures import error_console

    err = error_console()
    for survey in surveys:
        if survey.error is not None:
            note = f"{survey.url}: {survey.error}; written as a comment"
            err.print(note, style="yellow", markup=False, soft_wrap=True)
    if output is None:
        sys.stdout.write(text)
    else:
        _write(output, text)
        err.print(f"written: {output}; start: warmroute serve --config {output}", markup=False, soft_wrap=True)


def _check_absent(output: Path | None) -> None:
    """Raises ConfigError when the file exists: it may have been edited."""
    if output is not None and output.exists():
        raise ConfigError(f"--output: {output} exists; remove it or give another name")


async def _survey_all(urls: Sequence[str], api_key: str | None) -> list[EngineSurvey]:
    """Query all engines concurrently. Raises WarmrouteError if none of them can be used."""
    import asyncio

    from router.operate.doctor.survey import survey_url

    surveys = await asyncio.gather(*(survey_url(url, api_key) for url in urls))
    if all(survey.error is not None for survey in surveys):
        errors = [f"{survey.url}: {survey.error}" for survey in surveys]
        raise WarmrouteError("\n".join(["init: no engine can be used, nothing is written", *errors]))
    return surveys


def _write(output: Path, text: str) -> None:
    """Write the file. Raises WarmrouteError when that is not possible."""
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as failure:
        raise WarmrouteError(f"{output}: {(failure.strerror or str(failure)).lower()}") from failure
