"""All exceptions that leave a package. Expected trouble (an event gap, a silent engine, a retry) is returned as a
value instead.

    WarmrouteError
    +-- ConfigError          an operator's file is wrong: path, line, problem, nearest known name
        +-- ExtraMissing     a required package is not installed: names the extra that contains it
    +-- RequestRefused       a request gets an error answer: status, OpenAI error type, code, param, Retry-After
        +-- BadRequest       400
        +-- Unauthorized     401
        +-- Forbidden        403  authenticated, but not allowed
        +-- NotFound         404  unknown path, model, or response id
        +-- MethodNotAllowed 405  with Allow
        +-- TooLarge         413
        +-- UnsupportedCoding 415 the body is compressed
        +-- PoisonRefused    422  engines died on this prompt a short time ago
        +-- UpgradeRequired  426  a WebSocket handshake where there is only HTTP
        +-- TooBusy          429  with Retry-After
            +-- TenantOverLimit   beyond a limit of its tenant's service class
        +-- InternalError    500  a bug of the router's own
        +-- BadGateway       502  an engine took the request and died, or answered with nonsense
        +-- NoTarget         503  no engine can serve the request now
        +-- DeadlineExceeded 504

Exceptions of libraries (zmq, httpx, OS) are translated where they arise.

Messages contain names from outside: model names, paths, keys of a file, texts of engines. `quote_name` truncates
and escapes such a name where it is put into a message. A name that was missed is truncated and escaped by the
exception classes here, and once more where log lines are written (`router/cli/terminal/logs.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice

MAX_NAME_CHARS = 256
MAX_NAMES = 50  # in a list of names
MAX_COMPLAINTS = 20  # complaints about a file
MAX_LINE_CHARS = 1_000
HIDDEN = "text of another form (not shown: it may be a secret)"  # of what messages must not repeat
OWN_PACKAGES = ("router", "scorers")


def quote_name(name: str, limit: int = MAX_NAME_CHARS) -> str:
    """Return a name from outside for use in a message: one printable line, cut at `limit` characters.

    Whatever is not printable (control characters, terminal escapes, line breaks, changes of the writing direction)
    becomes a backslash escape such as `\\x1b`.
    """
    text = name[:limit]
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return text if len(name) <= limit and len(text) <= limit else text[:limit] + "..."


def quote_lines(text: str, lines: int = MAX_COMPLAINTS + 1, limit: int = MAX_LINE_CHARS) -> str:
    """Return a text from outside as printable lines: at most `lines` lines of `limit` characters, then the number
    of further lines.
    """
    total = text.count("\n") + 1
    kept = [quote_name(line, limit) for line in text.split("\n", lines)[:lines]]
    return "\n".join(kept if total <= lines else [*kept, f"and {total - lines:,} more"])


def list_names(names: Iterable[str]) -> str:
    """Return the first `MAX_NAMES` names in alphabetical order, separated by commas, and the number of further
    names.
    """
    ordered = sorted(names)
    text = ", ".join(quote_name(name) for name in islice(ordered, MAX_NAMES))
    return text if len(ordered) <= MAX_NAMES else f"{text} and {len(ordered) - MAX_NAMES:,} more"


class WarmrouteError(Exception):
    """The base class of everything that this project raises on purpose."""


class ConfigError(WarmrouteError):
    """An operator's file is wrong. `str()` is one or more lines of `file:line: key.path: problem and remedy`.

    Built from lines and from other errors of this kind. The first `MAX_COMPLAINTS` lines are kept as `complaints`,
    and the attribute `omitted` counts the others. The argument `omitted` is the number of lines that were never
    built.
    """

    complaints: list[str]
    omitted: int

    def __init__(self, *parts: str | ConfigError, omitted: int = 0) -> None:
        lines: list[str] = []
        for part in parts:
            lines += part.complaints if isinstance(part, ConfigError) else part.split("\n")
            omitted += part.omitted if isinstance(part, ConfigError) else 0
        self.complaints = [quote_name(line, MAX_LINE_CHARS) for line in lines[:MAX_COMPLAINTS]]
        self.omitted = omitted + max(0, len(lines) - MAX_COMPLAINTS)
        super().__init__("\n".join([*self.complaints, *([f"and {self.omitted:,} more"] if self.omitted else [])]))


class ExtraMissing(ConfigError):
    """An optional dependency is not installed."""


@contextmanager
def needs_extra(extra: str, wanted_by: str) -> Iterator[None]:
    """Guard a block that imports the packages of an extra. Raises ExtraMissing, with the command that installs
    them, when one is missing. `wanted_by` names the section, command or option that needs the extra.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] in OWN_PACKAGES:
            raise
        raise ExtraMissing(
            f"{wanted_by}: {missing.name} is not installed; it comes with an extra: pip install 'warmroute[{extra}]'"
        ) from missing


class RequestRefused(WarmrouteError):
    """A request gets an error answer in the OpenAI format.

    `message` is for the client: it names the field or limit and nothing internal. `param` is the field at fault.
    """

    status = 500
    kind = "server_error"

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, retry_after_s: int | None = None
    ) -> None:
        self.message = quote_lines(message)
        self.param = None if param is None else quote_name(param)
        super().__init__(self.message)
        self.code = code
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers that an answer with this status must have."""
        return [] if self.retry_after_s is None else [(b"retry-after", b"%d" % self.retry_after_s)]


class BadRequest(RequestRefused):
    status, kind = 400, "invalid_request_error"


class Unauthorized(RequestRefused):
    status, kind = 401, "authentication_error"

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"www-authenticate", b"Bearer")]


class Forbidden(RequestRefused):
    status, kind = 403, "permission_error"


class NotFound(RequestRefused):
    status, kind = 404, "not_found_error"


class MethodNotAllowed(RequestRefused):
    """The path accepts only the methods in `allowed`."""

    status, kind = 405, "invalid_request_error"

    def __init__(self, message: str, allowed: Iterable[str] = ()) -> None:
        super().__init__(message, code="method_not_allowed")
        self._allowed = ", ".join(allowed)

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"allow", self._allowed.encode())]


class TooLarge(RequestRefused):
    status, kind = 413, "invalid_request_error"


class UnsupportedCoding(RequestRefused):
    """RFC 9110 12.5.3: the answer's Accept-Encoding lists the codings that a request may have."""

    status, kind = 415, "invalid_request_error"

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"accept-encoding", b"identity")]


class PoisonRefused(RequestRefused):
    status, kind = 422, "invalid_request_error"


class UpgradeRequired(RequestRefused):
    """RFC 9110 15.5.22: the answer names the protocol that the router supports instead."""

    status, kind = 426, "invalid_request_error"

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"upgrade", b"HTTP/1.1"), (b"connection", b"upgrade")]


class TooBusy(RequestRefused):
    status, kind = 429, "rate_limit_error"


class TenantOverLimit(TooBusy):
    """A limit of the tenant's service class is used up; other tenants are served."""


class InternalError(RequestRefused):
    status, kind = 500, "server_error"


class BadGateway(RequestRefused):
    status, kind = 502, "upstream_error"


class NoTarget(RequestRefused):
    status, kind = 503, "overloaded_error"


class DeadlineExceeded(RequestRefused):
    status, kind = 504, "timeout_error"
