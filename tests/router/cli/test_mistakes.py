"""Every mistake of `mistakes.yaml` gets the message that is written there."""

from __future__ import annotations

import shlex
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.x509 import load_pem_x509_certificate

from router.config.sections.listeners import ListenConfig
from router.picker.credentials import make_self_signed
from router.proxy.asgi import AsgiHandler
from router.proxy.listener import HttpListener, configure_server
from router.request.ops_api import ops_app
from tests.router.cli.admin.conftest import served
from tests.router.cli.conftest import Shell

MISTAKES: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "mistakes.yaml").read_text())
ENGINES = "fleet: {embedded: {}}\n"


class Surroundings(NamedTuple):
    """What commands find: files in a folder, and ports, by the words of the table."""

    files: Mapping[str, bytes]
    words: Mapping[str, str]


async def start_metrics_listener() -> HttpListener:
    app = ops_app(lambda: None, None)
    listener = HttpListener(configure_server(AsgiHandler(app), ListenConfig(host="127.0.0.1", port=0)))
    await listener.start()
    return listener


@pytest.fixture(scope="module")
def surroundings() -> Iterator[Surroundings]:
    key, certificate = make_self_signed(time.time())
    password = serialization.BestAvailableEncryption(b"hush")
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    files = {
        "cert.pem": certificate,
        "cert.der": load_pem_x509_certificate(certificate).public_bytes(serialization.Encoding.DER),
        "key.pem": key,
        "other.pem": make_self_signed(time.time())[0],
        "locked.pem": serialization.load_pem_private_key(key, None).private_bytes(*form, password),
    }
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        for router in served():
            metrics = router.here(start_metrics_listener)
            words = {
                "TAKEN": str(taken.getsockname()[1]),
                "CLOSED": str(closed.getsockname()[1]),
                "TLS_ADMIN": router.url.replace("http:", "https:"),
                "METRICS": f"http://127.0.0.1:{metrics.port}",
                "ADMIN": router.url,
            }
            yield Surroundings(files, words)
            router.here(metrics.stop, 0.1)


class Message(NamedTuple):
    code: int
    text: str


def make(mistake: Mapping[str, Any], surroundings: Surroundings, shell: Shell, here: Path) -> Message:
    """Make the mistake in the folder `here`; return what is said."""
    words = surroundings.words
    for name, content in surroundings.files.items():
        (here / name).write_bytes(content)
    (here / "folder").mkdir()
    files = dict(mistake.get("files", {}))
    if (main := mistake.get("main")) is not None:
        files["main.yaml"] = main if "fleet:" in main or not main or main.startswith("-") else main + ENGINES
    for name, text in files.items():
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text(replace(text, words))
    code, _, said = shell(*shlex.split(replace(mistake.get("run", "check main.yaml"), words)))
    for word, value in words.items():
        said = said.replace(value, word)
    return Message(code, tidy(said.replace(str(here), "HERE")))


def replace(text: str, words: Mapping[str, str]) -> str:
    for word, value in words.items():
        text = text.replace(word, value)
    return text


def tidy(said: str) -> str:
    """Return the lines of a message; of a usage error only what is wrong."""
    return (said.partition("\nError: ")[2] if said.startswith("Usage: ") else said).strip()


@pytest.mark.parametrize("mistake", MISTAKES, ids=[mistake["mistake"] for mistake in MISTAKES])
def test_a_mistake_gets_its_message(
    mistake: dict[str, Any],
    surroundings: Surroundings,
    shell: Shell,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHORT", "hush")
    monkeypatch.setenv("LONG", "hush" * 8)
    message = make(mistake, surroundings, shell, tmp_path)
    assert message.text == mistake["message"].strip()
    assert message.code in (1, 2)
    assert "hush" not in message.text
