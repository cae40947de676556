"""`warmroute init`: ask engines what they are, and write a checked configuration for them."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from router.errors import ConfigError, WarmrouteError

if TYPE_CHECKING:
    from router.cli.init.findings import EngineSurvey


def init(
    urls: Annotated[list[str], typer.Argument(metavar="URL...", help="engines, like http://10.0.0.1:8100")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="file to write; default: standard output", dir_okay=False)
    ] = None,
    policy: Annotated[str, typer.Option(help="policy that decides, see `warmroute policies`")] = "warm",
    port: Annotated[int, typer.Option(min=0, max=65535, help="public port of the router")] = 8000,
    tokenizer: Annotated[
        list[str] | None,
        typer.Option("--tokenizer", metavar="MODEL=PATH", help="folder with the model's tokenizer.json; repeatable"),
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="environment variable with the engines' API key", metavar="NAME")
    ] = None,
) -> None:
    """Write a configuration for the engines at these URLs, with what they are and what to turn on there."""
    from router.cli.init.config_text import config_of_urls, config_text
    from router.cli.init.survey import survey_engine
    from router.config.reader import parse_config

    if output is not None and output.exists():
        raise ConfigError(f"--output: {output} exists; remove it or give another name")
    urls = [url.rstrip("/") for url in urls]
    config_of_urls(urls, tokenizer or [])  # wrong URLs and folders are named before any engine is asked
    key = None if api_key_env is None else os.environ.get(api_key_env)

    async def survey_all() -> list[EngineSurvey]:
        return await asyncio.gather(*(survey_engine(url, key) for url in urls))

    surveys = asyncio.run(survey_all())
    unusable = [f"{survey.url}: {survey.error}" for survey in surveys if survey.error is not None]
    if len(unusable) == len(surveys):
        raise WarmrouteError("\n".join(["init: no engine can be used, nothing is written", *unusable]))
    text = config_text(surveys, tokenizer or [], policy, port, api_key_env)
    parse_config(text, str(output or "init"), (output or Path("-")).absolute().parent)
    err = Console(stderr=True, highlight=False)
    for line in unusable:
        err.print(f"{line}; written as a comment", style="yellow", markup=False, soft_wrap=True)
    if output is None:
        sys.stdout.write(text)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as failure:
        raise WarmrouteError(f"{output}: {(failure.strerror or str(failure)).lower()}") from failure
    err.print(f"written: {output}; start: warmroute serve --config {output}", markup=False, soft_wrap=True)
