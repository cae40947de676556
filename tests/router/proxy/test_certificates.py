"""A certificate is renewed while its listener runs; a broken one changes nothing."""

from __future__ import annotations

import logging
import shutil
import ssl
from pathlib import Path

import pytest

from router.config.sections.listeners import TlsConfig
from router.errors import ConfigError
from router.proxy.certificates import Certificates
from tests.paths import ROOT

OTHER = ROOT / "tests/fakes/tls"


@pytest.fixture
def pair(tmp_path: Path, certificate) -> TlsConfig:
    """Copies of the test certificate, to be replaced."""
    tls = TlsConfig(cert_file=str(tmp_path / "cert.pem"), key_file=str(tmp_path / "key.pem"))
    replace(tls, certificate.cert_file, certificate.key_file)
    return tls


def replace(tls: TlsConfig, cert_file: str | Path, key_file: str | Path) -> None:
    """As a tool that renews does it: a new file under the old name."""
    for source, name in ((cert_file, tls.cert_file), (key_file, tls.key_file)):
        shutil.copy(source, f"{name}.new")
        Path(f"{name}.new").rename(name)


def test_files_that_have_not_changed_are_not_read(pair):
    certificates = Certificates(pair)
    before = certificates.context
    certificates.refresh()
    assert certificates.context is before


def test_a_changed_pair_is_used_from_then_on(pair, caplog):
    caplog.set_level(logging.INFO)
    certificates = Certificates(pair)
    before = certificates.context
    replace(pair, OTHER / "cert.pem", OTHER / "key.pem")
    certificates.refresh()
    assert certificates.context is not before
    assert caplog.text.count("changed certificate") == 1


def test_half_a_pair_changes_nothing_until_the_other_half_comes(pair, certificate, caplog):
    certificates = Certificates(pair)
    before = certificates.context
    replace(pair, OTHER / "cert.pem", certificate.key_file)
    for _ in range(3):
        certificates.refresh()
    assert certificates.context is before
    assert len(caplog.records) == 1
    assert "the certificate read before stays in use" in caplog.text
    replace(pair, OTHER / "cert.pem", OTHER / "key.pem")
    certificates.refresh()
    assert certificates.context is not before


@pytest.mark.parametrize("content", [b"", b"-----BEGIN CERTIFICATE-----\nnone\n-----END CERTIFICATE-----\n", None])
def test_a_broken_or_missing_file_changes_nothing(pair, content, certificate):
    certificates = Certificates(pair)
    before = certificates.context
    file = Path(pair.cert_file)
    file.unlink() if content is None else file.write_bytes(content)
    certificates.refresh()
    assert certificates.context is before
    replace(pair, certificate.cert_file, certificate.key_file)
    certificates.refresh()
    assert certificates.context is not before


def test_at_the_start_a_broken_pair_is_an_error(pair):
    Path(pair.key_file).write_text("none")
    with pytest.raises(ConfigError, match=r"key_file: found no private key in .*key\.pem, wanted a PEM file"):
        Certificates(pair)


def test_a_client_may_not_make_the_server_negotiate_again(pair):
    assert Certificates(pair).context.options & ssl.OP_NO_RENEGOTIATION
