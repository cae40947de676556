"""Check what others can reach or read: the admin listener, secrets in files, and the exposures of which `serve`
warns at its start.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from router.config.exposure import list_exposures
from router.config.reader import read_client_keys
from router.config.sections.base import WILDCARDS
from router.config.sections.listeners import is_loopback
from router.errors import ConfigError
from router.operate.doctor.check import Check
from router.operate.doctor.finding import Edit, FleetFinding, Place
from router.operate.doctor.subject import Subject

GUESSABLE = ("", "admin", "changeme", "password", "secret", "token", "test", "warmroute", "123456", "TOKEN")
SECRETS = re.compile(
    r"\bsk-[A-Za-z0-9_-]{16,}|\bhf_[A-Za-z0-9]{20,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bAKIA[A-Z0-9]{16}\b"
    r"|\bBearer\s+[A-Za-z0-9._~+/-]{16,}|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|(?i:\b(?:password|passwd|secret|api_?key|token)\b\s*[=:]\s*[\"']?[A-Za-z0-9._~+/-]{12,})"
)
SHORT_SECRET = 16  # characters


def check_admin(subject: Subject) -> Iterator[FleetFinding]:
    """Only operators reach the admin listener."""
    config = subject.config
    if config is not None and not is_loopback(config.admin.host):
        world = config.admin.host in WILDCARDS or _is_global(config.admin.host)
        yield FleetFinding(
            "fault" if world else "warning",
            f"the admin listener is open to other machines: admin.host is {config.admin.host}",
            "it has no TLS: tokens travel in clear text, and whoever has one drains engines and switches policies",
            "host: 127.0.0.1",
            (),
            subject.place("admin", "host"),
            Edit(("admin", "host"), "127.0.0.1"),
        )
    for router in subject.routers:
        if router.open_to_all and not is_loopback(urlsplit(router.url).hostname or ""):
            yield FleetFinding(
                "fault",
                "answers without a token, and not only on its own machine",
                "whoever reaches it drains engines and switches policies",
                "admin.tokens: [{name: ..., hash: ..., rights: [read]}], and nothing that forwards to it",
                (router.url,),
                subject.place("admin"),
            )


def check_tokens(subject: Subject) -> Iterator[FleetFinding]:
    """Tokens and API keys cannot be guessed."""
    config = subject.config
    if config is None:
        return
    guesses = {hashlib.sha256(word.encode()).hexdigest(): word for word in GUESSABLE}
    for i, token in enumerate(config.admin.tokens):
        names = guesses | {hashlib.sha256(token.name.encode()).hexdigest(): token.name}
        if (word := names.get(token.hash.lower())) is not None:
            yield FleetFinding(
                "fault",
                f"the admin token of {token.name} is {word!r}",
                "anybody guesses it",
                "hash: of a new one: openssl rand -hex 32 | tee TOKEN | tr -d '\\n' | sha256sum",
                (),
                subject.place("admin", "tokens", i, "hash"),
            )
    if config.clients.keys_file is not None:
        try:
            weak = [name for digest, name in read_client_keys(config.clients.keys_file).items() if digest in guesses]
        except ConfigError:
            weak = []
        for name in weak:
            what, change = f"the API key of {name} can be guessed", "a new key: openssl rand -hex 32"
            place = subject.place("clients", "keys_file")
            yield FleetFinding("fault", what, "anybody sends requests in its name", change, (), place)
    variable = config.index.key_secret_env
    if variable is not None and len(os.environ.get(variable, "")) < SHORT_SECRET:
        yield FleetFinding(
            "warning",
            f"the secret in {variable} has less than {SHORT_SECRET} characters",
            "who guesses it can make prompts that look cached, and read pseudonyms in decision logs",
            f'export {variable}="$(openssl rand -hex 32)"',
            (),
            subject.place("index", "key_secret_env"),
        )


def check_secrets(subject: Subject) -> Iterator[FleetFinding]:
    """No secret stands in a file in plain text, or in a file that everybody can read."""
    document, config = subject.document, subject.config
    if document is None or config is None:
        return
    for number, line in enumerate(subject.text.splitlines(), start=1):
        if (found := SECRETS.search(line)) is not None:
            yield FleetFinding(
                "fault",
                f"the configuration has a secret in plain text: {found[0][:6]}...",
                "it is in every copy, backup and ticket that the file gets into",
                "remove it, renew it, and name an environment variable instead (api_key_env, key_secret_env)",
                (),
                Place(document.name, number, ""),
            )
    key_file = None if config.listen.tls is None else config.listen.tls.key_file
    for key, name, others in (
        ("listen.tls.key_file", key_file, stat.S_IROTH),
        ("index.snapshot_file", config.index.snapshot_file, stat.S_IROTH | stat.S_IRGRP),
    ):
        if name is not None and _mode(Path(name)) & others:
            yield FleetFinding(
                "fault",
                f"others can read {name}",
                "it holds a secret: who has it can pass for this router, or make prompts that look cached",
                f"chmod 600 {name}",
                (),
                subject.place(*key.split(".")),
            )


def check_exposed(subject: Subject) -> Iterator[FleetFinding]:
    """The ports for clients and metrics are open only to the intended users; a load balancer may ensure this."""
    for line in () if subject.config is None else list_exposures(subject.config):
        key, _, what = line.partition(": ")
        if key == "admin.host":
            continue
        parts = what.rpartition("; ")
        place = subject.place(*key.split("."))
        yield FleetFinding(
            "note", f"{key}: {parts[0].partition(':')[0]}", parts[0].partition(": ")[2], parts[2], (), place
        )


def _mode(file: Path) -> int:
    """Return the file's mode bits; 0 if the file does not exist."""
    try:
        return file.stat().st_mode
    except OSError:
        return 0


def _is_global(host: str) -> bool:
    try:
        return ip_address(host).is_global
    except ValueError:
        return False


CHECKS = (
    Check("security.admin", "the admin listener is reached by operators only", "anything", check_admin),
    Check("security.secrets", "no secret in plain text, or in a file for everybody", "configuration", check_secrets),
    Check("security.tokens", "tokens and keys cannot be guessed", "configuration", check_tokens),
    Check("security.exposed", "who reaches clients' and metrics' ports (a note)", "configuration", check_exposed),
)
