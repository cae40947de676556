"""`warmroute drain` and `warmroute undrain`: take an engine of a running router out of service, and bring it back."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from router.cli.admin.commands import HERE, AdminOption, TokenOption, client_at
from router.errors import ConfigError

if TYPE_CHECKING:
    from router.cli.admin.client import AdminClient
    from router.operate.rollout.engine import EngineReading

LOOK_S = 0.5

EngineArgument = Annotated[str, typer.Argument(metavar="ENGINE", help="its id, as in GET /admin/instances")]


def drain(
    engine: EngineArgument,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="return when the engine has no requests left")] = True,
    admin: AdminOption = HERE,
    token_env: TokenOption = None,
) -> None:
    """Let an engine finish its requests and get no new ones. All routers that share this one's state drain it.
    Ctrl-C ends the waiting only: the engine stays drained.
    """
    from router.cli.terminal.output import catch_interrupt

    client = client_at(admin, token_env)
    engines = _read_engines(client)
    found = _select(engines, engine)
    if found.state not in ("draining", "drained") and not found.handing_off:  # a second call would cut a hand-off short
        client.post(None, "instances", engine, "drain")
    at = "" if admin == HERE else f" --admin {admin}"
    undo = f"`warmroute undrain {engine}{at}` ends that"
    if orphaned := _find_orphaned(found, engines.values()):
        models = ", ".join(orphaned)
        sys.stderr.write(f"{engine} was the last ready engine of {models}, whose requests get 503 now; {undo}\n")
    if not wait:
        sys.stdout.write(f"{engine} gets no new requests; {undo}\n")
        return
    with catch_interrupt() as is_interrupted:
        emptied = _wait_until_empty(client, engine, is_interrupted)
    if not emptied:
        sys.stderr.write(f"{engine} stays drained; {undo}\n")
        sys.exit(130)
    sys.stdout.write(f"{engine} is drained: no requests left; {undo}\n")


def undrain(engine: EngineArgument, admin: AdminOption = HERE, token_env: TokenOption = None) -> None:
    """Bring a drained engine back: it gets requests again."""
    client = client_at(admin, token_env)
    _find(client, engine)
    client.post(None, "instances", engine, "undrain")
    sys.stdout.write(f"{engine} gets requests again\n")


def _wait_until_empty(client: AdminClient, engine: str, is_interrupted: Callable[[], bool]) -> bool:
    """Print how many requests the engine has left whenever that changes. Return False if Ctrl-C came first."""
    before = ""
    while (now := _find(client, engine)).requests or now.handing_off:
        left = "its prefixes are handed off" if now.handing_off else f"requests left: {now.requests}"
        if left != before:
            sys.stderr.write(f"{engine}: {left}\n")
            before = left
        time.sleep(LOOK_S)
        if is_interrupted():
            return False
    return True


def _find_orphaned(drained: EngineReading, engines: Iterable[EngineReading]) -> list[str]:
    """Return the models of the drained engine that no other engine is ready to serve."""
    served = {model for one in engines if one.state == "ready" and one.id != drained.id for model in one.models}
    return [model for model in drained.models if model not in served]


def _find(client: AdminClient, engine: str) -> EngineReading:
    """Return the present reading of an engine. Raises ConfigError if the router has none of that id."""
    return _select(_read_engines(client), engine)


def _read_engines(client: AdminClient) -> dict[str, EngineReading]:
    from router.operate.rollout.engine import read_engine

    return {found.id: found for found in map(read_engine, client.get("instances")["instances"])}


def _select(engines: Mapping[str, EngineReading], engine: str) -> EngineReading:
    from router.config.validation_errors import describe_unknown

    if engine not in engines:
        raise ConfigError(describe_unknown("engine", engine, engines))
    return engines[engine]
