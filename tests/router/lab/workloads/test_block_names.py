from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.kvcache.events import Key
from router.lab.workloads.block_names import BlockNameKeyring, NamedTokens, SessionContext
from router.lab.workloads.model import Span, make_token_ids

BLOCK = 16
spans = st.lists(st.builds(Span, st.sampled_from([1, 2, -3]), st.integers(1, 70)), max_size=6)


def said(spans: Sequence[Span]) -> SessionContext:
    context = SessionContext(BLOCK)
    for span in spans:
        context.add(span)
    return context


def ids(spans: Sequence[Span]) -> list[int]:
    return [id for span in spans for id in make_token_ids(Span(span.source & 0xFF, span.tokens), 0, range(1 << 30))]


def same_blocks(one: Sequence[int], other: Sequence[int]) -> int:
    """Full blocks that two prompts have in common, token by token."""
    common = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return common // BLOCK


def same_names(one: Sequence[int], other: Sequence[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@given(spans, spans)
def test_names_are_shared_at_most_where_tokens_are(one: list[Span], other: list[Span]) -> None:
    """At most: the same tokens in other spans get other names, as a workload never writes them in two ways."""
    assert same_names(said(one).names, said(other).names) <= same_blocks(ids(one), ids(other))


@given(spans, spans)
def test_what_begins_with_the_same_spans_shares_their_full_blocks(common: list[Span], rest: list[Span]) -> None:
    shared = sum(span.tokens for span in common) // BLOCK
    assert same_names(said(common).names, said([*common, *rest]).names) == shared


@given(spans, st.integers(0, 300), spans)
def test_a_context_that_is_cut_goes_on_as_one_that_never_was_longer(
    before: list[Span], kept: int, after: list[Span]
) -> None:
    context = said(before)
    context.truncate(kept)
    left, again = kept, SessionContext(BLOCK)
    for span in before:
        if (take := min(span.tokens, left)) > 0:
            again.add(Span(span.source, take))
        left -= take
    for span in after:
        context.add(span)
        again.add(span)
    assert context.names == again.names
    assert context.tokens == again.tokens


def test_tokens_that_nobody_spells_have_a_length_and_are_cut_at_blocks() -> None:
    tokens = NamedTokens([7, 8, 9], BLOCK, more=5)
    assert len(tokens) == 3 * BLOCK + 5
    assert list(tokens[BLOCK:].names) == [8, 9]
    with pytest.raises(TypeError, match="sliced at block boundaries only"):
        tokens[1:]
    with pytest.raises(TypeError, match="no ids"):
        tokens[0]


def test_the_keyring_takes_names_for_keys() -> None:
    assert BlockNameKeyring(0).chain(Key(1), NamedTokens([7, 8], BLOCK), BLOCK) == [7, 8]
