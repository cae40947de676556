"""A request's body, whole and within a bound, for the doors that FastAPI serves."""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request

from router.errors import BadRequest, TooLarge


async def read_body(request: Request, limit_bytes: int, too_large: TooLarge) -> bytes:
    """Reads no further than the limit. Raises `too_large` beyond it, and BadRequest where the client stops early."""
    given = bytearray()
    try:
        async for piece in request.stream():
            given += piece
            if len(given) > limit_bytes:
                raise too_large
    except ClientDisconnect:
        raise BadRequest("the request body ended early") from None
    return bytes(given)
