from scorers.memory import remember


def test_the_entry_stored_longest_ago_is_dropped() -> None:
    known: dict[str, int] = {}
    for name in ("a", "b", "a", "c"):  # a is stored again, so b is the oldest
        remember(known, name, 1, most=2)
    assert list(known) == ["a", "c"]
