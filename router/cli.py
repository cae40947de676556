"""The `warmroute` command. Exit codes: 0 done, 1 it failed while running, 2 the command or a file of yours is wrong.

Rooms are imported by the command that needs them, so that `--help` and `check` answer at once.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from router.errors import ConfigError, WarmrouteError

if TYPE_CHECKING:
    from router.config.schema import Config, Embedded
    from router.emulate.options import EngineOptions

INVITATION = """
Ready. Try it:

  curl -s http://127.0.0.1:{port}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Why is the sky blue?"}}]}}'

  from openai import OpenAI  # pip install openai
  client = OpenAI(base_url="http://127.0.0.1:{port}/v1", api_key="none")
  chat = [{{"role": "user", "content": "Tell me a long story about routers. " * 20}}]
  for turn in ("Go on.", "And then?"):
      answer = client.chat.completions.with_raw_response.create(model="{model}", messages=chat)
      reply = answer.parse()
      usage = reply.usage
      print(answer.headers["x-warmroute-target"], usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens)
      chat.append({{"role": "assistant", "content": reply.choices[0].message.content}})
      chat.append({{"role": "user", "content": turn}})

The second turn is a hit. Why it went where it went:

  curl -s 'http://127.0.0.1:{admin}/admin/records?limit=1' | python3 -m json.tool

Ctrl-C stops everything.
"""

app = typer.Typer(name="warmroute", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
err = Console(stderr=True, highlight=False)

ConfigOption = Annotated[
    Path, typer.Option("--config", "-c", help="main configuration file", exists=True, dir_okay=False, readable=True)
]


def main() -> None:
    try:
        app()
    except ConfigError as wrong:
        err.print(str(wrong), style="red", markup=False)
        sys.exit(2)
    except WarmrouteError as failure:
        err.print(str(failure), style="red", markup=False)
        sys.exit(1)


@app.callback()
def about() -> None:
    """Warmroute: a cache-aware router for vLLM fleets."""


@app.command()
def serve(config: ConfigOption) -> None:
    """Run the router in front of the engines that the configuration names."""
    import uvloop

    from router.app import serve as serve_router
    from router.config.read import read_config

    settings = read_config(config)
    if not settings.fleet.instances and settings.fleet.file is None:
        raise ConfigError(f"{config}: fleet: no `instances` and no `file`; for simulated engines: warmroute fleet")
    _log(settings.log.level)
    uvloop.run(serve_router(settings))


@app.command()
def fleet(config: ConfigOption) -> None:
    """Run simulated engines with the router in front of them: everything there is to try, nothing to install."""
    import uvloop

    from router.config.read import read_config

    settings = read_config(config)
    if settings.fleet.embedded is None:
        raise ConfigError(f"{config}: fleet.embedded: is needed for `warmroute fleet`")
    _log(settings.log.level)
    uvloop.run(_fleet(settings, settings.fleet.embedded))


@app.command()
def engine(
    name: Annotated[str, typer.Option(help="its name")] = "engine",
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port to listen on; 0: the system chooses")] = 0,
    model: Annotated[str, typer.Option(help="name of the model it serves")] = "warm-tiny",
    options: Annotated[
        str, typer.Option(help="further options as a JSON object, see router/emulate/options.py")
    ] = "{}",
) -> None:
    """Run one simulated engine; prints one line of JSON when it takes requests."""
    import msgspec

    from router.emulate.__main__ import run
    from router.emulate.options import EngineOptions

    _log("warning")
    try:
        given = {"name": name, "host": host, "port": port, "model": model} | msgspec.json.decode(options, type=dict)
        run(msgspec.convert(given, EngineOptions))
    except msgspec.DecodeError as wrong:
        raise ConfigError(f"--options: {wrong}") from wrong
    except OSError as failure:
        raise WarmrouteError(f"warmroute engine: {failure}") from failure


@app.command()
def check(file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, readable=True)]) -> None:
    """Check a main configuration or a policy file, and print it with every default written out."""
    from router.config.read import effective, load_policies, read_either
    from router.config.schema import Config
    from router.decide.policy import build_policy

    checked = read_either(file)
    if isinstance(checked, Config):
        policies = load_policies(checked)
        for name, policy in policies.items():
            build_policy(name, policy)
        sys.stdout.write(effective(checked, policies))
    else:
        build_policy(file.stem, checked)
        sys.stdout.write(effective(checked))


async def _fleet(settings: Config, asked: Embedded) -> None:
    from router.app import App
    from router.app import serve as serve_router
    from router.config.schema import Instance
    from router.emulate.supervise import EmbeddedFleet

    err.print(f"starting {asked.engines} simulated engines ...")
    async with EmbeddedFleet(_engines(asked)) as embedded:
        for member in embedded.members:
            err.print(f"  {member.name}  {member.url}  pid {member.pid}")
        instances = [Instance(name=member.name, url=member.url) for member in embedded.members]
        own = settings.fleet.model_copy(update={"instances": [*settings.fleet.instances, *instances]})

        def invite(router: App) -> None:
            sys.stdout.write(INVITATION.format(port=router.port, admin=router.admin_port, model=asked.model))
            sys.stdout.flush()

        await serve_router(settings.model_copy(update={"fleet": own}), invite)


def _engines(asked: Embedded) -> list[EngineOptions]:
    from router.emulate.options import EngineOptions

    return [
        EngineOptions(
            name=f"engine-{i}",
            model=asked.model,
            block_tokens=asked.block_tokens,
            blocks=asked.blocks,
            prefill_tokens_per_s=asked.prefill_tokens_per_s,
            decode_ms_per_token=asked.decode_ms_per_token,
            seed=i,
        )
        for i in range(asked.engines)
    ]


def _log(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", stream=sys.stderr
    )
