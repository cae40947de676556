"""Metrics pages of several versions, and what a page must not be able to do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.backends.vllm.metrics import PARSED_BYTES, read_gauges
from router.fleet.engine_facts import Gauges, PoolTransferCounts
from router.fleet.engine_limits import MAX_MODELS, MAX_RANKS, OverLimit
from tests.paths import DATA
from tests.suites.properties import examples

RECORDED = (DATA / "vllm-0.32-metrics.txt").read_bytes()


def only(page: bytes) -> Gauges:
    ranks = read_gauges(page)
    assert list(ranks) == [0]
    return ranks[0]


def test_a_recorded_page_of_0_32() -> None:
    assert only(RECORDED) == Gauges(
        running=0,
        waiting=0,
        kv_usage=0.0,
        block_tokens=128,
        capacity_tokens=76800,
        adapters=None,
        max_adapters=None,
        waiting_adapters=None,
        pool_loads=PoolTransferCounts(operations=7, blocks=189, seconds=0.17991625199988448),
        output_tokens=160,
        cache_blocks=600,
        prefix_caching=True,
        started_wall_s=1.79522600558e9,
    )
    # 189 blocks of 128 tokens: the very 24192 that the page counts as external_prefix_cache_hits
    assert b'external_prefix_cache_hits_total{engine="0",model_name="m"} 24192.0' in RECORDED
    assert 189 * 128 == 24192


def test_the_recorded_page_with_other_values() -> None:
    page = RECORDED
    for name, value in (
        (b"num_requests_running", b"7.0"),
        (b"num_requests_waiting", b"3.0"),
        (b"usage_perc", b"0.125"),
    ):
        labelled = name + b'{engine="0",model_name="m"} '
        assert page.count(labelled + b"0.0") == 1
        page = page.replace(labelled + b"0.0", labelled + value)
    assert only(page)[:3] == (7, 3, 0.125)


def test_ranks_are_kept_apart_and_model_names_of_one_rank_added_up() -> None:
    page = b"""# HELP vllm:num_requests_running Number of requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 5.0
vllm:num_requests_running{engine="0",model_name="alias"} 1.0
vllm:num_requests_waiting{engine="1",model_name="m"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="0",model_name="alias"} 0.25
vllm:cache_config_info{block_size="16",engine="0",kv_cache_size_tokens="1000"} 1.0
vllm:cache_config_info{block_size="32",engine="1",kv_cache_size_tokens="2000"} 1.0
"""
    assert read_gauges(page) == {
        0: Gauges(3, None, 0.25, 16, 1000, None, None),
        1: Gauges(5, 4, None, 32, 2000, None, None),
    }


def test_an_old_page() -> None:
    """Up to 0.11: another name for usage, no `engine` label, no size in tokens."""
    page = b"""vllm:num_requests_running{model_name="m"} 1.0
vllm:num_requests_waiting{model_name="m"} 0.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.5
vllm:cache_config_info{block_size="16",num_gpu_blocks="100",num_gpu_blocks_override="None"} 1.0
"""
    assert only(page) == Gauges(1, 0, 0.5, 16, 1600, None, None, cache_blocks=100)


def test_the_new_usage_wins_where_both_are_there() -> None:
    page = b'vllm:gpu_cache_usage_perc{engine="0"} 0.1\nvllm:kv_cache_usage_perc{engine="0"} 0.2\n'
    assert only(page).kv_usage == 0.2


def test_names_that_begin_alike_are_not_taken_for_it() -> None:
    page = b"""vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
vllm:num_requests_waiting{engine="0"} 2.0
not_vllm:num_requests_waiting{engine="0"} 8.0
"""
    assert only(page).waiting == 2


def test_what_is_unset_is_unknown() -> None:
    page = b'vllm:cache_config_info{block_size="16",engine="0",kv_cache_size_tokens="None",num_gpu_blocks="None"} 1.0'
    assert only(page) == Gauges(None, None, None, 16, None, None, None)
    assert only(page.replace(b'"16"', b'"0"')).block_tokens is None


@pytest.mark.parametrize("value", [b"NaN", b"+Inf", b"-Inf", b"-1", b"x", b"", b"1e300", b"}"])
def test_values_that_make_no_sense_are_unknown(value: bytes) -> None:
    page = b'vllm:num_requests_running{engine="0"} ' + value + b'\nvllm:num_requests_waiting{engine="0"} 1\n'
    assert only(page)[:2] == (None, 1)


@pytest.mark.parametrize("engine", [b"x", b"-1", b"", b"1.5"])
def test_an_engine_without_a_number_is_skipped(engine: bytes) -> None:
    page = b'vllm:num_requests_running{engine="' + engine + b'"} 1\nvllm:num_requests_running{engine="2"} 3\n'
    assert read_gauges(page) == {2: Gauges(3, None, None, None, None, None, None)}


def test_labels_may_hold_anything_escaped() -> None:
    page = rb'vllm:num_requests_running{model_name="a \"} 9\n,engine=\\",engine="1"} 4.0 1700000000000' + b"\n"
    assert read_gauges(page)[1].running == 4


LORA = b"""vllm:num_requests_running{engine="0"} 1
vllm:lora_requests_info{max_lora="4",running_lora_adapters="",waiting_lora_adapters=""} 1.7e+09
vllm:lora_requests_info{max_lora="4",running_lora_adapters="a,b",waiting_lora_adapters="c"} 1.8e+09
vllm:lora_requests_info{max_lora="4",running_lora_adapters="old",waiting_lora_adapters=""} 1.75e+09
"""


def test_the_latest_line_tells_the_adapters() -> None:
    gauges = only(LORA)
    assert (gauges.adapters, gauges.waiting_adapters, gauges.max_adapters) == (frozenset("ab"), frozenset("c"), 4)


def test_no_adapter_in_use_is_an_empty_set_not_unknown() -> None:
    gauges = only(b"\n".join(LORA.splitlines()[:2]))
    assert (gauges.adapters, gauges.waiting_adapters, gauges.max_adapters) == (frozenset(), frozenset(), 4)


def test_adapters_of_several_ranks_cannot_be_told_apart() -> None:
    ranks = read_gauges(LORA + b'vllm:num_requests_waiting{engine="1"} 1\n')
    assert [(gauges.adapters, gauges.max_adapters) for gauges in ranks.values()] == [(None, None)] * 2


@pytest.mark.parametrize("page", [b"", b"\n", b"<html>not found</html>", b"{}", b"vllm:num_requests_running"])
def test_a_page_that_says_nothing(page: bytes) -> None:
    assert read_gauges(page) == {}


def rank_lines(ranks: int) -> bytes:
    return b"".join(b'vllm:num_requests_running{engine="%d"} 1\n' % rank for rank in range(ranks))


def test_more_ranks_than_the_bound() -> None:
    assert len(read_gauges(rank_lines(MAX_RANKS))) == MAX_RANKS
    assert read_gauges(rank_lines(MAX_RANKS + 1)) == OverLimit("ranks", "more than 128 ranks in /metrics")


@pytest.mark.parametrize(
    "page",
    [
        rank_lines(20_000),
        b"vllm:num_requests_running_x 1\n" * 20_000,
        b'vllm:num_requests_running{engine="0",a="%b"} 1\n' % (b"x" * PARSED_BYTES),
    ],
    ids=["lines", "lines of another", "one line"],
)
def test_more_to_parse_than_the_bound(page: bytes) -> None:
    over = read_gauges(page)
    assert isinstance(over, OverLimit)
    assert over.limit == "metrics_page"


def test_lines_of_many_adapters_cost_the_adapters_only() -> None:
    """An engine that has run for long has a line for every set of adapters that it ever ran."""
    line = b'vllm:lora_requests_info{max_lora="4",running_lora_adapters="%d",waiting_lora_adapters=""} 1.7e+09\n'
    gauges = only(b'vllm:num_requests_running{engine="0"} 3\n' + b"".join(line % n for n in range(20_000)))
    assert (gauges.running, gauges.adapters, gauges.max_adapters) == (3, None, None)


def test_adapters_and_numbers_that_are_absurd_are_unknown() -> None:
    many = b",".join(b"%d" % n for n in range(MAX_MODELS + 1))
    line = b'vllm:lora_requests_info{max_lora="9999",running_lora_adapters="%b",waiting_lora_adapters="%b,a"} 1\n'
    cache = b'vllm:cache_config_info{block_size="%d",num_gpu_blocks="%d"} 1\n'
    gauges = only(line % (many, b"x" * 257) + cache % (16, 2**40))
    assert (gauges.adapters, gauges.waiting_adapters, gauges.max_adapters) == (None, frozenset("a"), None)
    assert (gauges.block_tokens, gauges.capacity_tokens) == (16, None)
    assert only(cache % (2**20, 4)).block_tokens is None


@examples(300)
@given(st.data())
def test_no_page_raises(data: st.DataObject) -> None:
    whole = b"\n".join(line for line in RECORDED.splitlines() if b"vllm:num_req" in line or b"cache_" in line) + LORA
    at = data.draw(st.integers(0, len(whole)))
    junk = data.draw(st.binary(max_size=20) | st.sampled_from([b"\n", b"{", b"}", b'"', b"\\", b"\xff", b'engine="']))
    cut = data.draw(st.integers(0, 40))
    for gauges in read_gauges(whole[:at] + junk + whole[at + cut :]).values():
        assert gauges.running is None or gauges.running >= 0
        assert gauges.block_tokens is None or gauges.block_tokens > 0


STORE = b"""vllm:mooncake_store_operation_time_seconds_bucket{engine="0",le="+Inf",operation="load_get",status="ok"} 2.0
vllm:mooncake_store_operation_time_seconds_count{engine="0",operation="load_get",status="ok"} 2.0
vllm:mooncake_store_operation_time_seconds_sum{engine="0",operation="load_get",status="ok"} 0.5
vllm:mooncake_store_operation_time_seconds_bucket{engine="0",le="+Inf",operation="load_get",status="error"} 1.0
vllm:mooncake_store_operation_time_seconds_sum{engine="0",operation="load_get",status="error"} 9.0
vllm:mooncake_store_operation_time_seconds_sum{engine="1",operation="load_get",status="ok"} 0.25
vllm:mooncake_store_operation_time_seconds_sum{engine="0",operation="save_put",status="ok"} 7.0
vllm:mooncake_store_operation_total{engine="0",operation="load_get",status="ok"} 2.0
vllm:mooncake_store_operation_total{engine="0",operation="load_get",status="error"} 1.0
vllm:mooncake_store_operation_total{engine="1",operation="load_get",status="ok"} 1.0
vllm:mooncake_store_operation_keys_total{engine="0",operation="load_get",status="ok"} 20.0
vllm:mooncake_store_operation_keys_total{engine="0",operation="save_put",status="ok"} 99.0
vllm:num_requests_running{engine="0"} 1.0
vllm:num_requests_running{engine="1"} 1.0
"""


def test_loads_from_the_pool_are_counted_where_they_worked_and_all_is_told() -> None:
    ranks = read_gauges(STORE)
    assert ranks[0].pool_loads == PoolTransferCounts(2, 20, 0.5)
    assert ranks[1].pool_loads is None, "the page does not say how many keys"


def test_an_engine_that_has_loaded_nothing_yet_says_nothing_of_it() -> None:
    assert only(b"\n".join(line for line in RECORDED.splitlines() if b"load_get" not in line)).pool_loads is None


def test_answer_tokens_are_counted_by_rank_and_names_that_begin_alike_are_not() -> None:
    page = b"""vllm:num_requests_running{engine="0"} 1
vllm:num_requests_running{engine="1"} 1
vllm:request_generation_tokens_sum{engine="0"} 9.0
vllm:generation_tokens_total{engine="0",model_name="m"} 1.25e+06
vllm:generation_tokens_total{engine="0",model_name="alias"} 7.0
vllm:generation_tokens_created{engine="0",model_name="m"} 1.79e+09
"""
    ranks = read_gauges(page)
    assert (ranks[0].output_tokens, ranks[1].output_tokens) == (1_250_007, None)


def test_usage_is_told_to_four_digits() -> None:
    assert only(b'vllm:kv_cache_usage_perc{engine="0"} 0.12345678901234567\n').kv_usage == 0.1235
