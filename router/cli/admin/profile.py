"""`warmroute profile`: write what a running router has learned of its engines as a profile for `warmroute simulate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from router.cli.admin.commands import HERE, AdminOption, TokenOption, client_at

OutOption = Annotated[
    Path | None, typer.Option("--out", "-o", help="the file to write (.yaml)  [default: to standard output]")
]
ModelOption = Annotated[str | None, typer.Option(help="only engines that serve this model")]
StandInOption = Annotated[str, typer.Option(help="stands in for what was not learned: a name or a file")]


def profile(
    out: OutOption = None,
    model: ModelOption = None,
    profile: StandInOption = "qwen3-32b-2xh100",
    admin: AdminOption = HERE,
    token_env: TokenOption = None,
) -> None:
    """Write the engine profile of a running fleet. `warmroute simulate --profile` reads it: the speeds that the router
    has learned, the caches that engines report, and of each value where it comes from.

    \f
    Raises ConfigError for a wrong option, WarmrouteError when nothing was learned or the router does not answer.
    """
    from router.cli.terminal.failures import error_console
    from router.cli.terminal.output import format_now, report_written, writing
    from router.clock import SystemClock
    from router.config.lookup import YAML_SUFFIXES, resolve_file
    from router.config.reader import dump_yaml, read_profile_file
    from router.errors import ConfigError, quote_name
    from router.lab.sweep.options import PROFILES
    from router.operate.learned_profile import learn_profile, read_instances

    if out is not None and out.suffix not in YAML_SUFFIXES:
        raise ConfigError(f"--out: {out}: the name must end in .yaml")
    file = resolve_file("profile", profile, PROFILES)
    stand_in = read_profile_file(file)
    instances = read_instances(client_at(admin, token_env).get("instances"), model)
    engines = ", ".join(quote_name(one.id) for one in instances)
    about = f"{engines}, as the router at {admin} knew them at {format_now(SystemClock())}"
    learned = learn_profile(instances, stand_in, file.stem, about)
    text, err = dump_yaml(learned.file), error_console()
    if out is None:
        sys.stdout.write(text)
    else:
        with writing(out, "--out"):
            out.write_text(text, encoding="utf-8")
        report_written(err, out)
    for note in learned.notes:
        err.print(note, markup=False, soft_wrap=True)
