"""The TLS context of a gRPC listener: self-signed, or from files that are read again when they change.

Gateways do not verify a picker's certificate (llm-d's `--secure-serving` also creates one at its start). It keeps
prompts from being read in transit, and proves nothing about who answers.
"""

from __future__ import annotations

import os
import ssl
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from router.config.sections.listeners import GrpcTls, TlsConfig
from router.proxy.certificates import Certificates

PROTOCOLS = ["h2"]
VALID = timedelta(days=3650)  # of a self-signed certificate, which nobody verifies


def server_context(tls: GrpcTls, wall_s: float) -> ssl.SSLContext | None:
    """Return the TLS context for the setting; None for clear text. A self-signed certificate is dated `wall_s`,
    seconds since 1970. Raises `ConfigError` for files that cannot be used.
    """
    if tls == "off":
        return None
    if tls == "self-signed":
        return _context_of_pair(*make_self_signed(wall_s))
    return _context_of_files(tls)


def make_self_signed(wall_s: float) -> tuple[bytes, bytes]:
    """Return a new private key and a certificate for it, both as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "warmroute-picker")])
    begin = datetime.fromtimestamp(wall_s, UTC) - timedelta(days=1)  # because clocks differ
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


def _context_of_pair(key: bytes, certificate: bytes) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    descriptor = os.memfd_create("certificate")  # ssl reads files only; this one is on no disk, which may be read-only
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        file.write(certificate + key)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    context.set_alpn_protocols(PROTOCOLS)
    return context


def _context_of_files(tls: TlsConfig) -> ssl.SSLContext:
    """Return a context that checks the files at each handshake: a renewed pair is used from then on, and a pair
    that does not match changes nothing and is only logged. Raises `ConfigError` for files that cannot be used now.
    """
    certificates = Certificates(tls)
    first = certificates.context
    first.set_alpn_protocols(PROTOCOLS)

    def refresh(handshake: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        certificates.refresh()
        handshake.context = certificates.context

    first.sni_callback = refresh
    return first
