"""Explains why a block that an engine put into the pool is not found there, by comparing its keys with ours.

The hash may be right and the rest of a key wrong (prefix, model name, ranks): nothing else shows it, since a missing
key looks like any block that was never stored. Needs a listing of the pool, so it is used rarely.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from router.backends.mooncake.keys import KeyForm, PoolKey, parse_key
from router.config.sections.kv_store import PoolModelConfig
from router.kvcache.engine_hashes import Digest


def diagnose(name: str, form: KeyForm, keys_in_pool: Iterable[str], digest: Digest) -> str | None:
    """Return one line that names every part of `pool.models.<name>` to change, and its new value.

    `digest` is of a block that an engine put there, all of whose parts have arrived. `None`: the listing does not
    contain this block, or exactly our keys.
    """
    ending = f"@{digest.hex()}"
    found = [parsed for key in keys_in_pool if key.endswith(ending) and (parsed := parse_key(key)) is not None]
    if not found:
        return None
    nearest = _name(max(found, key=lambda key: _likeness(key, form.parts[0])))
    theirs = [key for key in found if _name(key) == nearest]  # other keys may belong to other fleets
    changes = "; ".join((*_names(theirs[0], form.parts[0]), *_ranks(theirs, form)))
    return f"pool.models.{name}: the engines' blocks have other keys, as {theirs[0]}: {changes}" if changes else None


def _name(key: PoolKey) -> tuple[str, str, str]:
    return key.cache_prefix, key.model, key.namespace


def _likeness(key: PoolKey, ours: PoolKey) -> tuple[bool, int]:
    """Rank a key's similarity to ours: other fleets' blocks have other names, too, and the model is rarely misspelt."""
    return key.model == ours.model, sum(a == b for a, b in zip(_name(key), _name(ours), strict=True))


def _names(there: PoolKey, here: PoolKey) -> Iterator[str]:
    for setting, its, ours in zip(("cache_prefix", "name", "namespace"), _name(there), _name(here), strict=True):
        if its != ours:
            yield f"set {setting} to '{its}' (not '{ours}')"


def _ranks(theirs: Sequence[PoolKey], form: KeyForm) -> Iterator[str]:
    for setting, part in (
        ("tensor_parallel", "tp_rank"),
        ("prefill_context_parallel", "pcp"),
        ("decode_context_parallel", "dcp"),
        ("pipeline_parallel", "pp_rank"),
        ("groups", "group"),
    ):
        there, here = (1 + max(getattr(key, part) for key in keys) for keys in (theirs, form.parts))
        if there == here:
            continue
        if part == "tp_rank":
            yield _shards(there, form.config)
        else:
            yield f"set {setting} to {there} (not {here})"


def _shards(there: int, config: PoolModelConfig) -> str:
    """Suggest a setting where a block has `there` parts along the tensor parallel ranks."""
    if there <= config.tensor_parallel and config.kv_heads is not None:
        return f"set kv_heads to {there} (not {config.kv_heads})"
    line = f"set tensor_parallel to {there} (not {config.tensor_parallel})"
    if there < config.tensor_parallel:
        line += f", or kv_heads to {there} if the ranks beyond hold copies"
    return line
