"""The `warmroute` command. Exit codes: 0 done, 1 it failed while running, 2 the command or a file of yours is wrong.

Rooms are imported by the command that needs them, so that `--help` and `check` answer at once.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from router.cli.admin.experiment import experiment as experiment_commands
from router.cli.admin.policy import policy as policy_commands
from router.cli.advise.command import advise as advise_command
from router.cli.simulate.options import simulate as simulate_command
from router.cli.workload.command import workload as workload_commands
from router.errors import ConfigError, WarmrouteError

if TYPE_CHECKING:
    from router.config.schema import Config
    from router.config.sections.local_stack import EmbeddedFleetConfig
    from router.testbed.emulator.options import EngineOptions
    from router.testbed.local_stack.supervisor import RunningStack

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

# of codex, without a preset: what the fleet of `make run` answers in seconds
SMALL: dict[str, Any] = {"tokens": 0.05, "turns": 6 / 33, "think": 0.05, "sessions": 64}

app = typer.Typer(name="warmroute", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
err = Console(stderr=True, highlight=False)

app.add_typer(policy_commands, name="policy")
app.add_typer(experiment_commands, name="experiment")
app.command()(simulate_command)
app.command()(advise_command)
app.add_typer(workload_commands, name="workload")

bench = typer.Typer(name="bench", no_args_is_help=True, help="Measure real engines with and without a shared pool.")
app.add_typer(bench)

ConfigOption = Annotated[
    Path, typer.Option("--config", "-c", help="main configuration file", exists=True, dir_okay=False, readable=True)
]
PolicyOption = Annotated[
    str | None,
    typer.Option(help="policy in force, a name or a file, instead of the configuration's `active` and `experiment`"),
]
WorkersOption = Annotated[
    int | None, typer.Option(min=1, help="processes on the one port, instead of the configuration's `workers`")
]
OutOption = Annotated[Path, typer.Option("--out", "-o", help="folder for JSON, chart and logs", file_okay=False)]
ChartOption = Annotated[bool, typer.Option(help="draw the chart; it needs matplotlib")]


def main() -> None:
    try:
        app()
    except ConfigError as wrong:
        err.print(str(wrong), style="red", markup=False, soft_wrap=True)
        sys.exit(2)
    except WarmrouteError as failure:
        err.print(str(failure), style="red", markup=False, soft_wrap=True)
        sys.exit(1)


@app.callback()
def about() -> None:
    """Warmroute: a cache-aware router for vLLM fleets."""


@app.command()
def serve(config: ConfigOption, policy: PolicyOption = None, workers: WorkersOption = None) -> None:
    """Run the router in front of the engines that the configuration names."""
    import uvloop

    from router.app import serve as serve_router

    settings = _settings(config, policy)
    if not settings.fleet.instances and settings.fleet.file is None:
        raise ConfigError(f"{config}: fleet: no `instances` and no `file`; for simulated engines: warmroute fleet")
    if workers is not None:
        settings = settings.model_copy(update={"workers": workers})
    _log(settings.log.level)
    uvloop.run(serve_router(settings, file=config))


@app.command()
def fleet(config: ConfigOption, policy: PolicyOption = None) -> None:
    """Run simulated engines with the router in front of them: everything there is to try, nothing to install."""
    import uvloop

    settings = _settings(config, policy)
    if settings.fleet.embedded is None:
        raise ConfigError(f"{config}: fleet.embedded: is needed for `warmroute fleet`")
    _log(settings.log.level)
    uvloop.run(_fleet(settings, settings.fleet.embedded, config))


@app.command()
def stack(config: ConfigOption, policy: PolicyOption = None) -> None:
    """Run real vLLM engines over a real Mooncake Store on this machine, with the router in front of them."""
    import uvloop

    from router.testbed.local_stack import ports
    from router.testbed.local_stack.progress import show_progress
    from router.testbed.local_stack.supervisor import RunningStack

    settings = _settings(config, policy)
    if settings.stack is None:
        raise ConfigError(f"{config}: stack: is needed for `warmroute stack`")
    _log(settings.log.level)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # until the router runs, it ends a start as Ctrl-C does
    ports.check_ports({"listen.port": settings.listen.port, "admin.port": settings.admin.port})
    with ExitStack() as opened:
        with show_progress(err) as (line, waiting):
            running = opened.enter_context(RunningStack(settings.stack, report=line, report_wait=waiting))
        uvloop.run(_behind_a_router(settings, running, config))


@app.command()
def load(
    url: Annotated[str, typer.Option(help="base URL of a router or an engine")] = "http://127.0.0.1:8000",
    preset: Annotated[str | None, typer.Option(help="codex, scaling, groups or tools; default: a small codex")] = None,
    workload: Annotated[
        Path | None, typer.Option(help="instead of a preset: a trace or a ledger", exists=True, readable=True)
    ] = None,
    model: Annotated[str | None, typer.Option(help="model to ask for; default: the first one there")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="WARMROUTE_API_KEY", help="of the endpoint")] = None,
    agents: Annotated[int | None, typer.Option(min=1, help="closed loop: sessions at once; default: 16")] = None,
    rate: Annotated[float | None, typer.Option(help="open loop: requests per second; default: the workload's")] = None,
    sessions: Annotated[int | None, typer.Option(min=1, help="sessions in all")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="requests in all")] = None,
    duration: Annotated[float | None, typer.Option(min=0.1, help="seconds after which nothing new is sent")] = None,
    scale: Annotated[float | None, typer.Option(help="factor on all lengths")] = None,
    turns: Annotated[float | None, typer.Option(help="factor on the turns of a session")] = None,
    think: Annotated[float | None, typer.Option(help="factor on all pauses")] = None,
    seed: Annotated[int, typer.Option(help="of workload and text; the same again finds what the last run cached")] = 1,
    processes: Annotated[int, typer.Option(min=1, help="client processes at most")] = 2,
    ids: Annotated[bool, typer.Option("--ids", help="prompts as token ids, of exact length, instead of text")] = False,
    json: Annotated[Path | None, typer.Option(help="write figures and requests to this file", dir_okay=False)] = None,
    chart: Annotated[Path | None, typer.Option(help="draw them to this PNG or SVG", dir_okay=False)] = None,
) -> None:
    """Send a workload to an endpoint as real requests, in a closed or an open loop, and show what came of it."""
    from router.cli.load.command import LoadRequest, run_load
    from router.testbed.loadgen.sharding import limit_requests, pace_sessions
    from router.testbed.workloads import PRESETS, AgentsWorkload
    from router.testbed.workloads.source import load_workload

    if (agents and rate) or (preset and workload):
        raise ConfigError("load: one of --agents (closed loop) and --rate (open loop), one of --preset and --workload")
    given = str(workload or preset or "codex")
    asked: dict[str, Any] = {"tokens": scale, "turns": turns, "think": think, "sessions": sessions}
    sizes = {name: value for name, value in asked.items() if value is not None}
    sizes = sizes if workload or preset else SMALL | sizes
    if not isinstance(PRESETS.get(given), AgentsWorkload):
        sizes |= {"rate": rate, "requests": requests}
    chosen = load_workload(given, seed=seed, told=partial(err.print, markup=False), **sizes)
    if chosen.is_closed:
        chosen = chosen if requests is None else limit_requests(chosen, requests)
        chosen = chosen if rate is None else pace_sessions(chosen, rate)
    at_once = agents or (16 if chosen.is_closed and rate is None else None)
    how = LoadRequest(url, model, api_key, at_once, duration, processes, "ids" if ids else "text", seed, json, chart)
    _exit(asyncio.run(run_load(how, chosen)))


@bench.command()
def layers(
    config: ConfigOption,
    out: OutOption = Path("bench-layers"),
    tokens: Annotated[int, typer.Option(min=256, help="length of the prompt")] = 4096,
    repetitions: Annotated[int, typer.Option(min=1, help="how often each of the four is measured")] = 6,
    seed: Annotated[int | None, typer.Option(help="of the prompts; default: new ones each time")] = None,
    chart: ChartOption = True,
) -> None:
    """The same prompt computed, from an engine's own cache and from the pool: what each layer is worth."""
    from router.cli.bench.command import bench_layers
    from router.config.reader import read_config
    from router.testbed.bench.stack_environment import environment_factory

    engines = environment_factory(read_config(config), out, partial(err.print, markup=False))
    _exit(asyncio.run(bench_layers(engines, out, tokens, repetitions, seed, chart)))


@bench.command()
def agents(
    config: ConfigOption,
    out: OutOption = Path("bench-agents"),
    sessions: Annotated[int, typer.Option(min=1, help="agents at once, a session each")] = 8,
    turns: Annotated[float, typer.Option(min=1, help="median turns of a session (codex: 33)")] = 8,
    scale: Annotated[float, typer.Option(help="factor on all lengths (codex: first prompt 12,000 tokens)")] = 0.15,
    think: Annotated[float, typer.Option(help="factor on all pauses (codex: median 5.2 s)")] = 0.2,
    policy: Annotated[str, typer.Option(help="the policy that sees caches")] = "expected_ttft",
    seed: Annotated[int, typer.Option(help="of the workload")] = 1,
    chart: ChartOption = True,
) -> None:
    """Agents in a closed loop through the router: round robin without a pool, with it, and by caches and pool."""
    from router.cli.bench.command import bench_agents
    from router.config.reader import read_config
    from router.testbed.bench.stack_environment import environment_factory
    from router.testbed.workloads import CODEX

    shares = {"sessions": sessions / CODEX.sessions, "turns": turns / CODEX.turns.median}
    scaled = CODEX.scaled(tokens=scale, think=think, **shares)
    engines = environment_factory(read_config(config), out, partial(err.print, markup=False))
    _exit(asyncio.run(bench_agents(engines, out, scaled.workload(seed), policy, chart)))


@app.command()
def engine(
    name: Annotated[str, typer.Option(help="its name")] = "engine",
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port to listen on; 0: the system chooses")] = 0,
    model: Annotated[str, typer.Option(help="name of the model it serves")] = "warm-tiny",
    options: Annotated[
        str, typer.Option(help="further options as a JSON object, see router/testbed/emulator/options.py")
    ] = "{}",
) -> None:
    """Run one simulated engine; prints one line of JSON when it takes requests."""
    import msgspec

    from router.testbed.emulator.__main__ import run
    from router.testbed.emulator.options import EngineOptions

    _log("warning")
    try:
        given = {"name": name, "host": host, "port": port, "model": model} | msgspec.json.decode(options, type=dict)
        run(msgspec.convert(given, EngineOptions))
    except msgspec.DecodeError as wrong:
        raise ConfigError(f"--options: {wrong}") from wrong
    except OSError as failure:
        raise WarmrouteError(f"warmroute engine: {failure}") from failure


@app.command()
def replay(
    logs: Annotated[list[Path], typer.Argument(help="files or folders of a ledger", exists=True, readable=True)],
    policy: Annotated[
        list[str] | None, typer.Option("--policy", "-p", help="to hold against the choices made: a name or a file")
    ] = None,
    policies_dir: Annotated[
        Path | None, typer.Option(help="where names are looked up", exists=True, file_okay=False)
    ] = None,
    json: Annotated[Path | None, typer.Option(help="write all figures to this file", dir_okay=False)] = None,
    chart: Annotated[Path | None, typer.Option(help="draw them to this PNG or SVG", dir_okay=False)] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="records at most")] = None,
) -> None:
    """Decide every logged request again: the policies of the log exactly, and others for comparison."""
    from router.cli.replay.command import replay as replay_logs

    _exit(replay_logs(logs, policy or [], policies_dir, json, chart, limit))


@app.command()
def check(file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, readable=True)]) -> None:
    """Check a main configuration, a policy, an experiment, a profile or a trouble; print it with all defaults."""
    from router.config.reader import dump_yaml, load_policies, read_any
    from router.config.schema import Config, PolicyConfig
    from router.scheduling.policy.policy import build_policies, build_policy

    checked = read_any(file)
    if isinstance(checked, Config):
        policies = load_policies(checked)
        build_policies(policies)
        sys.stdout.write(dump_yaml(checked, policies))
    else:
        if isinstance(checked, PolicyConfig):
            build_policy(file.stem, checked)
        sys.stdout.write(dump_yaml(checked))


async def _fleet(settings: Config, asked: EmbeddedFleetConfig, file: Path) -> None:
    from router.app import App
    from router.app import serve as serve_router
    from router.config.schema import InstanceConfig
    from router.testbed.emulator.supervisor import EmbeddedFleet

    err.print(f"starting {asked.engines} simulated engines ...")
    async with EmbeddedFleet(_engines(asked)) as embedded:
        for member in embedded.members:
            err.print(f"  {member.name}  {member.url}  pid {member.pid}")
        instances = [InstanceConfig(name=member.name, url=member.url) for member in embedded.members]
        own = settings.fleet.model_copy(update={"instances": [*settings.fleet.instances, *instances]})

        def invite(router: App) -> None:
            sys.stdout.write(INVITATION.format(port=router.port, admin=router.admin_port, model=asked.model))
            sys.stdout.flush()

        await serve_router(settings.model_copy(update={"fleet": own}), invite, file)


async def _behind_a_router(settings: Config, running: RunningStack, file: Path) -> None:
    """Until the router is told to stop, or one of the stack's processes ends by itself: StackFailed."""
    from router.app import App
    from router.app import serve as serve_router
    from router.testbed.local_stack.router_config import build_router_config

    def invite(router: App) -> None:
        model = running.config.served_name
        sys.stdout.write(INVITATION.format(port=router.port, admin=router.admin_port, model=model))
        sys.stdout.flush()

    try:
        async with asyncio.TaskGroup() as together:
            watch = together.create_task(running.wait_for_failure(), name="stack:watch")
            await serve_router(build_router_config(settings, running), invite, file)
            watch.cancel()
    except* WarmrouteError as failed:
        raise failed.exceptions[0] from None


def _engines(asked: EmbeddedFleetConfig) -> list[EngineOptions]:
    from router.testbed.emulator.options import EngineOptions

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


def _settings(config: Path, policy: str | None) -> Config:
    from router.config.reader import read_config, select_policy

    settings = read_config(config)
    return settings if policy is None else select_policy(settings, policy)


def _exit(complete: bool) -> None:
    """130, as a shell has it for Ctrl-C, when there is only a part."""
    if not complete:
        sys.exit(130)


def _log(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", stream=sys.stderr
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells of every request that it makes
