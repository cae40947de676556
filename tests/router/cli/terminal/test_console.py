"""What a terminal gets to see of names from outside."""

from __future__ import annotations

import io

from rich.markup import escape

from router.cli.terminal.console import PrintableConsole
from router.cli.terminal.output import GridEntry, make_grid, render

EVIL = "\x1b]0;owned\x07[red]x[/red]\x9b2J\u202e\\"


def printed(*shown: object, markup: bool = True, colour: bool = False) -> str:
    console = PrintableConsole(width=200)
    console.file = io.StringIO()
    console._force_terminal = colour  # type: ignore[attr-defined]
    console.print(*shown, markup=markup)
    return console.file.getvalue()


def test_lines_and_tables_show_escapes() -> None:
    grid = make_grid(EVIL, ("name", EVIL), [(EVIL, GridEntry(EVIL, best=True)), (EVIL, GridEntry(EVIL, colour="red"))])
    for text in (printed(EVIL, markup=False), printed(escape(EVIL)), printed(render(grid))):
        assert all(line.isprintable() for line in text.split("\n")), text
        assert r"\x1b]0;owned[red]x[/red]\x9b2J\u202e" in text  # rich itself drops the bell


def test_styles_are_still_written() -> None:
    shown = printed("[red]warning[/]", colour=True)
    assert "warning" in shown
    assert "[red]" not in shown
