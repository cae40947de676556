"""What the start warns of, setting by setting."""

from __future__ import annotations

from typing import Any

import pytest

from router.config.exposure import list_exposures
from router.config.schema import Config
from router.config.sections.listeners import is_loopback

TLS = {"cert_file": "cert.pem", "key_file": "key.pem"}
TOKENS = [{"name": "on-call", "hash": "a" * 64}]
LOCAL = {"host": "127.0.0.1"}
APART = {"port": 9100}
KEYS = {"keys_file": "keys"}


def exposed(**sections: Any) -> list[str]:
    """The settings that are named first in each warning."""
    lines = list_exposures(Config.model_validate(sections))
    assert all("\n" not in line and "set it" in line for line in lines)
    return [line.partition(":")[0] for line in lines]


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"listen": LOCAL}, []),
        ({"listen": {"host": "::1"}}, []),
        ({"listen": {"host": "localhost"}}, []),
        ({}, ["clients.keys_file", "listen.tls", "metrics.token_hash"]),
        ({"listen": {"host": "10.0.0.5"}, "clients": KEYS, "metrics": APART}, ["listen.tls"]),
        ({"listen": {"host": "::", "tls": TLS}, "metrics": APART}, ["clients.keys_file"]),
        ({"listen": {"tls": TLS}, "clients": KEYS, "metrics": {"token_hash": "a" * 64}}, []),
        ({"listen": {"tls": TLS}, "clients": KEYS}, ["metrics.token_hash"]),
        ({"listen": LOCAL, "metrics": APART | {"host": "10.0.0.5"}}, ["metrics.token_hash"]),
        ({"listen": LOCAL, "admin": {"host": "0.0.0.0", "tokens": TOKENS}}, ["admin.host"]),
        ({"listen": LOCAL, "admin": {"host": "127.0.0.1", "tokens": TOKENS}}, []),
        ({"listen": LOCAL, "picker": {}}, []),
        ({"listen": LOCAL, "picker": {"testing": True}}, ["picker.testing"]),
        (
            {"admin": {"host": "admin.internal", "tokens": TOKENS}, "metrics": APART},
            ["clients.keys_file", "listen.tls", "admin.host"],
        ),
    ],
)
def test_what_is_open_to_other_machines(sections: dict[str, Any], named: list[str]) -> None:
    assert exposed(**sections) == named


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("localhost", True),
        ("0.0.0.0", False), ("::", False), ("", False), ("localhost.evil.example", False), ("127.0.0.1.nip.io", False),
        ("10.0.0.1", False), ("127.1", False),
    ],
)  # fmt: skip
def test_loopback_addresses(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
