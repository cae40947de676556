"""Against vLLM's own hashes, as listed in its documentation of record (computed by its functions, block size 16)."""

from __future__ import annotations

from router.sim import hashes


def chain(seed: str, salt: str | None = None) -> list[bytes]:
    parent, digests = hashes.root(seed), []
    for index in range(2):
        tokens = range(1 + 16 * index, 17 + 16 * index)
        parent = hashes.block(parent, tokens, hashes.extras(index, None, salt))
        digests.append(parent)
    return digests


def test_default_seed() -> None:
    assert hashes.root().hex() == "066b1e8987e027138e98701c46128929378935f9b6cd1549105ae6b4f0d71198"
    assert [digest.hex() for digest in chain(hashes.SEED)] == [
        "7b255da405e1d722823892e4fef187b4d8ac78215d7f0dd2137bb037547f4caf",
        "8e717becdc2054b7a3223b7b844f462c0db0ac86287b752b16d077ad0843c577",
    ]


def test_label_is_the_last_eight_bytes() -> None:
    assert hashes.label(chain("0")[0]) == 7536218907325174565


def test_salt_counts_on_the_first_block_and_through_the_chain() -> None:
    salted = chain(hashes.SEED, "tenant-a")
    assert salted[0].hex() == "67b47fff1fdd4b5d223a715393ac45d1f1159748b35948c1cc5af6f21812adb0"
    assert salted[1] != chain(hashes.SEED)[1]


def test_extras_of_an_adapter_are_on_every_block_and_before_the_salt() -> None:
    adapter = ("sql", "/adapters/sql")
    assert hashes.extras(0, adapter, "s") == (("lora", *adapter), ("cache_salt", "s"))
    assert hashes.extras(1, adapter, "s") == (("lora", *adapter),)
    assert hashes.extras(1, None, "s") is None
