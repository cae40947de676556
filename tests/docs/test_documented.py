"""Every configuration key, metric, endpoint, plug-in and command is named in some page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from typer import Typer

from docs.tools.config_keys import iter_keys
from docs.tools.pages import list_pages
from docs.tools.whole_router import describe_admin_api, list_families
from router.cli.main import app
from router.prompt.prompt import Endpoint
from router.request.public_paths import PATHS
from scorers.registry import BUILTINS


@pytest.fixture(scope="module")
def documents() -> str:
    return "\n".join(page.read_text(encoding="utf-8") for page in list_pages())


def undocumented(names: list[str], documents: str) -> list[str]:
    return [name for name in names if f"`{name}`" not in documents]


def test_every_config_key(documents: str) -> None:
    names = [key.path for key in iter_keys()]
    assert len(names) > 80
    assert undocumented(names, documents) == []


def test_every_metric(documents: str) -> None:
    names = [f.name + ("_total" if f.type == "counter" else "") for f in list_families()]
    ours = [name for name in names if name.startswith("warmroute_")]
    assert len(ours) > 35
    assert undocumented(ours, documents) == []


def test_every_endpoint(documents: str) -> None:
    by_cache = {endpoint.value for endpoint in Endpoint if endpoint is not Endpoint.OTHER}
    names = [entry.path for entry in PATHS]
    assert by_cache < set(names)
    assert undocumented(names, documents) == []


def test_every_admin_endpoint(documents: str) -> None:
    paths = describe_admin_api()["paths"]
    names = [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]
    assert len(names) == 31
    assert undocumented(names, documents) == []


def test_every_plug_in(documents: str) -> None:
    names = sorted(name for of_kind in BUILTINS.values() for name in of_kind)
    assert {"prefix_overlap", "best"} <= set(names)
    assert undocumented(names, documents) == []


def commands_of(app: Typer, prefix: str = "") -> Iterator[str]:
    for command in app.registered_commands:
        assert command.callback is not None
        yield prefix + (command.name or command.callback.__name__.rstrip("_"))
    for group in app.registered_groups:
        assert group.typer_instance is not None
        name = group.name if isinstance(group.name, str) else group.typer_instance.info.name
        yield from commands_of(group.typer_instance, f"{prefix}{name} ")


def test_every_command(documents: str) -> None:
    commands = list(commands_of(app))
    assert {"serve", "check", "policy put", "experiment show", "replay", "simulate"} <= set(commands)
    assert len(commands) == 31
    assert [name for name in commands if f"warmroute {name}" not in documents] == []
