from __future__ import annotations

from router.features.tenants.token_counts import TokenCounts
from router.features.tenants.usage import UsageRow
from router.features.tenants.usage_book import UsageBook

KEY, OTHER = (20_000, "acme", "m"), (20_000, "acme", "")


def test_sums_are_taken_once_and_can_be_added_again() -> None:
    book = UsageBook()
    book.add_request(KEY, TokenCounts(10, 5, 2), 0.5)
    book.add_request(KEY, TokenCounts(1, 0, 1), 0.25)
    book.add_refusal(KEY, "concurrent")
    book.add_refusal(OTHER, "forbidden")
    taken = book.take()
    assert taken == [
        UsageRow(*KEY, 2, TokenCounts(11, 5, 3), 0.75, {"concurrent": 1}),
        UsageRow(*OTHER, refused={"forbidden": 1}),
    ]
    assert book.take() == []
    for row in [*taken, *taken]:
        book.add(row)
    assert book.take()[0] == UsageRow(*KEY, 4, TokenCounts(22, 10, 6), 1.5, {"concurrent": 2})
    assert taken[0].refused == {"concurrent": 1}
