"""Load the PEM files of TLS, and find which one is wrong.

OpenSSL reports every unusable file as `PEM lib`, and it would ask at the terminal for the password of an encrypted key.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple

from router.config.sections.listeners import TlsConfig

CERTIFICATE, PRIVATE_KEY = b"-----BEGIN CERTIFICATE-----", b"PRIVATE KEY-----"


class PemFault(NamedTuple):
    """What is wrong with the file under `key` of a TLS section, and what to do."""

    key: str
    text: str


class _EncryptedKey(Exception):
    pass


def load_pair(tls: TlsConfig) -> ssl.SSLContext | PemFault:
    """Return a server's context with the certificate and its key, or why they cannot be used."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        context.load_cert_chain(tls.cert_file, tls.key_file, password=_refuse_password)
    except _EncryptedKey:
        change = "write it without one: openssl pkey -in FILE -out NEW"
        return PemFault("key_file", f"the private key in {tls.key_file} has a password; {change}")
    except OSError as error:  # ssl.SSLError is one
        return _find_fault(tls, error)
    return context


def find_ca_fault(file: str) -> str | None:
    """Return why certificates cannot be verified with the CAs in `file`; None if they can."""
    try:
        ssl.create_default_context(cafile=file)
    except OSError as error:
        return _find_pem_fault(file, CERTIFICATE, "certificate") or f"the CAs in {file} cannot be used: {error}"
    return None


def _find_fault(tls: TlsConfig, error: OSError) -> PemFault:
    if (text := _find_pem_fault(tls.cert_file, CERTIFICATE, "certificate")) is not None:
        return PemFault("cert_file", text)
    if (text := _find_pem_fault(tls.key_file, PRIVATE_KEY, "private key")) is not None:
        return PemFault("key_file", text)
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        text = f"found the key of another certificate in {tls.key_file}, wanted that of {tls.cert_file}"
        return PemFault("key_file", text)
    return PemFault("cert_file", f"{tls.cert_file} and {tls.key_file} cannot be used: {error}")


def _find_pem_fault(file: str, mark: bytes, what: str) -> str | None:
    """Return why there is no such PEM block in `file`; None if there is one."""
    try:
        content = Path(file).read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        return f"{file} cannot be read: {reason}{'; let the router read it' * isinstance(error, PermissionError)}"
    if mark in content:
        return None
    return f"found no {what} in {file}, wanted a PEM file with a line -----BEGIN {what.upper()}-----"


def _refuse_password() -> str:
    raise _EncryptedKey
