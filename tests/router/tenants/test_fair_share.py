"""The rule of Choudhury and Hahne: at most four times what is free."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.tenants.fair_share import SHARE, FairShare, Shortage


def take_all(shares: FairShare, client: str) -> int:
    """What one client gets that takes one after another."""
    before = shares.held(client)
    while shares.take(client, 1) is None:
        pass
    return shares.held(client) - before


def test_one_client_gets_four_fifths_and_the_next_finds_room():
    shares = FairShare(1000)
    assert take_all(shares, "a") == 800  # 800 <= 4 * 200
    assert take_all(shares, "b") == 160  # 160 <= 4 * 40
    assert take_all(shares, "c") == 32
    assert shares.take("d", 1) is None
    assert (shares.check("a", 1), shares.taken) == (Shortage.SHARE, 993)


def test_many_that_take_in_turn_get_the_same():
    shares, clients = FairShare(1000), [f"c{n}" for n in range(10)]
    while None in [shares.take(client, 1) for client in clients]:
        pass
    assert {shares.held(client) for client in clients} == {97, 98}  # 1000 / (10 + 1/4)


def test_who_holds_nothing_gets_what_there_is():
    shares = FairShare(10)
    assert shares.take("a", 10) is None
    assert shares.take("b", 1) is Shortage.TOTAL
    assert FairShare(1).take("a", 1) is None


def test_a_client_that_gave_all_back_is_forgotten():
    shares = FairShare(10)
    shares.take("a", 3)
    shares.give_back("a", 1)
    assert (shares.taken, shares.held("a")) == (2, 2)
    shares.give_back("a", 2)
    assert (shares.taken, shares.held("a"), shares._held) == (0, 0, {})


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 40), st.booleans()), max_size=80))
def test_the_rule_holds_after_every_step(steps):
    shares, held = FairShare(100), dict.fromkeys("abcd", 0)
    for client, amount, back in steps:
        if back:
            amount = min(amount, held[client])
            if amount:
                shares.give_back(client, amount)
                held[client] -= amount
            continue
        shortage, free = shares.take(client, amount), 100 - sum(held.values()) - amount
        if shortage is None:
            assert free >= 0
            assert held[client] == 0 or held[client] + amount <= SHARE * free
            held[client] += amount
        else:
            assert free < 0 if shortage is Shortage.TOTAL else held[client] + amount > SHARE * free
        assert shares.taken == sum(held.values())
        assert shares._held == {client: amount for client, amount in held.items() if amount}
