"""Progress of a stack's start on a terminal: a line for each step, and below, the current wait with its seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from router.lab.local_stack.supervisor import ReportLine


@contextmanager
def show_progress(console: Console) -> Iterator[tuple[ReportLine, ReportLine]]:
    """Yield two functions: one prints a line, the other shows the current wait, which is displayed only on a
    terminal.
    """
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("installing", total=None)

        def line(text: str) -> None:
            progress.console.print(text, markup=False, soft_wrap=True)

        def waiting(text: str) -> None:
            if text != progress.tasks[task].description:
                progress.reset(task, description=text)

        yield line, waiting
