from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from typing import get_args

import pytest

from router.backends.vllm.kv_events import decode
from router.config.sections.pool import HashAlgo, PoolModelConfig
from router.features.pool.hash_detection import AGREE, HashDetection
from router.kvcache.engine_hashes import EngineChain
from router.kvcache.events import BlocksStored, EventBatch, Tier
from tests.paths import FRAMES


def stored(
    chain: EngineChain,
    first: int = 1,
    *,
    size: int = 4,
    adapter: str | None = None,
    salt: str | None = None,
    extras: tuple[bytes, ...] | None = None,
) -> BlocksStored:
    """Two blocks from token 0 on, as an engine that hashes so announces them."""
    ids = array("I", range(first, first + 2 * size))
    path = None if adapter is None else (adapter, "/adapters/" + adapter)
    hashes = [chain.event_hash(digest) for digest in chain.chain(None, ids, size, path, salt)]
    return BlocksStored(hashes, None, ids, size, Tier.GPU, 0, adapter, salt, extras)


def calibration(**config: object) -> HashDetection:
    return HashDetection("m", PoolModelConfig.model_validate(config))


def told(events: list[BlocksStored], **config: object) -> HashDetection:
    made = calibration(**config)
    for event in events:
        made.observe(event)
    return made


def test_before_anything_is_known_the_chain_is_a_guess() -> None:
    waiting = calibration()
    assert (waiting.state, waiting.chain, waiting.trouble) == ("waiting", EngineChain("sha256"), None)
    explicit = calibration(hash_algo="xxhash_cbor", hash_seed="7", extra_keys="bare")
    assert (explicit.state, explicit.chain) == ("waiting", EngineChain("xxhash_cbor", "7", False))


def test_xxhash_without_a_seed_cannot_even_be_guessed() -> None:
    waiting = calibration(hash_algo="xxhash")
    assert (waiting.state, waiting.chain) == ("waiting", None)
    assert waiting.trouble == (
        "pool.models.m.hash_seed: is needed with xxhash, by which each engine otherwise hashes from random bytes: "
        "start the engines with PYTHONHASHSEED=0, and set it to '0'"
    )
    waiting.observe(stored(EngineChain("xxhash", "0")))  # they have one
    assert (waiting.state, waiting.chain, waiting.trouble) == ("proved", EngineChain("xxhash", "0"), None)


@pytest.mark.parametrize("algo", get_args(HashAlgo))
@pytest.mark.parametrize("seed", [None, "0", "5"])
@pytest.mark.parametrize("tagged", [True, False])
def test_auto_finds_how_the_engines_hash(algo: HashAlgo, seed: str | None, tagged: bool) -> None:
    chain = EngineChain.from_config(algo, seed, tagged)
    if chain is None:
        return
    found = calibration(hash_seed="5" if seed == "5" else None)
    found.observe(stored(chain))
    assert found.state == "proved"
    assert found.chain == EngineChain(algo, chain.seed)  # tagged, until a salted event tells
    found.observe(stored(chain, salt="s"))
    assert (found.state, found.chain, found.trouble) == ("proved", chain, None)
    found.observe(stored(chain, 2))
    assert (found.state, found.chain) == ("proved", chain)


def test_events_that_do_not_tell_all_that_was_hashed_prove_nothing() -> None:
    chain = EngineChain("sha256")
    waiting = told([stored(chain, adapter="lora"), stored(chain, extras=(b"image", b""))])
    assert waiting.state == "waiting"
    waiting.observe(stored(chain, extras=(b"", b"image")))
    assert waiting.state == "proved"


@pytest.mark.parametrize(
    ("config", "chain", "trouble"),
    [
        (
            {"hash_algo": "sha256_cbor"},
            EngineChain("sha256"),
            "pool.models.m.hash_algo: sha256_cbor, but the engines hash by sha256: set it, or start the engines with "
            "--prefix-caching-hash-algo sha256_cbor",
        ),
        (
            {"hash_seed": "3"},
            EngineChain("sha256"),
            "pool.models.m.hash_seed: '3', but the engines hash without PYTHONHASHSEED: leave it out, or start the "
            "engines with PYTHONHASHSEED=3",
        ),
        (
            {"hash_seed": "3"},
            EngineChain("sha256_cbor", "0"),
            "pool.models.m.hash_seed: '3', but the engines hash with PYTHONHASHSEED=0: set it to '0', or start the "
            "engines with PYTHONHASHSEED=3",
        ),
        (
            {"block_tokens": 16},
            EngineChain("sha256"),
            "pool.models.m.block_tokens: 16, but the engines store blocks of 4 tokens: set it to 4, or start the "
            "engines with --block-size 16",
        ),
        (
            {"extra_keys": "tagged"},
            EngineChain("sha256", tagged=False),
            "pool.models.m.extra_keys: tagged, but the engines hash salts bare (vLLM before 0.31): set it to bare",
        ),
        (
            {},
            EngineChain("sha256", "31337"),
            "pool.models.m.hash_seed: the engines' block hashes fit no known algorithm, neither without "
            "PYTHONHASHSEED nor with 0, 1, 123, 1234, 42, random: set it to the engines' PYTHONHASHSEED (xxhash and "
            "vLLM before 0.29 need one that is the same on all)",
        ),
    ],
)
def test_what_is_wrong_is_named_with_what_to_set(config: dict[str, object], chain: EngineChain, trouble: str) -> None:
    refuted = told([stored(chain, salt="s")], **config)
    assert (refuted.state, refuted.chain, refuted.trouble) == ("refuted", None, trouble)


def test_all_that_is_wrong_is_named_at_once() -> None:
    refuted = told([stored(EngineChain("xxhash", "0"))], hash_algo="sha256", hash_seed="3")
    assert refuted.trouble is not None
    assert [part.split(":")[0] for part in refuted.trouble.split("; ")] == [
        "pool.models.m.hash_algo",
        "pool.models.m.hash_seed",
    ]


def test_an_explicit_config_that_is_right_is_proved() -> None:
    config = {"hash_algo": "sha256_cbor", "hash_seed": "0", "extra_keys": "bare", "block_tokens": 4}
    proved = told([stored(EngineChain("sha256_cbor", "0"))], **config)
    assert (proved.state, proved.chain) == ("proved", EngineChain("sha256_cbor", "0", False))


def test_a_contradiction_takes_the_proof_away_until_enough_agree() -> None:
    old, new = EngineChain("sha256"), EngineChain("sha256", "1")
    changed = told([stored(old), stored(new)])
    assert (changed.state, changed.chain) == ("refuted", None)
    assert changed.trouble == (
        "pool.models.m: the engines do not hash alike (blocks of 4 tokens by sha256 with PYTHONHASHSEED=1; before "
        "that blocks of 4 tokens by sha256 without PYTHONHASHSEED) and cannot share the pool: start all with the same "
        "--prefix-caching-hash-algo, PYTHONHASHSEED, --block-size and version"
    )
    for _ in range(AGREE - 1):
        changed.observe(stored(new, 2))
        assert changed.state == "refuted"
    changed.observe(stored(new, 3))
    assert (changed.state, changed.chain, changed.trouble) == ("proved", new, None)


def test_engines_that_go_on_to_disagree_prove_nothing() -> None:
    a, b = EngineChain("sha256"), EngineChain("sha256_cbor")
    mixed = told([stored(chain, first) for first in range(1, 10) for chain in (a, b)])
    assert mixed.state == "refuted"
    for _ in range(AGREE):  # b is gone
        mixed.observe(stored(a))
        assert mixed.state == "refuted"
    mixed.observe(stored(a))
    assert (mixed.state, mixed.chain) == ("proved", a)


def test_engines_restarted_otherwise_than_configured() -> None:
    """The config's fault is named before the change: setting it is what helps."""
    right, wrong = EngineChain("sha256_cbor"), EngineChain("sha256")
    changed = told([stored(right), stored(wrong)], hash_algo="sha256_cbor")
    assert changed.trouble is not None
    assert changed.trouble.startswith("pool.models.m.hash_algo: sha256_cbor, but the engines hash by sha256: set it")
    for _ in range(2 * AGREE):
        changed.observe(stored(wrong))
    assert changed.state == "refuted"
    for _ in range(AGREE + 1):
        changed.observe(stored(right))
    assert (changed.state, changed.chain) == ("proved", right)


@pytest.mark.parametrize("other", [{"size": 8}, {"chain": EngineChain("sha256", "31337")}])
def test_other_block_sizes_and_unknown_seeds_contradict_too(other: dict[str, object]) -> None:
    chain = EngineChain("sha256")
    mixed = told([stored(chain), stored(**{"chain": chain, **other})])  # type: ignore[arg-type]
    assert mixed.state == "refuted"
    for _ in range(AGREE + 1):
        mixed.observe(stored(chain))
    assert mixed.state == "proved"


def test_salts_can_show_that_versions_are_mixed() -> None:
    new, old = EngineChain("sha256"), EngineChain("sha256", tagged=False)
    mixed = told([stored(new), stored(new, salt="s"), stored(old, salt="s")])
    assert mixed.state == "refuted"
    assert mixed.trouble is not None
    assert "salts bare; before that blocks of 4 tokens by sha256 without PYTHONHASHSEED, salts tagged" in mixed.trouble


def recorded(run: str) -> Iterator[BlocksStored]:
    """Stores of a real vLLM 0.32 that begin at token 0."""
    for path in sorted(FRAMES.glob(f"{run}-*.bin")):
        if "replay" in path.name:
            continue
        data, at = path.read_bytes(), 0
        while at < len(data):
            (count,) = struct.unpack_from("<I", data, at)
            at, parts = at + 4, list[bytes]()
            for _ in range(count):
                (size,) = struct.unpack_from("<I", data, at)
                parts.append(data[at + 4 : at + 4 + size])
                at += 4 + size
            batch = decode(parts)
            assert isinstance(batch, EventBatch)
            yield from (event for event in batch.events if isinstance(event, BlocksStored) and event.parent is None)


@pytest.mark.parametrize(("run", "algo", "size"), [("t1", "sha256", 128), ("t2", "sha256_cbor", 32)])
def test_recorded_engines_prove_themselves(run: str, algo: HashAlgo, size: int) -> None:
    """PYTHONHASHSEED was 0, a salted request is among them; the other run contradicts."""
    found = calibration(block_tokens=size)
    for event in recorded(run):
        found.observe(event)
        assert (found.state, found.chain) in (("proved", EngineChain(algo, "0")), ("waiting", EngineChain("sha256")))
    assert found.state == "proved"
    found.observe(next(recorded("t2" if run == "t1" else "t1")))
    assert found.state == "refuted"
