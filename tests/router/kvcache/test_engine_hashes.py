"""Against vLLM's own hashes: the vectors of record (made by its functions, block size 16) and recorded frames."""

from __future__ import annotations

import pickle
import struct
from array import array
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.config.sections.pool import HashAlgo
from router.kvcache.engine_hashes import CACHED_IDS, DEFAULT_SEED, Adapter, EngineChain
from tests.paths import FRAMES

ADAPTER = ("lora1", "/tmp/stack/models/lora1")  # as the recorded engine was started with it
IDS = array("I", range(1, 33))  # blocks 1..16 and 17..32

VECTORS: list[tuple[HashAlgo, str, str, str, str, int]] = [
    (
        "sha256",
        "vllm-none-hash",
        "066b1e8987e027138e98701c46128929378935f9b6cd1549105ae6b4f0d71198",
        "7b255da405e1d722823892e4fef187b4d8ac78215d7f0dd2137bb037547f4caf",
        "8e717becdc2054b7a3223b7b844f462c0db0ac86287b752b16d077ad0843c577",
        1403909460543360175,
    ),
    (
        "sha256",
        "0",
        "1973e23848344dc43a988a9b478663803cfffe1243480253f9a3cf004b14aa7c",
        "bea72b7d33de03c1aa715efbb492d0e0d3801f00c1f985756896072ae8b31325",
        "2744667f6645310ff670b0c5d7c64987ffa5940de5a549f17d92dcbb5b559e31",
        7536218907325174565,
    ),
    (
        "sha256_cbor",
        "vllm-none-hash",
        "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0",
        "cd7c51bc5a8fc8643f383a2b9e01522fba7473c669e9270c7b0bf7bf7fd01682",
        "2533ea50426b36e9e4d68296cac6bce8cf602e46957d0fe40b368b33d87bf3bf",
        8866452693264111234,
    ),
    (
        "sha256_cbor",
        "0",
        "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e",
        "202da172482d928bbc42ab25b0151e2b895f13f41002e27b2ceabcfae6d332ea",
        "4a0a393805c6d2f0ed831000d41bb65980336c4c04895d5e26470bbec927f5bf",
        3236607068019569386,
    ),
    (
        "xxhash",
        "0",
        "6fb31cc38bba6066183f7f2104b9c051",
        "6ba7d7fc1608e5f0a4612b1b0c87458f",
        "dbd92304eaa08219c5cf8f4ce18166b6",
        11844795890135418255,
    ),
    (
        "xxhash_cbor",
        "0",
        "1ebe36576dcb573f26b99533a20aaeca",
        "c2d7a75070fc6d6b0c3fb0af456c1009",
        "93add93233ea572fb2e2b1685bac6f8d",
        882618318818381833,
    ),
]


@pytest.mark.parametrize(("algo", "seed", "root", "first", "second", "label"), VECTORS)
def test_vectors(algo: HashAlgo, seed: str, root: str, first: str, second: str, label: int) -> None:
    chain = EngineChain(algo, seed)
    assert chain.root.hex() == root
    assert [digest.hex() for digest in chain.chain(None, IDS, 16)] == [first, second]
    assert chain.event_hash(bytes.fromhex(first)) == label


SALTED = [
    ("sha256", True, "67b47fff1fdd4b5d223a715393ac45d1f1159748b35948c1cc5af6f21812adb0"),
    ("sha256", False, "a53ac8bde370bb4c1c264c15caf98ed8d756b0ca96151a5b47592848baa7f631"),
    ("sha256_cbor", True, "d4fdd9f3dab139eafd01550f43781481256e9531b59b55ea4656df8f49124fcf"),
    ("sha256_cbor", False, "84ab0ef3dc094fc39519521dd81c13715e990c1d39795a4e040cfbeb178d35b6"),
]


@pytest.mark.parametrize(("algo", "tagged", "first"), SALTED)
def test_a_salt_counts_on_the_first_block_and_through_the_chain(algo: HashAlgo, tagged: bool, first: str) -> None:
    chain = EngineChain(algo, tagged=tagged)
    salted = chain.chain(None, IDS, 16, salt="tenant-a")
    assert salted[0].hex() == first
    assert salted[1] != chain.chain(None, IDS, 16)[1]
    assert salted[1:] == chain.chain(salted[0], IDS[16:], 16, salt="tenant-a") == chain.chain(salted[0], IDS[16:], 16)
    assert chain.chain(None, IDS, 16, salt="") == chain.chain(None, IDS, 16)


def test_without_a_seed_each_algorithm_does_as_vllm() -> None:
    assert EngineChain.from_config("sha256") == EngineChain("sha256", DEFAULT_SEED)
    assert EngineChain.from_config("sha256_cbor", "0", False) == EngineChain("sha256_cbor", "0", False)
    assert (
        EngineChain.from_config("xxhash") is EngineChain.from_config("xxhash_cbor") is None
    )  # random in every process
    assert EngineChain.from_config("xxhash", "0") == EngineChain("xxhash", "0")


def test_chains_are_equal_by_what_they_compute() -> None:
    chains = {
        EngineChain(algo, seed, tagged) for algo in get_args(HashAlgo) for seed in "01" for tagged in (True, False)
    }
    assert len(chains) == 16
    assert EngineChain("sha256") in {EngineChain("sha256"), EngineChain("xxhash", "0")}
    assert EngineChain("sha256") != "sha256"


def test_an_adapter_enters_every_block_by_name_and_path_before_the_salt() -> None:
    """Written out as vLLM does it, in pickle; names that are one object here are two in an engine."""
    chain, block = EngineChain("sha256"), tuple(range(1, 17))
    same = "adapter"
    extras = (("lora", same, same.encode().decode()), ("cache_salt", "s"))
    first = chain._hash(pickle.dumps((chain.root, block, extras), protocol=5))
    second = chain._hash(pickle.dumps((first, tuple(range(17, 33)), extras[:1]), protocol=5))
    assert chain.chain(None, IDS, 16, (same, same), "s") == [first, second]
    bare = EngineChain("sha256", tagged=False)
    first = chain._hash(pickle.dumps((chain.root, block, (same, "s")), protocol=5))
    assert bare.chain(None, IDS, 16, (same, "/elsewhere"), "s")[0] == first


def test_cbor_numbers_are_as_short_as_possible() -> None:
    """RFC 8949: up to 23 in the first byte, then 1, 2, 4 more."""
    chain = EngineChain("sha256_cbor")
    numbers = {23: "17", 24: "1818", 255: "18ff", 256: "190100", 65535: "19ffff", 65536: "1a00010000"}
    numbers |= {2**32 - 1: "1affffffff", CACHED_IDS: "1a00040000"}
    for number, encoded in numbers.items():
        expected = chain._hash(b"\x83\x58\x20" + chain.root + b"\x81" + bytes.fromhex(encoded) + b"\xf6")
        assert chain.chain(None, [number], 1) == [expected], number


@given(
    st.sampled_from([EngineChain(algo, "0", tagged) for algo in get_args(HashAlgo) for tagged in (True, False)]),
    st.lists(st.integers(0, 2**32 - 1), max_size=60),
    st.integers(1, 30),
    st.integers(0, 60),
    st.none() | st.tuples(st.text(max_size=3), st.text(max_size=3)),
    st.none() | st.text(max_size=3),
)
def test_a_chain_in_pieces_is_the_chain_at_once(
    chain: EngineChain, ids: list[int], size: int, cut: int, adapter: Adapter | None, salt: str | None
) -> None:
    whole = chain.chain(None, array("I", ids), size, adapter, salt)
    assert len(whole) == len(ids) // size
    cut = min(cut, len(whole))
    head = chain.chain(None, ids[: cut * size], size, adapter, salt)
    assert head + chain.chain(head[-1] if head else None, ids[cut * size :], size, adapter, salt) == whole


def recorded(run: str) -> Iterator[dict[str, Any]]:
    """Every store of a run of a real vLLM 0.32, in order."""
    for path in sorted(FRAMES.glob(f"{run}-*.bin")):
        if "replay" not in path.name:
            for payload in payloads(path.read_bytes()):
                yield from (event for event in msgspec.msgpack.decode(payload)[1] if event["type"] == "BlockStored")


def payloads(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        (count,) = struct.unpack_from("<I", data, at)
        at += 4
        for part in range(count):
            (size,) = struct.unpack_from("<I", data, at)
            at += 4 + size
            if part == 2:
                yield data[at - size : at]


@pytest.mark.parametrize(
    ("run", "algo", "blocks"), [("t1", "sha256", 39), ("t2", "sha256_cbor", 172), ("pool", "sha256", 32)]
)
def test_every_recorded_block_has_the_hash_we_compute(run: str, algo: HashAlgo, blocks: int) -> None:
    """The salted and the adapter's among them. `t1` tells the low 64 bits of a digest, the others all of it."""
    chain, digests = EngineChain(algo, "0"), dict[Any, bytes]()
    seen = 0
    for event in recorded(run):
        adapter = ADAPTER if event["lora_name"] else None
        extra = (event.get("extra_keys") or [None])[0]
        salt = extra[-1] if extra and adapter is None else None
        parent = None if event["parent_block_hash"] is None else digests[event["parent_block_hash"]]
        ours = chain.chain(parent, array("I", event["token_ids"]), event["block_size"], adapter, salt)
        told = event["block_hashes"]
        assert [d if run != "t1" else chain.event_hash(d) for d in ours] == told
        digests |= zip(told, ours, strict=True)
        seen += len(ours)
    assert seen == blocks
