"""All exceptions that leave a package. Expected trouble (an event gap, a silent engine, a retry) is a value instead.

    WarmrouteError
    +-- ConfigError          a file of the operator is wrong: path, line, what, nearest known name
    +-- RequestRefused       a request gets an error answer: status, OpenAI error type, code, param, Retry-After
        +-- BadRequest       400
        +-- Unauthorized     401
        +-- Forbidden        403  authenticated, but not allowed
        +-- NotFound         404  unknown path, model, or response id
        +-- TooLarge         413
        +-- TooBusy          429  with Retry-After
        +-- BadGateway       502  an engine took the request and died, or answered with nonsense
        +-- NoTarget         503  no engine can serve it now
        +-- DeadlineExceeded 504

Exceptions of libraries (zmq, httpx, OS) are translated where they arise.
"""

from __future__ import annotations


class WarmrouteError(Exception):
    """The base class of everything that this project raises on purpose."""


class ConfigError(WarmrouteError):
    """A file of the operator is wrong. `str()` is one or more lines of `file:line: key.path: what and what to do`."""


class RequestRefused(WarmrouteError):
    """A request gets an error answer in the OpenAI format.

    `message` is for the client: it names the field or limit and nothing internal. `param` is the field at fault.
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
