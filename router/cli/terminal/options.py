"""Options that several commands have, and the checks of paths and URLs that are typed.

Typer checks paths as well, in a style of its own that names no next step.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import typer

from router.errors import ConfigError

P = TypeVar("P", Path | None, list[Path])
U = TypeVar("U", str | None, list[str])

PathKind = Literal["file", "folder", "file or folder"]


def read_path(kind: PathKind) -> Callable[[P], P]:
    """Return a callback for paths that a command reads. It raises ConfigError unless something of the kind is there."""

    def check(value: P) -> P:
        for path in _list_paths(value):
            if (found := _find_kind(path)) is None:
                raise ConfigError(f"{path}: no such {kind}; correct the path")
            _require_kind(path, found, kind)
        return value

    return check


def written_path(kind: PathKind) -> Callable[[Path | None], Path | None]:
    """Return a callback for a path that a command writes. It raises ConfigError if something of another kind is
    there.
    """

    def check(value: Path | None) -> Path | None:
        for path in _list_paths(value):
            _require_kind(path, _find_kind(path) or kind, kind)
        return value

    return check


def web_url(option: str) -> Callable[[U], U]:
    """Return a callback for the URLs of an option. It raises ConfigError unless they are of HTTP."""

    def check(value: U) -> U:
        from router.config.sections.base import WEB, find_scheme_fault

        for url in [] if value is None else [value] if isinstance(value, str) else value:
            if (fault := find_scheme_fault(url, WEB)) is not None:
                raise ConfigError(f"{option}: {fault}")
        return value

    return check


def _list_paths(value: Path | list[Path] | None) -> list[Path]:
    return [] if value is None else [value] if isinstance(value, Path) else list(value)


def _find_kind(path: Path) -> str | None:
    """Return whether a `file` or a `folder` is there; None if nothing is. Raises ConfigError if that cannot be seen."""
    try:
        return "folder" if stat.S_ISDIR(os.stat(path).st_mode) else "file"
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}") from None


def _require_kind(path: Path, found: str, wanted: str) -> None:
    if found not in wanted:
        raise ConfigError(f"{path}: found a {found}, wanted a {wanted}")


JsonOption = Annotated[
    Path | None, typer.Option(help="write all figures to this JSON file", callback=written_path("file"))
]
ChartOption = Annotated[
    Path | None, typer.Option(help="draw a chart to this PNG or SVG file", callback=written_path("file"))
]
CaOption = Annotated[
    Path | None,
    typer.Option(
        "--ca-file",
        metavar="FILE",
        help="PEM file of the certificates to trust, CAs or a server's own  [default: the system's CAs]",
        callback=read_path("file"),
    ),
]
