"""Secrets and open doors that the doctor names, by the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.config.reader import read_all
from router.config.yaml_source import load
from router.operate.doctor.finding import FleetFinding
from router.operate.doctor.security import check_admin, check_exposed, check_secrets
from router.operate.doctor.subject import RouterAnswers, Subject
from tests.paths import CONFIGS, TLS

FLEET = "fleet:\n  instances: [{url: 'http://10.0.0.1:8100'}]\n"


def examined(file: Path, text: str) -> Subject:
    file.write_text(text)
    return Subject(read_all(file), load(file), text)


@pytest.mark.parametrize(
    "line",
    [
        "# the engines' key: sk-proj-abcdefghijklmnop1234",
        "# Authorization: Bearer abcdefghijklmnopqrstuvwxyz",
        "# api_key = 'Zq81mmk39AAbb771'",
        "# hf_abcdefghijklmnopqrstuvwxyz12",
        "# AKIAABCDEFGHIJKLMNOP",
        "# -----BEGIN RSA PRIVATE KEY-----",
    ],
)
def test_a_secret_in_plain_text(line: str, tmp_path: Path) -> None:
    (found,) = check_secrets(examined(tmp_path / "main.yaml", f"{FLEET}{line}\n"))
    assert found.severity == "fault"
    assert found.place is not None
    assert found.place.line == 3
    assert line[-10:] not in found.what, "it must not be printed"


@pytest.mark.parametrize("name", ["quickstart.yaml", "stack-cpu.yaml"])
def test_the_shipped_configurations_have_no_secret(name: str) -> None:
    file = CONFIGS / name
    assert [*check_secrets(Subject(read_all(file), load(file), file.read_text()))] == []


def test_a_key_of_the_certificate_that_everybody_can_read(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_bytes((TLS / "key.pem").read_bytes())
    text = f"{FLEET}listen:\n  tls:\n    cert_file: {TLS / 'cert.pem'}\n    key_file: {key}\n"
    key.chmod(0o644)
    (found,) = check_secrets(examined(tmp_path / "main.yaml", text))
    assert (found.change, found.place and found.place.line) == (f"chmod 600 {key}", 6)
    key.chmod(0o640)
    assert [*check_secrets(examined(tmp_path / "main.yaml", text))] == []


@pytest.mark.parametrize(("host", "severity"), [("0.0.0.0", "fault"), ("8.8.8.8", "fault"), ("10.0.0.3", "warning")])
def test_an_admin_listener_beyond_this_machine(host: str, severity: str, tmp_path: Path) -> None:
    tokens = "{name: ops, hash: '" + "0" * 64 + "'}"
    text = f"{FLEET}admin:\n  tokens: [{tokens}]\n  host: {host}\n"
    (found,) = check_admin(examined(tmp_path / "main.yaml", text))
    assert (found.severity, found.place and found.place.line) == (severity, 5)


def test_an_admin_listener_that_answers_everybody() -> None:
    def answers(url: str) -> list[FleetFinding]:
        return list(check_admin(Subject(routers=[RouterAnswers(url, open_to_all=True)])))

    assert [one.severity for one in answers("http://10.0.0.9:8001")] == ["fault"]
    assert answers("http://127.0.0.1:8001") == []


def test_what_defaults_leave_open_is_a_note(tmp_path: Path) -> None:
    found = list(check_exposed(examined(tmp_path / "main.yaml", FLEET)))
    assert {one.severity for one in found} == {"note"}
    assert {one.place.key for one in found if one.place} == {"clients.keys_file", "listen.tls", "metrics.token_hash"}
