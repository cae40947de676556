"""Distinct prompt tokens of live programs, against a set of all keys of all of them at each target."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from router.features.admission.shared_prefixes import PromptPrefix, SharedPrefixes, sample_prefix
from router.kvcache.events import Key
from router.kvcache.tokenized_prompt import TokenizedPrompt
from scorers.admission.contract import AgentProgram

STEP = 512
SIZES = st.lists(st.integers(0, 2), max_size=6)
STEPS = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["a/0", "b/0", None]), SIZES), max_size=40)


def a_prefix(branches: list[int]) -> PromptPrefix:
    """Chained keys: each is a function of all branches up to it."""
    keys, so_far = array("Q"), 1
    for branch in branches:
        so_far = so_far * 3 + branch
        keys.append(so_far)
    return PromptPrefix(keys.tobytes(), STEP)


@given(STEPS)
def test_own_tokens_add_up_to_what_a_set_counts(steps: list[tuple[int, str | None, list[int]]]) -> None:
    programs = [AgentProgram(b"%d" % number) for number in range(6)]
    known = {}  # what a rule was told
    books = SharedPrefixes(lambda program: known.update({program: program.shared_tokens}))
    held: dict[AgentProgram, tuple[str, bytes]] = {}
    for number, target, branches in steps:
        program = programs[number]
        if target is None:
            books.remove(program)
            held.pop(program, None)
        else:
            prefix = a_prefix(branches)
            books.place(program, target, prefix)
            held.pop(program, None)
            if branches:
                held[program] = target, prefix.keys
        known[program] = program.shared_tokens
        program.context_tokens = len(held[program][1]) // 8 * STEP if program in held else 0
        for place in ("a/0", "b/0"):
            here = [keys for where, keys in held.values() if where == place]
            distinct = {key for keys in here for key in memoryview(keys).cast("Q")}
            own = sum(program.own_tokens for program, (where, _) in held.items() if where == place)
            assert own == len(distinct) * STEP
        assert all(known.get(program) == program.shared_tokens for program in programs)
    for program in programs:
        books.remove(program)
    assert not len(books)
    assert not books._targets, "nothing is kept of targets without programs"


def test_a_key_every_512_tokens_is_kept() -> None:
    """Blocks of 16: every 32nd key. 100 blocks are three steps of 512 and 64 tokens more."""
    keys = [Key(number) for number in range(100)]
    tokens = TokenizedPrompt(array("I"), True, "given", {16: keys, 128: keys[:12]}, 0.0, 0.0)
    prefix = sample_prefix(tokens)
    assert prefix is not None
    assert prefix.step_tokens == 512
    assert list(memoryview(prefix.keys).cast("Q")) == [31, 63, 95]


def test_unknown_keys_share_nothing() -> None:
    assert sample_prefix(TokenizedPrompt(array("I"), True, "given", {}, 0.0, 0.0)) is None
    books, program = SharedPrefixes(lambda program: None), AgentProgram(b"a")
    books.place(program, "a/0", None)
    assert program.shared_tokens is None
    program.context_tokens = 700
    assert program.own_tokens == 700
