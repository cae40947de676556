"""The secrets that the configuration names, and the secret that seeds block keys."""

from __future__ import annotations

import os
import secrets
from hashlib import blake2b
from pathlib import Path

from router.config import schema
from router.config.sections.replicas import ReplicasConfig
from router.kvcache import snapshots
from router.kvcache.snapshot_format import SavedIndex


def read_replicas_secret(config: ReplicasConfig) -> bytes:
    """Return the secret that all routers in front of one fleet share."""
    return os.fsencode(os.environ[config.secret_env])


def load_snapshot(config: schema.Config, *, whole: bool = True) -> SavedIndex | None:
    """Return the last index snapshot, with its targets only if `whole`; None if there is no snapshot."""
    file = config.index.snapshot_file
    return None if file is None else snapshots.load(Path(file), whole=whole)


def resolve_key_secret(config: schema.Config, saved: SavedIndex | None = None) -> int:
    """Return the 64-bit secret that seeds block keys and that clients cannot know.

    `index.key_secret_env` takes precedence over `replicas.secret_env` (so that replicas name sessions by the same
    pseudonyms), and `replicas.secret_env` over the snapshot's secret; without all three the secret is random.
    """
    name = config.index.key_secret_env
    if name is None and config.replicas is not None:
        keyed = blake2b(read_replicas_secret(config.replicas), digest_size=8, person=b"warmroute index")
        return int.from_bytes(keyed.digest(), "little")
    if name is None and saved is not None:
        return saved.secret
    secret = secrets.token_bytes() if name is None else os.fsencode(os.environ[name])
    return int.from_bytes(blake2b(secret, digest_size=8).digest(), "little")
