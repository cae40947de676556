"""The admin endpoints about tenants: usage by day and model, as JSON or CSV, and the present use of limits."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from datetime import date
from typing import Annotated, Any, Literal

import msgspec
from fastapi import FastAPI, Query, Response
from pydantic import BaseModel, BeforeValidator
from pydantic_core import PydanticCustomError

from router.control.api.records import JSON
from router.features.tenants.ledger import LimitName
from router.features.tenants.metering import Metering
from router.features.tenants.usage import UsageRow
from router.features.tenants.usage_store import name_day, number_day

CSV = "text/csv; charset=utf-8"
DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
COLUMNS = ("day", "tenant", "model", "requests", "input_tokens", "cached_tokens", "output_tokens", "gpu_s", "refused")


def _read_day(text: str) -> date:
    """Return the day. Raises PydanticCustomError, also for a number, which pydantic would take for seconds since the
    epoch.
    """
    try:
        if DAY.fullmatch(text) is not None:
            return date.fromisoformat(text)
    except ValueError:  # such as February 30
        pass
    raise PydanticCustomError("day", "a day of the calendar, as YYYY-MM-DD")


Day = Annotated[date, BeforeValidator(_read_day)]


class UsageShape(BaseModel):
    day: date
    tenant: str
    model: str
    requests: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    gpu_s: float
    refused: dict[str, int]


class UsageList(BaseModel):
    usage: list[UsageShape]


class LimitShape(BaseModel):
    allowed: float
    used: float


class TenantShape(BaseModel):
    tenant: str
    limits: dict[LimitName, LimitShape]


class TenantList(BaseModel):
    tenants: list[TenantShape]


def add_usage_routes(app: FastAPI, metering: Metering, read: Sequence[Any]) -> None:
    """Add the endpoints to `app`, behind the dependencies `read`."""

    @app.get(
        "/admin/usage", dependencies=read, response_model=UsageList, responses={200: {"content": {"text/csv": {}}}}
    )
    async def usage(
        first: Annotated[Day | None, Query(alias="from")] = None,
        last: Annotated[Day | None, Query(alias="to")] = None,
        format: Literal["json", "csv"] = "json",
    ) -> Response:
        """Return the use of each tenant by model on the days from `from` to `to` (UTC; today where they are left
        out): requests that ended, tokens by kind, estimated GPU time, and refused requests by reason. `csv` has the
        sum of the refused ones.
        """
        days = [None if day is None else number_day(day.isoformat()) for day in (first, last)]
        rows = await metering.read(*days)
        if format == "csv":
            return Response(encode_csv(rows), media_type=CSV)
        return Response(msgspec.json.encode({"usage": [describe_usage(row) for row in rows]}), media_type=JSON)

    @app.get("/admin/tenants", dependencies=read, response_model=TenantList)
    async def tenants(limit: Annotated[int, Query(ge=1, le=1000)] = 200) -> Response:
        """Return the present use of each tenant's limits, over all processes and routers, those nearest to a limit
        first.
        """
        found = await metering.describe_limits(limit)
        described = [
            {"tenant": one.tenant, "limits": {name: use._asdict() for name, use in one.limits.items()}} for one in found
        ]
        return Response(msgspec.json.encode({"tenants": described}), media_type=JSON)


def describe_usage(row: UsageRow) -> dict[str, Any]:
    """Return a row as plain JSON types."""
    tokens = row.tokens
    return {
        "day": name_day(row.day),
        "tenant": row.tenant,
        "model": row.model,
        "requests": row.requests,
        "input_tokens": tokens.input_tokens,
        "cached_tokens": tokens.cached_tokens,
        "output_tokens": tokens.output_tokens,
        "gpu_s": round(row.gpu_s, 3),
        "refused": row.refused,
    }


def encode_csv(rows: Sequence[UsageRow]) -> str:
    """Return rows as CSV with a header line."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(describe_usage(row) | {"refused": sum(row.refused.values())} for row in rows)
    return text.getvalue()
