from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.lab.emulator.vocabulary import DATA, SPECIAL, Vocabulary
from tests.router.lab.emulator import make_tokenizer

WORDS = Vocabulary()


def test_ships_small() -> None:
    assert (DATA / "tokenizer.json").stat().st_size < 300_000
    assert len(WORDS.words) > 1000


@given(st.text())
def test_any_text_survives(text: str) -> None:
    assert WORDS.decode(WORDS.encode(text)) == text


@given(st.lists(st.sampled_from(WORDS.words), max_size=30))
def test_answers_tokenise_to_what_was_generated_behind_any_template(tokens: list[int]) -> None:
    before = WORDS.encode("<|im_start|>assistant\n")
    answer = "".join(WORDS.text(token) for token in tokens)
    assert WORDS.encode(f"<|im_start|>assistant\n{answer}<|im_end|>\n")[: len(before) + len(tokens)] == before + tokens


def test_special_tokens_are_tokens_and_say_nothing() -> None:
    assert WORDS.encode("".join(SPECIAL)) == [0, 1, 2]
    assert [WORDS.text(id) for id in range(3)] == ["", "", ""]
    assert WORDS.end_token == 2


def test_an_empty_folder_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        Vocabulary(tmp_path)


def test_the_script_makes_a_vocabulary_of_the_shipped_kind(tmp_path: Path) -> None:
    """The very tokens depend on the Python that trains them; their number, the specials and the template do not."""
    make_tokenizer.write(tmp_path / "model")
    made = Vocabulary(tmp_path / "model")
    assert made.config == WORDS.config
    assert made.encode("".join(SPECIAL)) == [0, 1, 2]
    assert made.decode(made.encode("any text, ünïcode too")) == "any text, ünïcode too"
    assert made.names([make_tokenizer.VOCABULARY - 1, make_tokenizer.VOCABULARY])[1] == ""
