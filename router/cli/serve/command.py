"""`warmroute serve`, `picker`, `fleet` and `stack`: run the router for given, simulated or locally started
engines.
"""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from router.cli.init.command import TokenizerOption
from router.cli.terminal.failures import error_console
from router.cli.terminal.logs import log_to_stderr
from router.cli.terminal.options import read_path, written_path
from router.errors import ConfigError, WarmrouteError

if TYPE_CHECKING:
    from router.cli.serve.run import Router
    from router.config.schema import Config
    from router.config.sections.local_stack import EmbeddedFleetConfig
    from router.lab.emulator.options import EngineOptions
    from router.lab.local_stack.supervisor import RunningStack

T = TypeVar("T")

FIRST_STEPS = """
Ready. Try it:

  curl -s http://127.0.0.1:{port}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"model": "{model}", "max_tokens": 40, "messages": [{{"role": "user", "content": "Why is the sky blue?"}}]}}'

  from openai import OpenAI  # pip install openai
  client = OpenAI(base_url="http://127.0.0.1:{port}/v1", api_key="none")
  chat = [{{"role": "user", "content": "Tell me a long story about routers. " * 20}}]
  for turn in ("Go on.", "And then?"):
      answer = client.chat.completions.with_raw_response.create(model="{model}", messages=chat, max_tokens=40)
      reply = answer.parse()
      usage = reply.usage
      print(answer.headers["x-warmroute-target"], usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens)
      chat.append({{"role": "assistant", "content": reply.choices[0].message.content}})
      chat.append({{"role": "user", "content": turn}})

The second turn hits the cache. Why each request went where it went:

  curl -s 'http://127.0.0.1:{admin}/admin/records?limit=1' | python3 -m json.tool

The fleet, live, in a browser: http://127.0.0.1:{admin}/

Ctrl-C stops everything.
"""

Urls = Annotated[list[str] | None, typer.Argument(metavar="[URL]...", help="engines, like http://10.0.0.1:8100")]
CONFIG = typer.Option("--config", "-c", help="main configuration file", callback=read_path("file"))
ConfigOption = Annotated[Path | None, CONFIG]
StackConfig = Annotated[Path, CONFIG]
PolicyOption = Annotated[
    str | None, typer.Option(help="policy in force, a name or a file; replaces `active` and `experiment`")
]
PortOption = Annotated[
    int | None, typer.Option(min=0, max=65535, help="public port, replaces `listen.port`; 0: the system chooses")
]
AdminPortOption = Annotated[
    int | None, typer.Option(min=0, max=65535, help="admin port, replaces `admin.port`; 0: the system chooses")
]
TAKE_OVER = typer.Option(
    "--take-over",
    help="replace the router that runs at this address, if there is one: it stops when this one is ready",
)
TakeOverOption = Annotated[bool, TAKE_OVER]
AS_CONFIGURED = typer.Option(
    "--as-configured",
    help="start with what the configuration says: forget drains, policies and experiments that operators had set",
)
AsConfiguredOption = Annotated[bool, AS_CONFIGURED]
WorkersOption = Annotated[int | None, typer.Option(min=1, help="processes that answer requests, replaces `workers`")]
LogOption = Annotated[
    Path | None,
    typer.Option("--decision-log", help="folder for a log of every decision", callback=written_path("folder")),
]


def serve(
    urls: Urls = None,
    config: ConfigOption = None,
    policy: PolicyOption = None,
    port: PortOption = None,
    admin_port: AdminPortOption = None,
    workers: WorkersOption = None,
    tokenizer: TokenizerOption = None,
    take_over: TakeOverOption = False,
    as_configured: AsConfiguredOption = False,
) -> None:
    """Run the router in front of engines. They are at these URLs, or a configuration names them."""
    import uvloop

    from router.cli.serve.run import serve_router

    settings = _override(_settings_of(urls or [], config, tokenizer or []), policy, port, admin_port, workers)
    log_to_stderr(settings.log.level, settings.log.format, access=settings.log.access)
    uvloop.run(serve_router(settings, file=config, take_over=take_over, as_configured=as_configured))


def picker(
    config: StackConfig,
    policy: PolicyOption = None,
    port: PortOption = None,
    admin_port: AdminPortOption = None,
    workers: WorkersOption = None,
    take_over: TakeOverOption = False,
    as_configured: AsConfiguredOption = False,
) -> None:
    """Run the endpoint picker of a gateway (Envoy ext_proc). The public port serves /health, /ready and /metrics."""
    import uvloop

    from router.cli.serve.run import serve_router
    from router.config.sections.listeners import PickerConfig

    settings = _override(_settings_of([], config, []), policy, port, admin_port, workers)
    settings = settings.model_copy(update={"picker": settings.picker or PickerConfig()})
    log_to_stderr(settings.log.level, settings.log.format, access=settings.log.access)
    uvloop.run(serve_router(settings, file=config, only_picker=True, take_over=take_over, as_configured=as_configured))


def fleet(
    config: ConfigOption = None,
    policy: PolicyOption = None,
    port: PortOption = None,
    admin_port: AdminPortOption = None,
    decision_log: LogOption = None,
) -> None:
    """Run simulated engines with the router in front of them. Without --config there are four engines, and the router
    listens on ports 8000 and 8001.
    """
    import uvloop

    from router.config.lookup import SHIPPED
    from router.config.reader import read_config
    from router.config.schema import DecisionLogConfig

    settings = read_config(config or SHIPPED / "quickstart.yaml")
    engines = _require(settings.fleet.embedded, "fleet.embedded", config, "fleet")
    if decision_log is not None:
        records = settings.records.model_copy(update={"decision_log": DecisionLogConfig(folder=str(decision_log))})
        settings = settings.model_copy(update={"records": records})
    settings = _override(settings, policy, port, admin_port)
    log_to_stderr(settings.log.level, settings.log.format, access=settings.log.access)
    uvloop.run(_serve_simulated(settings, engines, config))


def stack(config: StackConfig, policy: PolicyOption = None) -> None:
    """Run real vLLM engines over a Mooncake Store, and the router. All of them run on this machine."""
    import uvloop

    from router.config.reader import read_config
    from router.lab.local_stack.preflight import check_ports
    from router.lab.local_stack.progress import show_progress
    from router.lab.local_stack.supervisor import RunningStack

    settings = _override(read_config(config), policy)
    spec = _require(settings.stack, "stack", config, "stack")
    log_to_stderr(settings.log.level, settings.log.format, access=settings.log.access)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the start as Ctrl-C does, until the router runs
    check_ports({"listen.port": settings.listen.port, "admin.port": settings.admin.port})
    with ExitStack() as opened:
        with show_progress(error_console()) as (line, waiting):
            running = opened.enter_context(RunningStack(spec, report=line, report_wait=waiting))
        uvloop.run(_serve_stack(settings, running, config))


def _settings_of(urls: list[str], config: Path | None, tokenizers: list[str]) -> Config:
    """Return the configuration that `serve` starts with. Raises ConfigError unless there are either URLs or a
    file.
    """
    from router.cli.init.config_text import config_of_urls
    from router.config.reader import read_config

    if config is None:
        if not urls:
            raise ConfigError("serve: no engines: give URLs or --config FILE; for simulated engines: warmroute fleet")
        return config_of_urls(urls, tokenizers)
    if urls:
        raise ConfigError(f"serve: give engine URLs or --config, not both; add the URLs to fleet.instances in {config}")
    if tokenizers:
        raise ConfigError(f"--tokenizer: only beside engine URLs; add it to `tokenizers` in {config}")
    settings = read_config(config)
    if not settings.fleet.has_sources:
        wanted = "instances, file, dns or kubernetes"
        simulated = f"warmroute fleet --config {config}"
        raise ConfigError(f"{config}: fleet: found no real engines, wanted {wanted}; for simulated ones: {simulated}")
    return settings


def _require(section: T | None, key: str, config: Path | None, command: str) -> T:
    """Return `section`. Raises ConfigError if the configuration does not have it."""
    if section is None:
        raise ConfigError(f"{config}: {key}: missing, and `warmroute {command}` needs it: add the section")
    return section


def _override(
    settings: Config,
    policy: str | None,
    port: int | None = None,
    admin_port: int | None = None,
    workers: int | None = None,
) -> Config:
    """Return `settings` with the values of the command line instead. Raises ConfigError for an unknown policy, and for
    a port that two listeners would have.
    """
    from router.config.path_checks import find_shared_ports
    from router.config.reader import select_policy
    from router.config.yaml_source import format_path

    changes: dict[str, object] = {} if workers is None else {"workers": workers}
    if port is not None:
        changes["listen"] = settings.listen.model_copy(update={"port": port})
    if admin_port is not None:
        changes["admin"] = settings.admin.model_copy(update={"port": admin_port})
    settings = settings.model_copy(update=changes)
    if (problem := next(find_shared_ports(settings), None)) is not None:
        raise ConfigError(f"{format_path(problem.path)}: {problem.text}: change --port or --admin-port")
    return settings if policy is None else select_policy(settings, policy)


async def _serve_simulated(settings: Config, spec: EmbeddedFleetConfig, file: Path | None) -> None:
    from router.cli.serve.run import serve_router
    from router.config.schema import InstanceConfig, TokenizerSource
    from router.lab.emulator.supervisor import EmbeddedFleet
    from router.lab.emulator.vocabulary import DATA

    err = error_console()
    err.print(f"starting {spec.engines} simulated engines ...")
    async with EmbeddedFleet(_engine_options(spec)) as engines:
        for member in engines.members:
            err.print(f"  {member.name}  {member.url}  pid {member.pid}")
        instances = [InstanceConfig(name=member.name, url=member.url) for member in engines.members]
        whole = settings.fleet.model_copy(update={"instances": [*settings.fleet.instances, *instances]})
        tokenizers = {spec.model: TokenizerSource(path=str(DATA))} | settings.tokenizers
        changed = settings.model_copy(update={"fleet": whole, "tokenizers": tokenizers})
        await serve_router(changed, lambda app: _print_first_steps(app, spec.model), file)


async def _serve_stack(settings: Config, running: RunningStack, file: Path) -> None:
    """Serve until the router is stopped. Processes of the stack that end by themselves are started again."""
    import asyncio

    from router.cli.serve.run import serve_router
    from router.lab.local_stack.supervisor import build_router_config

    try:
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(running.keep_running(), name="stack:watch")
            changed = build_router_config(settings, running)
            await serve_router(changed, lambda app: _print_first_steps(app, running.config.served_name), file)
            watch.cancel()
    except* WarmrouteError as failed:
        raise failed.exceptions[0] from None


def _print_first_steps(router: Router, model: str) -> None:
    sys.stdout.write(FIRST_STEPS.format(port=router.port, admin=router.admin_port, model=model))
    sys.stdout.flush()


def _engine_options(spec: EmbeddedFleetConfig) -> list[EngineOptions]:
    from router.lab.emulator.options import EngineOptions

    return [
        EngineOptions(
            name=f"engine-{i}",
            model=spec.model,
            block_tokens=spec.block_tokens,
            blocks=spec.blocks,
            prefill_tokens_per_s=spec.prefill_tokens_per_s,
            decode_ms_per_token=spec.decode_ms_per_token,
            seed=i,
        )
        for i in range(spec.engines)
    ]
