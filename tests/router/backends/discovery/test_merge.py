"""Lists of several sources as one: what counts as one instance, and which source describes it."""

from __future__ import annotations

from router.backends.discovery.discovery import DiscoveredInstance
from router.backends.discovery.merge import Conflict, merge_lists
from router.config.schema import InstanceConfig


def listed(url: str, name: str | None = None, uid: str | None = None, accepting: bool = True) -> DiscoveredInstance:
    return DiscoveredInstance(InstanceConfig(url=url, name=name), "a test", uid, accepting)


def test_one_address_in_two_sources_is_one_instance_with_both_named() -> None:
    pod, plain = listed("http://10.0.0.1:8000", "vllm-0", "u1"), listed("http://10.0.0.1:8000")
    members, conflicts = merge_lists({"kubernetes": [pod], "dns": [plain, listed("http://10.0.0.2:8000")]})
    assert list(members) == ["vllm-0", "10.0.0.2:8000"]
    assert [listing.source for listing in members["vllm-0"].listings] == ["kubernetes", "dns"]
    assert members["vllm-0"].config is pod.config
    assert conflicts == set()


def test_the_uid_counts_whichever_source_knows_it() -> None:
    members, _ = merge_lists({"a": [listed("http://x:1", "x")], "b": [listed("http://x:1", "y", "u1")]})
    assert (members["x"].uid, list(members)) == ("u1", ["x"])


def test_an_instance_gets_requests_while_all_its_sources_say_so() -> None:
    here, leaving = listed("http://x:1"), listed("http://x:1", accepting=False)
    for lists in ([here, leaving], [leaving, here]):
        members, _ = merge_lists({"a": lists[:1], "b": lists[1:]})
        assert members["x:1"].accepting is False
    assert merge_lists({"a": [here], "b": [here]}).members["x:1"].accepting is True


def test_one_name_at_two_addresses_is_a_conflict_that_the_first_source_wins() -> None:
    members, conflicts = merge_lists({"a": [listed("http://x:1", "n")], "b": [listed("http://y:1", "n")]})
    assert members["n"].config.url == "http://x:1"
    assert conflicts == {Conflict("n", "a", "b")}


def test_one_source_may_list_an_address_under_two_names() -> None:
    members, _ = merge_lists({"a": [listed("http://x:1", "n"), listed("http://x:1", "m")]})
    assert list(members) == ["n", "m"]


def test_a_third_source_joins_the_first_of_both() -> None:
    same = "http://x:1"
    members, _ = merge_lists({"a": [listed(same, "a")], "b": [listed(same, "b")], "c": [listed(same, "c")]})
    assert {id: [at.source for at in member.listings] for id, member in members.items()} == {"a": ["a", "b", "c"]}
