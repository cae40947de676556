"""The console of all commands. Their output may quote a router, an engine, a trace or a decision log."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from router.errors import quote_lines


class PrintableConsole(Console):
    """A console without highlighting that shows unprintable characters, such as terminal escapes in names that come
    from outside, as backslash escapes.
    """

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(stderr=stderr, width=width, highlight=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of `renderable`; only those that rich makes itself may contain escapes."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(quote_lines(segment.text, sys.maxsize, sys.maxsize), segment.style)
