"""Keeps the cached prompts of tenants apart: a salt of the router's own in every request, and names of their own.

vLLM mixes `cache_salt` into the hash of a prompt's first block, and thereby into all that follow, so blocks with
different salts never match: not in an engine, not in a pool, not in this router's index. A salt that clients choose
isolates nobody who does not choose one, and can be guessed or told; so the router sets it, from a secret, and mixes
the client's own into it. What is known by a name that a client chooses (sessions, stored responses) gets the
owner's name in front, or a tenant could follow another one's session to its engine.

vLLM salts the first block only, so no part of a prompt can be shared while the rest of it is not: tenants that
trust each other share everything (`clients.tenants.*.cache_group`).
"""

from __future__ import annotations

from hashlib import blake2b

SALT_BYTES = 16  # vLLM takes 128 characters, none of `@/\\`: hexadecimal digits are none of these
KEY_BYTES = 32
SEPARATOR = "\x1f"
"""Stands between names that are joined (U+001F, unit separator). No name contains it: tenants and groups are
printable, and a client's name with it in it is none (`prompt/api/lineage.py`). Where people write joined names it
is ` / `.
"""


def join_names(outer: str, inner: str) -> str:
    """Return the name of `inner` in `outer`, which no other two names give."""
    return outer + SEPARATOR + inner


def read_joined(text: str) -> str:
    """Return the name that a person means who wrote ` / ` between joined names."""
    return text.replace(" / ", SEPARATOR)


def derive_salt_key(secret: int) -> bytes:
    """Return the key of all salts. `secret` is the deployment's (64 bits), which clients cannot know."""
    return blake2b(secret.to_bytes(8, "little"), digest_size=KEY_BYTES, person=b"warmroute salts").digest()


class CacheScope:
    """The requests that may hit each other's cached prompts: those of `owner`, a tenant or a group of them."""

    __slots__ = ("_base", "_owner", "salt")

    def __init__(self, key: bytes, owner: str) -> None:
        self._base = blake2b(owner.encode(), digest_size=SALT_BYTES, key=key, person=b"warmroute owner")
        self._owner = owner
        self.salt = self._base.hexdigest()  # of requests without one of their own

    def mix(self, own: str | None) -> str:
        """Return the salt of a request whose client chose `own`; None or empty: none."""
        if not own:
            return self.salt
        mixed = self._base.copy()
        mixed.update(b"\0" + own.encode(errors="surrogatepass"))
        return mixed.hexdigest()

    def qualify(self, name: str) -> str:
        """Return a name that a client chose as one that no other owner's name can equal."""
        return join_names(self._owner, name)
