"""The `warmroute` command: every subcommand, and its exit codes.

Exit codes: 0 success, 1 failure while running, 2 wrong usage or a wrong file, 130 interrupted with a partial
result. Each command imports what it needs when it runs, so that `--help` and `check` answer at once.
"""

from __future__ import annotations

import gc
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from router.cli.admin.commands import experiment as experiment_commands
from router.cli.admin.commands import policy as policy_commands
from router.cli.admin.draining import drain as drain_command
from router.cli.admin.draining import undrain as undrain_command
from router.cli.admin.profile import profile as profile_command
from router.cli.admin.usage import usage as usage_command
from router.cli.advise.command import advise as advise_command
from router.cli.doctor.command import doctor as doctor_command
from router.cli.gameday.command import gameday as gameday_command
from router.cli.init.command import init as init_command
from router.cli.policies import policies as policies_commands
from router.cli.rollout.command import rollout as rollout_command
from router.cli.serve import command as serve_command
from router.cli.simulate.options import simulate as simulate_command
from router.cli.terminal.failures import error_console, run
from router.cli.terminal.logs import log_to_stderr
from router.cli.terminal.options import CaOption, ChartOption, JsonOption, read_path, web_url, written_path
from router.cli.workload.command import workload as workload_commands
from router.errors import ConfigError, WarmrouteError

# without --preset: codex, scaled down to what the simulated engines of `make run` answer in seconds
SMALL: dict[str, Any] = {"tokens": 0.05, "turns": 6 / 33, "think": 0.05, "sessions": 64}

app = typer.Typer(
    name="warmroute",
    rich_markup_mode=None,
    context_settings={"max_content_width": 116},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(serve_command.serve)
app.command()(serve_command.picker)
app.command("init")(init_command)
app.command("doctor")(doctor_command)
app.command()(serve_command.fleet)
app.command()(serve_command.stack)
app.add_typer(policies_commands, name="policies")
app.add_typer(policy_commands, name="policy")
app.add_typer(experiment_commands, name="experiment")
app.command("drain")(drain_command)
app.command("undrain")(undrain_command)
app.command("usage")(usage_command)
app.command("rollout")(rollout_command)
app.command("profile")(profile_command)
app.command()(simulate_command)
app.command()(advise_command)
app.add_typer(workload_commands, name="workload")
app.command("gameday")(gameday_command)


def main() -> None:
    """Run the command line and exit; errors go to standard error without a traceback."""
    gc.set_threshold(50_000)  # what imports create stays: CPython's default would examine it hundreds of times
    run(app)


def _print_version(wanted: bool) -> None:
    from router.control.process import describe_build

    if wanted:
        sys.stdout.write(describe_build() + "\n")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Warmroute: a cache-aware router for vLLM fleets."""


@app.command()
def load(
    url: Annotated[
        str, typer.Option(help="base URL of a router or an engine", callback=web_url("--url"))
    ] = "http://127.0.0.1:8000",
    preset: Annotated[
        str | None, typer.Option(help="codex, claude, scaling, groups or tools; default: a small codex")
    ] = None,
    workload: Annotated[
        Path | None,
        typer.Option(help="instead of a preset: a trace or a decision log", callback=read_path("file or folder")),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="model to request; default: the first one that the endpoint lists")
    ] = None,
    api_key: Annotated[str | None, typer.Option(envvar="WARMROUTE_API_KEY", help="API key of the endpoint")] = None,
    ca_file: CaOption = None,
    agents: Annotated[int | None, typer.Option(min=1, help="closed loop: sessions at once; default: 16")] = None,
    rate: Annotated[float | None, typer.Option(help="open loop: requests per second; default: the workload's")] = None,
    sessions: Annotated[int | None, typer.Option(min=1, help="number of sessions")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="number of requests")] = None,
    duration: Annotated[float | None, typer.Option(min=0.1, help="seconds after which no new request starts")] = None,
    scale: Annotated[float | None, typer.Option(help="factor on all lengths")] = None,
    turns: Annotated[float | None, typer.Option(help="factor on the turns of a session")] = None,
    think: Annotated[float | None, typer.Option(help="factor on all pauses between turns")] = None,
    seed: Annotated[
        int, typer.Option(help="of workload and text; the same seed hits the caches that an earlier run filled")
    ] = 1,
    processes: Annotated[int, typer.Option(min=1, help="client processes at most")] = 2,
    ids: Annotated[bool, typer.Option("--ids", help="prompts as token ids, of exact length, instead of text")] = False,
    json: Annotated[
        Path | None, typer.Option(help="write figures and requests to this JSON file", callback=written_path("file"))
    ] = None,
    chart: ChartOption = None,
) -> None:
    """Send a workload to an endpoint as real requests. Latencies and hits of the closed or open loop are reported."""
    import asyncio

    from router.cli.load.command import LoadRequest, run_load
    from router.lab.loadgen.processes import limit_requests, pace_sessions
    from router.lab.workloads.presets import PRESETS, AgentsWorkload
    from router.lab.workloads.source import load_workload

    _check_exclusive("--agents (closed loop) and --rate (open loop)", agents, rate)
    _check_exclusive("--preset and --workload", preset, workload)
    _check_preset(preset)
    source = str(workload or preset or "codex")
    factors: dict[str, Any] = {"tokens": scale, "turns": turns, "think": think, "sessions": sessions}
    sizes = {name: value for name, value in factors.items() if value is not None}
    sizes = sizes if workload or preset else SMALL | sizes
    if not isinstance(PRESETS.get(source), AgentsWorkload):
        sizes |= {"rate": rate, "requests": requests}
    chosen = load_workload(source, seed=seed, on_unusable=partial(error_console().print, markup=False), **sizes)
    if chosen.is_closed:
        chosen = chosen if requests is None else limit_requests(chosen, requests)
        chosen = chosen if rate is None else pace_sessions(chosen, rate)
    at_once = agents or (16 if chosen.is_closed and rate is None else None)
    request = LoadRequest(
        url,
        model,
        api_key,
        None if ca_file is None else str(ca_file),
        at_once,
        duration,
        processes,
        "ids" if ids else "text",
        seed,
        json,
        chart,
    )
    _exit(asyncio.run(run_load(request, chosen)))


@app.command()
def engine(
    name: Annotated[str, typer.Option(help="name in its announcement")] = "engine",
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port to listen on; 0: the system chooses")] = 0,
    model: Annotated[str, typer.Option(help="name of the served model")] = "warm-tiny",
    options: Annotated[
        str, typer.Option(help="further options as a JSON object, see router/lab/emulator/options.py")
    ] = "{}",
) -> None:
    """Run one simulated engine. It prints one line of JSON when it accepts requests."""
    log_to_stderr("warning")
    _run_engine({"name": name, "host": host, "port": port, "model": model}, options)


@app.command()
def replay(
    logs: Annotated[
        list[Path], typer.Argument(help="files or folders of a decision log", callback=read_path("file or folder"))
    ],
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", "-p", help="policy to compare with the logged choices: a name or a file"),
    ] = None,
    policies_dir: Annotated[
        Path | None,
        typer.Option(
            help="folder in which policy names are looked up; default: the working directory, then the shipped ones",
            callback=read_path("folder"),
        ),
    ] = None,
    json: JsonOption = None,
    chart: ChartOption = None,
    limit: Annotated[int | None, typer.Option(min=1, help="maximum number of records")] = None,
    record: Annotated[
        str | None,
        typer.Option(metavar="ID", help="show this record alone, with the parts of its costs"),
    ] = None,
) -> None:
    """Decide every logged request again. The logged policies must agree; others are compared with them.

    \f
    Raises ConfigError for options that do not go together.
    """
    from router.cli.replay.command import inspect
    from router.cli.replay.command import replay as replay_logs

    if record is not None:
        if chart is not None or limit is not None:
            raise ConfigError("--record goes with --policy and --json, not with --chart or --limit")
        inspect(logs, record, policy or [], policies_dir, json)
        return
    _exit(replay_logs(logs, policy or [], policies_dir, json, chart, limit))


@app.command()
def check(file: Annotated[Path, typer.Argument(callback=read_path("file"))]) -> None:
    """Check a file, and print it with all its defaults. It may be a configuration, policy, experiment, profile, trouble
    or game day.
    """
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


def _check_preset(preset: str | None) -> None:
    """Raises ConfigError for a preset that does not exist."""
    from router.config.validation_errors import describe_unknown
    from router.lab.workloads.presets import PRESETS

    if preset is not None and preset not in PRESETS:
        raise ConfigError(f"--preset: {describe_unknown('preset', preset, PRESETS)} (a file: --workload FILE)")


def _check_exclusive(names: str, one: object, other: object) -> None:
    """Raises ConfigError if both options are given."""
    if one and other:
        raise ConfigError(f"load: {names} exclude each other: give one of them")


def _run_engine(settings: dict[str, Any], options: str) -> None:
    """Run an engine until it is stopped.

    Raises ConfigError for options that are not a JSON object of `EngineOptions`, WarmrouteError when a port is
    taken or the tokenizer is missing.
    """
    import msgspec

    from router.config.validation_errors import describe_unknown
    from router.lab.emulator.options import EngineOptions
    from router.lab.emulator.server import run_engine

    try:
        given = msgspec.json.decode(options, type=dict)
    except msgspec.DecodeError as error:
        raise ConfigError(f'--options: not JSON: {error}; wanted an object such as {{"block_tokens": 16}}') from error
    for name in given.keys() - {*EngineOptions.__struct_fields__}:
        raise ConfigError(f"--options: {describe_unknown('option', name, EngineOptions.__struct_fields__)}")
    try:
        run_engine(msgspec.convert(settings | given, EngineOptions))
    except msgspec.ValidationError as error:
        raise ConfigError(f"--options: {error}") from error
    except OSError as failure:
        raise WarmrouteError(f"warmroute engine: {failure}") from failure


def _exit(complete: bool) -> None:
    """Exit with 130, the code of shells for Ctrl-C, unless `complete`."""
    if not complete:
        sys.exit(130)
