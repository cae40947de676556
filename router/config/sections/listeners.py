"""The `listen`, `admin` and `clients` sections: where the router is reached, by whom, and within what bounds."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from router.config.sections.base import PathName, Port, Positive, Seconds, Section


class TlsConfig(Section):
    cert_file: PathName = Field(description="PEM certificate chain of the listener")
    key_file: PathName = Field(description="PEM private key of the listener")


class ListenConfig(Section):
    host: str = Field(default="0.0.0.0", description="address of the public listener")
    port: Port = Field(default=8000, description="port of the public listener; 0 lets the system choose")
    tls: TlsConfig | None = Field(default=None, description="serve https instead of http")
    header_timeout_s: Seconds = Field(default=10.0, description="a request's head must be complete within this time")
    body_idle_timeout_s: Seconds = Field(
        default=30.0, description="longest pause between two pieces of a request's body"
    )
    header_bytes: Positive = Field(default=65536, description="largest request head (request line and headers)")


class AdminTokenConfig(Section):
    name: str = Field(description="who this is: shown in logs")
    hash: str = Field(
        pattern="^[0-9a-fA-F]{64}$", description="sha256 of the token in hex (`printf %s TOKEN | sha256sum`)"
    )
    rights: list[Literal["read", "write", "override"]] = Field(
        default=["read"],
        description="read: look; write: drain and change; override: choose the policy of a single request by header",
    )


class AdminConfig(Section):
    host: str = Field(default="127.0.0.1", description="address of the admin listener, never the public one")
    port: Port = Field(default=8001, description="port of the admin listener; 0 lets the system choose")
    tokens: list[AdminTokenConfig] = Field(
        default=[], description="bearer tokens; none: open, allowed only on a loopback host"
    )
    audit_file: PathName | None = Field(
        default=None,
        description="JSON lines of every switch of policies: who, when, what, the plan; a rollback that stands here is "
        "kept after a restart; none: the last 1,000 in memory",
    )

    @model_validator(mode="after")
    def _open_only_on_loopback(self) -> AdminConfig:
        if not self.tokens and self.host not in ("127.0.0.1", "::1", "localhost"):
            raise ValueError(f"open to everyone on {self.host}: list tokens, or set host to 127.0.0.1")
        return self


class ClientsConfig(Section):
    keys_file: PathName | None = Field(
        default=None,
        description="file with one sha256 of a client API key (hex) and a name per line; none: no key is asked",
    )
