"""Isolates the cached prompts of tenants: the router puts its own salt into every request, and qualifies names that
clients choose.

vLLM mixes `cache_salt` into the hash of a prompt's first block, and thereby into all following blocks, so blocks
with different salts never match: neither in an engine, nor in a pool, nor in this router's index. A salt that
clients choose does not protect clients that choose none, and can be guessed or disclosed. So the router derives the
salt from a secret, and mixes the client's own salt into it. A name that a client chooses (of a session or a stored
response) is prefixed with the owner's name; otherwise a tenant could follow another tenant's session to its engine.

vLLM salts only the first block, so a prompt cannot be shared in part: tenants that trust each other share
everything (`clients.tenants.*.cache_group`).
"""

from __future__ import annotations

from hashlib import blake2b

SALT_BYTES = 16  # vLLM accepts up to 128 characters except `@/\\`; the salt is in hexadecimal digits
KEY_BYTES = 32
SEPARATOR = "\x1f"
"""Separates names that are joined (U+001F, unit separator). No name contains it: names of tenants and groups are
printable, and a client's name with this character is invalid (`prompt/api/lineage.py`). People write ` / ` instead.
"""


def join_names(outer: str, inner: str) -> str:
    """Return the name of `inner` in `outer`, which is unique for these two names."""
    return outer + SEPARATOR + inner


def read_joined(text: str) -> str:
    """Return the joined name for a text in which a person wrote ` / ` between the names."""
    return text.replace(" / ", SEPARATOR)


def derive_salt_key(secret: int) -> bytes:
    """Return the key of all salts. `secret` is the deployment's secret (64 bits), which clients do not have."""
    return blake2b(secret.to_bytes(8, "little"), digest_size=KEY_BYTES, person=b"warmroute salts").digest()


class CacheScope:
    """The requests of `owner`, a tenant or a group of tenants, which may hit each other's cached prompts."""

    __slots__ = ("_base", "_owner", "salt")

    def __init__(self, key: bytes, owner: str) -> None:
        self._base = blake2b(owner.encode(), digest_size=SALT_BYTES, key=key, person=b"warmroute owner")
        self._owner = owner
        self.salt = self._base.hexdigest()  # for requests without a salt of their own

    def mix(self, own: str | None) -> str:
        """Return the salt of a request whose client chose the salt `own` (None or empty if it chose none)."""
        if not own:
            return self.salt
        mixed = self._base.copy()
        mixed.update(b"\0" + own.encode(errors="surrogatepass"))
        return mixed.hexdigest()

    def qualify(self, name: str) -> str:
        """Return a client's name qualified by the owner, so that no other owner's name can equal it."""
        return join_names(self._owner, name)
