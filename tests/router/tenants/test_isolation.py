"""Salts that keep the caches of tenants apart."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.tenants.isolation import CacheScope, derive_salt_key, read_joined

KEY = derive_salt_key(1)
NAMES = st.text(min_size=1, max_size=20)
OWNERS = NAMES.filter(str.isprintable)


def scope(owner: str, key: bytes = KEY) -> CacheScope:
    return CacheScope(key, owner)


@given(NAMES, NAMES, st.none() | st.text(max_size=20), st.none() | st.text(max_size=20))
def test_only_the_same_owner_with_the_same_salt_gets_the_same_one(
    one: str, other: str, salt: str | None, another: str | None
) -> None:
    same = one == other and (salt or None) == (another or None)
    assert (scope(one).mix(salt) == scope(other).mix(another)) is same


def test_salts_depend_on_the_deployments_secret() -> None:
    assert scope("a").salt != scope("a", derive_salt_key(2)).salt
    assert scope("a").salt == scope("a", derive_salt_key(1)).salt  # after a restart, and at every replica


@pytest.mark.parametrize("own", [None, "", "s", "a/b@c\\", "\ud800"])
def test_vllm_takes_every_salt(own: str | None) -> None:
    salt = scope("tenant a").mix(own)
    assert 0 < len(salt) <= 128
    assert not set(salt) & set("@/\\\0")


@given(OWNERS, OWNERS, NAMES, NAMES)
@example("tenant org", "tenant org/team", "team/s", "s")
@example("tenant a", "tenant a", "\x1fs", "s")
def test_names_of_two_owners_never_meet(one: str, other: str, name: str, another: str) -> None:
    same = one == other and name == another
    assert (scope(one).qualify(name) == scope(other).qualify(another)) is same


def test_people_write_joined_names_with_a_slash() -> None:
    assert read_joined("tenant org/team / s") == scope("tenant org/team").qualify("s")
