"""All rows of the table "it must agree with what others measured", in the order in which they are measured."""

from __future__ import annotations

from tests.agreement import (
    admission,
    agents_pool,
    capacity,
    dynamo_replay,
    groups,
    placement,
    several_routers,
    stack_row,
)
from tests.agreement.row import Row

ROWS: tuple[Row, ...] = (
    *dynamo_replay.ROWS,
    *placement.ROWS,
    *agents_pool.ROWS,
    *groups.ROWS,
    *capacity.ROWS,
    *admission.ROWS,
    *several_routers.ROWS,
    *stack_row.ROWS,
)
