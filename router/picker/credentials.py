"""The TLS credentials of the picker's listener: self-signed, or from files that are read again when they change.

Gateways do not check a picker's certificate (llm-d's `--secure-serving` makes one at its start, too): it keeps prompts
from being read on the way, and proves nothing about who answers.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from router.config.sections.listeners import PickerConfig, TlsConfig
from router.errors import ConfigError
from router.proxy.certificates import Certificates

VALID = timedelta(days=3650)  # of a self-signed certificate, which nobody checks


def server_credentials(picker: PickerConfig, wall_s: float) -> grpc.ServerCredentials | None:
    """Return the credentials that `picker.tls` asks for, `None` for clear text. A self-signed certificate is dated
    `wall_s`, seconds since 1970. Raises `ConfigError` for files that cannot be used.
    """
    if picker.tls == "off":
        return None
    if picker.tls == "self-signed":
        return grpc.ssl_server_credentials([make_self_signed(wall_s)])
    return file_credentials(picker.tls)


def make_self_signed(wall_s: float) -> tuple[bytes, bytes]:
    """Return a new private key and a certificate for it, both as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "warmroute-picker")])
    begin = datetime.fromtimestamp(wall_s, UTC) - timedelta(days=1)  # clocks differ
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + VALID)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private, certificate.public_bytes(serialization.Encoding.PEM)


def file_credentials(tls: TlsConfig) -> grpc.ServerCredentials:
    """Return credentials from the files of `tls`, which each handshake looks at: a renewed pair is used from then on,
    and one that does not fit changes nothing but the log. Raises `ConfigError` for files that cannot be used now.
    """
    certificates = Certificates(tls)  # checks that the key belongs to the certificate
    used = certificates.context

    def refresh() -> Any:
        nonlocal used
        certificates.refresh()
        if certificates.context is used:
            return None
        used = certificates.context
        return _read(tls)

    return grpc.dynamic_ssl_server_credentials(_read(tls), refresh)


def _read(tls: TlsConfig) -> grpc.ServerCertificateConfiguration:
    try:
        pair = Path(tls.key_file).read_bytes(), Path(tls.cert_file).read_bytes()
    except OSError as error:
        raise ConfigError(f"picker.tls: {error}") from error
    return grpc.ssl_server_certificate_configuration([pair])
