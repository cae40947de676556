"""Prefill work that would be left at a target, this request's own included: the size-aware rule of queueing theory.

    cost = queued + own work          milliseconds at the target's own speed

"Least work left" sends a job to the server with the least unfinished work (Harchol-Balter, "Performance Modeling
and Design of Computer Systems", 2013, chapter 24). In that model a job takes equally long everywhere, so its own
size drops out; here it depends on what the target holds and how fast it is, so the work left includes the job. Work
is prefill: engines do it one after the other, while decoding goes on beside it. The price leaves out what the
request displaces and the requests of other clients: it is `warm` with w = 1 and only our own bookings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scorers.contract import Measure, Needs, Scorer, Unit, View
from scorers.ttft import prompt_of, split_works_ms, work_left, works_ms


@dataclass(frozen=True)
class LeastWorkLeft(Scorer):
    """Milliseconds of prefill that a target would still have to do with this request: our queue, plus its own work.

    Own work is the least of computing and fetching what the target does not hold. `pool: false` ignores the pool.
    Where no other clients use the engines, this equals `expected_ttft`. Missing: overlap, the prompt's length,
    links and the pool as in `expected_ttft`; the queue is our own bookings.
    """

    needs = Needs.CACHE | Needs.POOL | Needs.LOAD
    unit = Unit.MS

    pool: bool = True

    def score(self, view: View) -> Sequence[float]:
        prompt = prompt_of(view, pool=self.pool)
        works = works_ms(view.rows, prompt)
        return [row.load.queued_ms + work for row, work in zip(view.rows, works, strict=True)]

    def parts(self, view: View) -> Mapping[str, Sequence[float]]:
        prompt = prompt_of(view, pool=self.pool)
        return {"wait": [row.load.queued_ms for row in view.rows], **split_works_ms(view.rows, prompt)}

    def settled_by(self) -> Measure:
        return work_left(pool=self.pool)
