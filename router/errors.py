"""Every exception that crosses a room's border. Expected trouble (a gap, a silent engine, a full fleet's retry) is a
value; these are for what ends a request or a start.

    WarmrouteError
    +-- ConfigError          a file the operator wrote: path, line, what, nearest known name
    +-- RequestRefused       a request gets this answer: status, OpenAI error type, code, param, Retry-After
        +-- BadRequest       400
        +-- Unauthorized     401
        +-- Forbidden        403  known, and not allowed to do this
        +-- NotFound         404 (unknown path, unknown model, unknown response id)
        +-- TooLarge         413
        +-- TooBusy          429 with Retry-After
        +-- BadGateway       502  an engine took the request and died, or spoke nonsense
        +-- NoTarget         503  nobody can serve it now
        +-- DeadlineExceeded 504

Foreign exceptions (zmq, httpx, OS) are translated where they arise and never travel.
"""

from __future__ import annotations


class WarmrouteError(Exception):
    """The root: catching it catches everything that this project raises on purpose."""


class ConfigError(WarmrouteError):
    """A file of the operator's is wrong. `str()` is one or more lines of `file:line: key.path: what and what to do`."""


class RequestRefused(WarmrouteError):
    """A request that gets an error answer in the OpenAI shape.

    `message` is for the client: it names the field or the limit, never an internal. `param` is the offending field.
    """

    status = 500
    kind = "server_error"

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s


class BadRequest(RequestRefused):
    status, kind = 400, "invalid_request_error"


class Unauthorized(RequestRefused):
    status, kind = 401, "authentication_error"


class Forbidden(RequestRefused):
    status, kind = 403, "permission_error"


class NotFound(RequestRefused):
    status, kind = 404, "not_found_error"


class TooLarge(RequestRefused):
    status, kind = 413, "invalid_request_error"


class TooBusy(RequestRefused):
    status, kind = 429, "rate_limit_error"


class BadGateway(RequestRefused):
    status, kind = 502, "upstream_error"


class NoTarget(RequestRefused):
    status, kind = 503, "overloaded_error"


class DeadlineExceeded(RequestRefused):
    status, kind = 504, "timeout_error"
