"""Refuses query parameters that an endpoint does not know, for all endpoints of a FastAPI application.

FastAPI ignores them: a misspelt filter (`?targt=`) would return everything as if nothing had been filtered.
"""

from __future__ import annotations

from fastapi import Request, params
from fastapi.dependencies.utils import get_flat_params
from fastapi.routing import APIRoute

from router.errors import BadRequest, list_names, quote_name

NO_QUERY = params.Path, params.Header, params.Cookie


async def refuse_unknown_parameters(request: Request) -> None:
    """Raise `BadRequest` for the first unknown parameter of a request; a dependency of applications and routes."""
    if not request.query_params:
        return
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    fields = get_flat_params(route.dependant)  # those of a model have no kind, and all our models are of queries
    known = {field.alias for field in fields if not isinstance(field.field_info, NO_QUERY)}
    for name in request.query_params:
        if name not in known:
            endpoint = f"{request.method} {quote_name(request.url.path)}"
            text = f"{quote_name(name)}: unknown query parameter; {endpoint} takes {list_names(known) or 'none'}"
            raise BadRequest(text, param=name, code="unknown_parameter")
