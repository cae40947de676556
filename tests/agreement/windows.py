"""A stretch of an open workload, played as fast as a load wants it, and the window of it that is measured.

Pure: workloads in, workloads out. A stretch begins where the seed says, and after a trace's last request its first
follows, so that one trace gives every seed other requests in the same mixture, and lasts as long as anybody wants. The
second time round its texts are others: nothing of an hour ago is asked again.
"""

from __future__ import annotations

from typing import NamedTuple

from router.lab.rng import Rng
from router.lab.workloads.model import Session, Span, Workload

ROUND = 1 << 48
"""Added to the numbers of texts from round to round."""


class Window(NamedTuple):
    """Virtual seconds: measured from `since_s` (caches are full by then) to `until_s`, when nothing more is sent."""

    since_s: float
    until_s: float


def stretch(workload: Workload, first: int, requests: int, faster: float, spread_s: float, seed: int) -> Workload:
    """`requests` sessions from number `first` on, `faster` times as fast, beginning anew after the last one.

    `spread_s`: each start is moved by chance within so many seconds, for traces whose times are rounded to that.
    """
    dice, given = Rng(seed), workload.sessions
    lasted_s = given[-1].start_s - given[0].start_s + spread_s
    chosen = []
    for number in range(first, first + requests):
        again, row = divmod(number, len(given))
        start_s = given[row].start_s + again * lasted_s + spread_s * (dice.bits() >> 11) / (1 << 53)
        chosen.append(_other(given[row], again)._replace(start_s=start_s))
    chosen.sort(key=lambda session: session.start_s)
    begin_s = chosen[0].start_s
    sessions = (session._replace(number=number, start_s=(session.start_s - begin_s) / faster)
                for number, session in enumerate(chosen))  # fmt: skip
    return workload._replace(sessions=tuple(sessions))


def _other(session: Session, again: int) -> Session:
    """The same lengths in other texts."""
    if not again:
        return session
    turns = [turn._replace(fresh=tuple(Span(span.source + again * ROUND & (1 << 64) - 1, span.tokens)
                                       for span in turn.fresh)) for turn in session.turns]  # fmt: skip
    return session._replace(turns=tuple(turns))
