"""A picker that chooses cheap rows more often than expensive ones: spreads near-equals and keeps trying the others.

    P(row i) ~ exp(-c_i / temperature)        c = (cost - min) / (max - min)

This is Dynamo's `router_temperature`, with costs normalised by their range as in Dynamo. The draw uses the Gumbel
trick (the largest of `-c_i / T - ln(-ln u_i)` falls on i with exactly that probability), with one draw per target:
so the order of rows does not matter, and a target that vanishes moves only its own requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scorers.chance import draw_soft
from scorers.contract import Picker, View


@dataclass(frozen=True)
class Softmax(Picker):
    """A row by chance, the likelier the cheaper; `temperature` is in units of the costs' range.

    At 0.1 the most expensive row is exp(-10) times as likely as the cheapest; far above 1 all rows are about
    equally likely.
    """

    temperature: float = 0.1

    def __post_init__(self) -> None:
        """Raise ValueError if the temperature is not above 0."""
        if self.temperature <= 0:
            raise ValueError(
                f"temperature: found {self.temperature}, wanted more than 0; for the cheapest row use the picker best"
            )

    def pick(self, view: View, costs: Sequence[float]) -> int:
        return draw_soft(view.seed, view.number, view.rows, costs, self.temperature)
