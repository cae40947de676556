"""Records as lines: exact where a decision hangs on it, silent about people, and small."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.config import schema
from router.features.decision_log.codec import HASH_BITS, PseudonymSalt, RecordEncoder
from router.features.decision_log.format import FIELDS, UNPLACED, VERSION, LoggedPolicy, LoggedRecord, decode
from router.scheduling.policy.decision import Regret, ShadowChoice
from router.scheduling.policy.policy import build_policy, fallback_policy
from router.scheduling.policy.record import Attempt, PrefillRecord, Record, Stages
from scorers.contract import Ask, View
from tests.bench.busy_fleet import BusyFleet
from tests.router.telemetry.records import POLICY, VIEW, a_record
from tests.suites.properties import examples
from tests.suites.views import a_load, a_row, a_view, views

SALT = 99


def encoded(record: Record, salt: int = SALT) -> bytes:
    """The record's own line."""
    return RecordEncoder(salt).encode_record(record).splitlines(keepends=True)[-1]


def logged(record: Record, salt: int = SALT) -> LoggedRecord:
    read = decode(encoded(record, salt)).record
    assert read is not None
    return read


def typed(value: Any) -> Any:
    """A value with the type of everything in it: 1, 1.0 and True are equal, 0.0 and -0.0 too."""
    if isinstance(value, tuple):
        return type(value), [typed(item) for item in value]
    if isinstance(value, frozenset):
        return type(value), {typed(item) for item in value}
    return type(value), repr(value)


@examples(200)
@given(views())
def test_any_view_comes_back_exactly(view: View) -> None:
    (choice,) = logged(a_record(view=view)).attempts

    assert choice.view == view
    assert typed(choice.view) == typed(view)
    assert choice.target == POLICY.decide(view).target


def test_what_a_view_says_of_candidates_without_a_row_and_of_answers_comes_back() -> None:
    (choice,) = logged(a_record(view=VIEW._replace(others=936, answer_tokens=182.0))).attempts
    assert (choice.view.others, choice.view.answer_tokens) == (936, 182.0)
    (choice,) = logged(a_record(view=VIEW._replace(others=0, answer_tokens=None))).attempts
    assert (choice.view.others, choice.view.answer_tokens) == (0, None)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_finite_float_comes_back_to_the_last_bit(value: float) -> None:
    (choice,) = logged(a_record(view=VIEW._replace(now_s=value))).attempts
    assert choice.view.now_s.hex() == value.hex()


def test_a_view_keeps_the_rows_that_filters_dropped() -> None:
    spec = {"filters": [{"name": "max_waiting", "waiting": 4}], "scorers": [{"name": "queue_depth"}]}
    policy = build_policy("filtered", schema.PolicyConfig.model_validate(spec))
    view = a_view(a_row("a", load=a_load(waiting=9)), a_row("b"))
    decision = policy.decide(view)
    assert [row.target for row in decision.rows] == ["b/0"]

    (choice,) = logged(a_record(attempts=[Attempt(decision, None, None)])).attempts

    assert (choice.target, choice.view) == ("b/0", view)
    assert policy.decide(choice.view, choice.part) == decision


def test_every_attempt_and_the_prefill_half_before_it() -> None:
    prefill = PrefillRecord(POLICY.decide(VIEW, "prefill"), 16, 20, "ok", 31.2504, 16)
    record = a_record(attempts=[
        Attempt(fallback_policy().decide(VIEW), 32, 36, 4, "connect"),
        Attempt(POLICY.decide(VIEW, "decode"), None, None, None, "ok", prefill),
    ])  # fmt: skip

    first, second = logged(record).attempts

    assert (first.policy, first.part, first.target, first.end) == ("fallback", "whole", "b/0", "connect")
    assert (first.predicted_tokens, first.expected_tokens, first.pool_tokens, first.prefill) == (32, 36, 4, None)
    assert (second.part, second.end, second.predicted_tokens) == ("decode", "ok", None)
    half = second.prefill
    assert half is not None
    assert (half.part, half.view, half.target, half.end) == ("prefill", VIEW, prefill.target, "ok")
    assert (half.predicted_tokens, half.expected_tokens, half.cached_tokens, half.duration_ms) == (16, 20, 16, 31.25)


def test_the_outcome_to_the_microsecond() -> None:
    record = a_record(
        stages=Stages(parse_ms=0.12345678, decide_ms=0.5), ttft_ms=80.12345678, duration_ms=None, poison=True,
        arm="warm", shadows=[ShadowChoice("other", "a/0", Regret(-3.5, None))],
    )  # fmt: skip
    read = logged(record)
    assert read.stages == Stages(parse_ms=0.123, decide_ms=0.5)
    assert (read.ttft_ms, read.duration_ms, read.status, read.error, read.poison) == (80.123, None, 200, None, True)
    assert (read.id, read.number, read.endpoint, read.model, read.stream) == ("run-0", 0, "/v1/completions", "m", True)
    assert (read.tokens_from, read.prompt_tokens_counted, read.prompt_tokens) == ("local", 60, 61)
    assert (read.cached_tokens, read.output_tokens, read.arm) == (32, 7, "warm")
    (shadow,) = read.shadows
    assert (shadow.policy, shadow.target) == ("other", "a/0")
    assert (shadow.ttft_ms, shadow.overlap_tokens) == (-3.5, None)


@pytest.mark.parametrize(
    ("ends", "error"), [([], UNPLACED), (["died", "ok"], None), (["ok", "client_gone"], "client_gone")]
)
def test_an_error_is_how_it_ended_and_not_what_was_said(ends: list[str], error: str | None) -> None:
    attempts = [Attempt(POLICY.decide(VIEW), 0, 0, end=end) for end in ends]
    assert logged(a_record(attempts=attempts, error="the model `Bob's letter` is unknown")).error == error


def test_no_name_of_a_person_is_in_the_line() -> None:
    record = a_record(
        view=VIEW._replace(ask=Ask(tenant="00ff")), client="Alice Ltd.", unit=b"alice@example.org",
        asked_by="Bob", error="Bob said so",
    )  # fmt: skip
    line = encoded(record)
    for name in (b"Alice", b"alice", b"Bob", b"alice@example.org".hex().encode()):
        assert name not in line
    read = logged(record)
    assert read.unit is not None
    assert len(read.unit) == 16
    assert read.attempts[0].view.ask.tenant == "00ff"  # the core's pseudonym


def test_a_model_name_that_no_instance_serves_is_left_out() -> None:
    assert logged(a_record(attempts=[], model="my password is")).model is None


def test_the_same_name_has_the_same_digest_under_one_salt_only() -> None:
    salt = PseudonymSalt(SALT)
    assert salt.digest("alice") == salt.digest(b"alice") == PseudonymSalt(SALT).digest("alice")
    assert len({salt.digest("alice"), salt.digest("bob"), PseudonymSalt(SALT + 1).digest("alice"), None}) == 4
    assert salt.digest(None) is None
    assert salt.digest("\ud800") is not None  # half of a surrogate pair, as JSON may smuggle in


def test_equal_beginnings_have_equal_block_digests() -> None:
    one, other = (2**64 - 1, 5, 6), (2**64 - 1, 5, 7)
    ours, theirs = logged(a_record(blocks=one)).hash_ids, logged(a_record(blocks=other)).hash_ids
    assert ours[:2] == theirs[:2]
    assert ours[2] != theirs[2]
    assert all(0 <= digest < 2**HASH_BITS for digest in ours)
    assert not set(ours) & set(logged(a_record(blocks=one), SALT + 1).hash_ids)
    assert not set(ours) & {key >> 64 - HASH_BITS for key in one}


@given(st.sets(st.integers(0, 2**64 - 1), min_size=100, max_size=200))
def test_different_blocks_have_different_digests(keys: set[int]) -> None:
    # 200 of them collide with a chance of 200^2 / 2^49 = 7e-11
    assert len(set(PseudonymSalt(SALT).digest_blocks(tuple(keys)))) == len(keys)


def test_a_record_is_a_request_of_a_mooncake_trace() -> None:
    line = json.loads(encoded(a_record(blocks=(1, 2), prompt_tokens=None)))["record"]
    assert (line["timestamp"], line["input_length"], line["output_length"]) == (1_700_000_000_250, 60, 7)
    assert [type(digest) for digest in line["hash_ids"]] == [int, int]
    assert logged(a_record()).at_wall_s == 1_700_000_000.25
    assert logged(a_record()).input_length == 61  # the engine's word


def test_a_file_opens_with_what_it_is() -> None:
    head = decode(RecordEncoder(SALT).start_file("run", "1.2.3", 1e9)).file
    assert head is not None
    assert (head.version, head.run, head.warmroute, head.started_at_wall_s) == (VERSION, "run", "1.2.3", 1e9)
    assert head.fields == FIELDS
    assert head.fields["PoolHit"] == ["tokens", "age_s", "memory_tokens"]


def test_each_file_names_a_policy_once_before_its_first_record() -> None:
    encoder = RecordEncoder(SALT)
    encoder.start_file("run", "1", 0.0)
    first, second = encoder.encode_record(a_record()), encoder.encode_record(a_record(1))
    known, record = (decode(line) for line in first.splitlines())
    assert isinstance(known.policy, LoggedPolicy)
    assert (known.policy.name, known.policy.digest) == ("default", POLICY.digest)
    assert record.record is not None
    assert (record.record.policy, record.record.digest) == ("default", POLICY.digest)
    assert second.count(b"\n") == 1
    assert encoder.encode_record(a_record(policy=fallback_policy())).count(b"\n") == 2
    encoder.start_file("run", "1", 0.0)
    assert encoder.encode_record(a_record()).count(b"\n") == 2


def test_a_policy_of_the_same_name_that_says_something_else_is_another_one() -> None:
    other = build_policy(
        "default", schema.PolicyConfig.model_validate({"scorers": [{"name": "queue_depth", "weight": 3}]})
    )
    encoder = RecordEncoder(SALT)
    encoder.encode_record(a_record())
    assert encoder.encode_record(a_record(policy=other)).count(b"\n") == 2
    assert encoder.encode_record(a_record()).count(b"\n") == 1


def test_a_record_without_a_policy() -> None:
    assert (logged(a_record(policy=None, attempts=[])).policy, logged(a_record(policy=None)).digest) == (None, None)


def test_a_record_without_a_json_form_names_no_policy() -> None:
    encoder = RecordEncoder(SALT)
    with pytest.raises(TypeError):
        encoder.encode_record(a_record(status=object()))
    assert encoder.encode_record(a_record()).count(b"\n") == 2  # its policy comes with the next one


def test_a_long_prompt_on_64_targets_takes_4_kb_compressed() -> None:
    """Files are compressed as a whole, so what repeats between records costs little: see tests/bench/ledger.py."""
    records = list(BusyFleet(64).records(500))[200:]
    encoder = RecordEncoder(SALT)
    packed = gzip.compress(b"".join(map(encoder.encode_record, records)), 6)
    assert {len(record.attempts[0].decision.view.rows) for record in records} == {64}
    assert min(record.prompt_tokens or 0 for record in records) > 70_000
    assert min(len(record.blocks) for record in records) > 70_000 // 512 - 1
    assert len(packed) / len(records) <= 4096
