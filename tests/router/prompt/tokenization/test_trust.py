"""Whose token ids are believed, for which prompts, and what brings trust back."""

from __future__ import annotations

import pytest

from router.prompt.tokenization.renderer import JINJA, KIMI_K3, MAYBE_MISTRAL
from router.prompt.tokenization.trust import ANSWER, ModelTrust, Proved, SourceTrust

BY_IDS, BY_COUNTS = Proved(by_ids=True, special_text=True), Proved(by_ids=False, special_text=False)


def test_believed_until_something_speaks_against_it() -> None:
    trust = ModelTrust(has_local=True)
    assert (trust.source(chat=True), trust.source(chat=False)) == ("local", "local")
    assert ModelTrust(has_local=False).source(chat=True) == "remote"


def test_a_differing_probe_is_cleared_by_the_same_instance_only() -> None:
    trust = SourceTrust()
    trust.record_mismatch("a", "plain")
    trust.record_proof("b", BY_IDS)
    assert not trust.trusted
    trust.record_proof("a", BY_IDS)
    assert trust.trusted


def test_a_source_that_an_answer_refuted_is_trusted_after_a_new_proof() -> None:
    trust = SourceTrust()
    trust.record_mismatch("a", ANSWER)
    trust.record_proof("b", BY_IDS)
    assert not trust.trusted
    trust.record_proof("a", BY_COUNTS)
    assert trust.trusted


def test_a_new_process_is_proved_anew() -> None:
    trust = SourceTrust()
    trust.record_mismatch("a", ANSWER)
    trust.begin("a")
    assert not trust.trusted, "nothing was proved yet"
    trust.record_proof("a", BY_IDS)
    trust.begin("a")
    assert (trust.trusted, trust.proved) == (True, {})


def test_what_an_instance_found_goes_with_it() -> None:
    trust = ModelTrust(has_local=True)
    trust.local_chats.record_mismatch("a", "plain")
    trust.forget("a")
    assert (trust.source(chat=True), trust.refuted()) == ("local", {})


def test_each_source_is_left_for_the_next_and_chats_are_judged_apart_from_texts() -> None:
    trust = ModelTrust(has_local=True)
    trust.local_chats.record_mismatch("a", "plain")
    assert (trust.source(chat=True), trust.source(chat=False)) == ("remote", "local")
    assert trust.explain() is None
    trust.remote_chats.record_mismatch("a", "content-parts")
    assert (trust.source(chat=True), trust.source(chat=False)) == (None, "local")
    assert "a generates from other ids than its /tokenize returns (content-parts)" in str(trust.explain())


def test_ids_go_only_to_instances_that_proved_them() -> None:
    trust = ModelTrust(has_local=True)
    assert not trust.passes("a", special_text=False), "not proved yet"
    trust.local_chats.record_proof("a", BY_COUNTS)
    assert not trust.passes("a", special_text=False), "equal counts may be other ids"
    trust.local_chats.record_proof("a", Proved(by_ids=True, special_text=False))
    assert trust.passes("a", special_text=False)
    assert not trust.passes("a", special_text=True)
    trust.local_chats.record_proof("a", BY_IDS)
    assert trust.passes("a", special_text=True)
    assert not trust.passes("b", special_text=False)


def test_what_is_rendered_by_code_is_never_believed() -> None:
    trust = ModelTrust(KIMI_K3, has_local=True)
    trust.local_chats.record_proof("a", BY_IDS)
    trust.remote_chats.record_proof("a", BY_IDS)
    assert (trust.source(chat=True), trust.source(chat=False)) == (None, "local")
    assert trust.explain() == "the engine renders chats by code (kimi_k3), which /tokenize does not show"


@pytest.mark.parametrize(("renderer", "before"), [(JINJA, "local"), (MAYBE_MISTRAL, "remote")])
def test_a_template_that_the_engine_may_not_use_is_believed_once_proved(renderer: object, before: str) -> None:
    trust = ModelTrust(renderer, has_local=True)  # type: ignore[arg-type]
    assert trust.source(chat=True) == before
    trust.local_chats.record_proof("a", BY_IDS)
    assert trust.source(chat=True) == "local"
