"""Describe why a server could not be reached, in words for people.

The exceptions of uvloop, ssl and httpx differ in what they say of the same cause, and httpx hides it behind `All
connection attempts failed`. So the chain of causes is searched for the first that the system or OpenSSL raised.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from socket import gaierror

REFUSED = "connection refused"
NOT_TLS = "it does not speak TLS"
UNTRUSTED = "its certificate is not trusted"


def describe_failure(failure: BaseException) -> str:
    """Return why a connection or an exchange failed, such as `REFUSED`."""
    for cause in _causes(failure):
        match cause:
            case ssl.SSLCertVerificationError():
                return f"{UNTRUSTED}: {cause.verify_message}"
            case ssl.SSLError(reason="WRONG_VERSION_NUMBER"):
                return NOT_TLS
            case ssl.SSLError(reason=reason):
                return f"no TLS connection: {reason or cause}"
            case TimeoutError():
                return "no connection in time" if "Connect" in type(failure).__name__ else "no answer in time"
            case ConnectionRefusedError():
                return REFUSED
            case gaierror():
                return f"unknown host: {(cause.strerror or str(cause)).lower()}"
            case OSError(errno=int()):
                return (cause.strerror or str(cause)).lower()
    return str(failure) or type(failure).__name__


def _causes(failure: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = failure
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__
