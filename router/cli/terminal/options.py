"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

CaOption = Annotated[
    Path | None,
    typer.Option(
        "--ca-file",
        metavar="FILE",
        help="PEM file of the certificates to trust, CAs or a server's own  [default: the system's CAs]",
        exists=True,
        dir_okay=False,
        readable=True,
    ),
]
