"""Load the PEM files of TLS, and find which one is wrong.

OpenSSL reports every unusable file as `PEM lib`, and it would ask at the terminal for the password of an encrypted key.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple

from router.errors import ConfigError

CERTIFICATE, PRIVATE_KEY = b"-----BEGIN CERTIFICATE-----", b"PRIVATE KEY-----"


class PemFault(NamedTuple):
    """A fault of the file under `key` of a TLS section. `text` says what is wrong, and what to do."""

    key: str
    text: str


class _EncryptedKey(Exception):
    pass


def load_pair(cert_file: str, key_file: str) -> ssl.SSLContext | PemFault:
    """Return a server's context with the certificate and its key, or why they cannot be used."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        context.load_cert_chain(cert_file, key_file, password=_refuse_password)
    except _EncryptedKey:
        change = "write it without one: openssl pkey -in FILE -out NEW"
        return PemFault("key_file", f"the private key in {key_file} has a password; {change}")
    except OSError as error:  # ssl.SSLError is one
        return _find_fault(cert_file, key_file, error)
    return context


def load_trust(ca_file: str | None) -> ssl.SSLContext | PemFault:
    """Return a client's context that trusts the certificates in `ca_file`, CAs or a server's own, or why they cannot be
    used; None: the system's CAs.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        file = ca_file or "the system's CAs"
        text = None if ca_file is None else _find_pem_fault(ca_file, CERTIFICATE, "certificate")
        return PemFault("ca_file", text or f"{file} cannot be used: {error}")
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def trust_of(url: str, ca_file: str | None) -> ssl.SSLContext | bool:
    """Return the trust in the server at `url`; False without TLS, as a context costs 20 ms. Raises ConfigError for a
    `ca_file` that cannot be used; None: the system's CAs.
    """
    if not url.startswith("https:"):
        return False
    loaded = load_trust(ca_file)
    if isinstance(loaded, PemFault):
        raise ConfigError(f"--ca-file: {loaded.text}")
    return loaded


def _find_fault(cert_file: str, key_file: str, error: OSError) -> PemFault:
    if (text := _find_pem_fault(cert_file, CERTIFICATE, "certificate")) is not None:
        return PemFault("cert_file", text)
    if (text := _find_pem_fault(key_file, PRIVATE_KEY, "private key")) is not None:
        return PemFault("key_file", text)
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        text = f"found the key of another certificate in {key_file}, wanted that of {cert_file}"
        return PemFault("key_file", text)
    return PemFault("cert_file", f"{cert_file} and {key_file} cannot be used: {error}")


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
