"""What a person sees while a stack starts."""

from __future__ import annotations

import io

from rich.console import Console

from router.lab.local_stack.progress import show_progress


def test_lines_stay_and_nothing_moves_without_a_terminal() -> None:
    out = io.StringIO()
    with show_progress(Console(file=out, width=60)) as (line, waiting):
        waiting("waiting for engine-0")
        line("[x] a line that is longer than the sixty columns of this console, which stays whole")
    assert out.getvalue() == "[x] a line that is longer than the sixty columns of this console, which stays whole\n"


def test_a_terminal_shows_what_is_waited_for() -> None:
    out = io.StringIO()
    with show_progress(Console(file=out, width=80, force_terminal=True)) as (line, waiting):
        waiting("waiting for engine-0")
        line("master works")
    assert "waiting for engine-0" in out.getvalue()
    assert "master works" in out.getvalue()
