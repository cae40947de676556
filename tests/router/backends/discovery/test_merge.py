"""Lists of several sources as one: what counts as one instance, and which source describes it."""

from __future__ import annotations

from router.backends.discovery.discovery import DiscoveredInstance
from router.backends.discovery.merge import Conflict, MergedSources
from router.config.schema import InstanceConfig


def listed(
    url: str, name: str | None = None, uid: str | None = None, accepting: bool = True, lags: bool = False
) -> DiscoveredInstance:
    return DiscoveredInstance(InstanceConfig(url=url, name=name), "a test", uid, accepting, lags)


def merge(**lists: list[DiscoveredInstance]) -> MergedSources:
    merged = MergedSources()
    for source, instances in lists.items():
        merged.update(source, instances)
    return merged


def test_one_address_in_two_sources_is_one_instance_with_both_named() -> None:
    pod, plain = listed("http://10.0.0.1:8000", "vllm-0", "u1"), listed("http://10.0.0.1:8000")
    merged = merge(kubernetes=[pod], dns=[plain, listed("http://10.0.0.2:8000")])
    members, conflicts = merged.members, merged.conflicts
    assert list(members) == ["vllm-0", "10.0.0.2:8000"]
    assert [listing.source for listing in members["vllm-0"].listings] == ["kubernetes", "dns"]
    assert members["vllm-0"].config is pod.config
    assert conflicts == set()


def test_the_uid_counts_whichever_source_knows_it() -> None:
    members = merge(a=[listed("http://x:1", "x")], b=[listed("http://x:1", "y", "u1")]).members
    assert (members["x"].uid, list(members)) == ("u1", ["x"])


def test_an_instance_gets_requests_while_all_its_sources_say_so() -> None:
    here, leaving = listed("http://x:1"), listed("http://x:1", accepting=False)
    for lists in ([here, leaving], [leaving, here]):
        members = merge(a=lists[:1], b=lists[1:]).members
        assert members["x:1"].accepting is False
    assert merge(a=[here], b=[here]).members["x:1"].accepting is True


def test_one_name_at_two_addresses_is_a_conflict_that_the_first_source_wins() -> None:
    merged = merge(a=[listed("http://x:1", "n")], b=[listed("http://y:1", "n")])
    members, conflicts = merged.members, merged.conflicts
    assert members["n"].config.url == "http://x:1"
    assert conflicts == {Conflict("n", "a", "b")}


def test_one_source_may_list_an_address_under_two_names() -> None:
    members = merge(a=[listed("http://x:1", "n"), listed("http://x:1", "m")]).members
    assert list(members) == ["n", "m"]


def test_a_third_source_joins_the_first_of_both() -> None:
    same = "http://x:1"
    members = merge(a=[listed(same, "a")], b=[listed(same, "b")], c=[listed(same, "c")]).members
    assert {id: [at.source for at in member.listings] for id, member in members.items()} == {"a": ["a", "b", "c"]}


def test_the_order_of_precedence_counts_and_not_that_of_the_lists() -> None:
    merged = MergedSources(["first", "second"])
    merged.update("second", [listed("http://x:1", "b")])
    assert merged.update("first", [listed("http://x:1", "a")]) == ["b", "a"]
    assert [at.source for at in merged.members["a"].listings] == ["first", "second"]


def test_only_what_changed_is_returned() -> None:
    merged = MergedSources()
    x, y, z = listed("http://x:1", "x"), listed("http://y:1", "y"), listed("http://z:1", "z")
    assert merged.update("a", [x, y]) == ["x", "y"]
    assert merged.update("a", [x, y]) == []
    assert merged.update("a", [listed("http://x:1", "x"), y]) == []
    assert merged.update("b", [y]) == ["y"]
    assert merged.update("b", [y]) == []
    assert merged.update("a", [x._replace(accepting=False), y, z]) == ["x", "z"]
    assert merged.update("b", []) == ["y"]
    assert merged.update("a", [z]) == ["x", "y"]


POD, BEHIND = listed("http://x:1", "vllm-0", "u1"), listed("http://x:1", lags=True)


def test_a_pod_that_is_gone_stays_gone_while_a_source_that_lags_lists_it() -> None:
    merged = merge(kubernetes=[POD], dns=[BEHIND])
    assert merged.update("kubernetes", []) == ["vllm-0"]
    assert merged.update("dns", [BEHIND, listed("http://y:1", lags=True)]) == ["y:1"]
    assert list(merged.members) == ["y:1"]
    assert merged.update("dns", []) == ["y:1"]
    assert merged.update("dns", [BEHIND]) == ["x:1"]  # another engine


def test_another_pod_may_have_the_address_of_one_that_is_gone() -> None:
    merged = merge(kubernetes=[POD], dns=[BEHIND])
    merged.update("kubernetes", [])
    assert merged.update("kubernetes", [listed("http://x:1", "vllm-1", "u2")]) == ["vllm-1"]
    assert [at.source for at in merged.members["vllm-1"].listings] == ["kubernetes", "dns"]


def test_a_source_that_does_not_lag_keeps_what_it_lists() -> None:
    merged = merge(kubernetes=[POD], file=[listed("http://x:1", "own")])
    assert merged.update("kubernetes", []) == ["vllm-0", "own"]
