"""Values of options: from text, and from the names of policies, profiles and troubles."""

from __future__ import annotations

from dataclasses import fields
from math import inf
from pathlib import Path

import pytest

from router.config.lookup import list_files
from router.config.sections.simulation import ProfileFile
from router.errors import ConfigError
from router.lab.engine_profile import EngineProfile
from router.lab.simulator.scenario import EventLags, InstanceFailure, ReplicaLink, Trouble
from router.lab.sweep import options
from router.lab.sweep.options import POLICIES, PROFILES, check_possible, load_policies, load_profile, load_troubles


def test_names_are_those_of_the_projects_folder() -> None:
    assert list(load_policies(["warm", "random,round_robin"])) == ["warm", "random", "round_robin"]


def test_all_of_them() -> None:
    assert set(load_policies(["all"])) == set(list_files(POLICIES)) >= {"warm", "llmd_weighted"}


def test_a_file_and_a_folder_of_ones_own(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("scorers: [{name: least_requests}]\n")
    assert list(load_policies([str(mine), "warm"])) == ["mine", "warm"]
    assert list(load_policies(["all"], tmp_path)) == ["mine"]


def test_all_problems_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load_policies(["worm", "warm", "warm", str(tmp_path / "gone.yaml")])
    unknown, twice, gone = str(refused.value).splitlines()
    assert 'unknown policy "worm": did you mean "warm"?' in unknown
    assert '"warm" is given twice' in twice
    assert "gone.yaml" in gone


def test_what_cannot_be_built_is_found_before_anything_runs(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("scorers: [{name: warm, capp: 3}]\n")
    with pytest.raises(ConfigError, match="capp"):
        load_policies([str(wrong)])


def test_a_folder_of_policies_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        load_policies(["warm"], tmp_path / "none")


def test_a_file_has_what_a_simulation_needs_and_nothing_else() -> None:
    assert {field.name for field in fields(EngineProfile)} - {"name"} == set(ProfileFile.model_fields) - {"about"}


def test_a_name_is_one_of_those_that_come_with_the_project() -> None:
    assert load_profile("plain") == EngineProfile(
        name="plain",
        kv_tokens=1_000_000,
        kv_bytes_per_token=131_072,
        us_per_token=62.5,
        ns_per_pair=0,
        us_per_decode=0,
        weights_ms=10,
        ns_per_context_token=0,
        step_ms=0,
        batched_tokens=8192,
        max_seqs=256,
    )


def test_a_file_is_taken_from_where_it_lies(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text((PROFILES / "plain.yaml").read_text().replace("value: 62.5", "value: 125"))
    assert load_profile(str(mine)).us_per_token == 125
    assert load_profile(str(mine)).name == "mine"


def test_another_folder_has_other_names(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text((PROFILES / "plain.yaml").read_text())
    assert load_profile("mine", tmp_path).name == "mine"
    with pytest.raises(ConfigError, match=r'unknown profile "plain": known here: mine \(in .*\); or give a file'):
        load_profile("plain", tmp_path)


def test_a_misspelt_name_is_told_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r'unknown profile "lama-3\.1-8b-h100": did you mean "llama-3\.1-8b-h100"'):
        load_profile("lama-3.1-8b-h100")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.yaml: no such file"):
        load_profile(str(tmp_path / "gone.yaml"))


WHOLE = """
down: [{instance: 3, from_s: 300, until_s: 420}]
slow: [{instance: 1}, {instance: 2, factor: 4, from_s: 120}]
events_lost: 0.05
pool_away: [{from_s: 200, until_s: 260}, {from_s: 500}]
router_starts_s: 60
"""


def put(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_a_file_becomes_what_a_simulation_suffers(tmp_path: Path) -> None:
    assert load_troubles(put(tmp_path, "mine.yaml", WHOLE)) == {
        "mine": Trouble(
            failures=(
                InstanceFailure("down", 3, 300.0, 420.0),
                InstanceFailure("slow", 1, 0.0, inf, factor=2.0),
                InstanceFailure("slow", 2, 120.0, inf, factor=4.0),
            ),
            events_lost=0.05,
            pool_away=((200.0, 260.0), (500.0, inf)),
            router_starts_s=60.0,
        )
    }


def test_several_in_their_order_and_first_of_all_none(tmp_path: Path) -> None:
    found = load_troubles(f"slow,off,{put(tmp_path, 'mine.yaml', WHOLE)}")
    assert list(found) == ["off", "slow", "mine"]
    assert found["off"] == Trouble()


def test_names_are_those_of_a_folder(tmp_path: Path) -> None:
    put(tmp_path, "mine.yaml", "events_lost: 0.5")
    assert load_troubles("mine", tmp_path) == {"mine": Trouble(events_lost=0.5)}
    with pytest.raises(ConfigError, match='--trouble: unknown trouble "slow": known here: mine'):
        load_troubles("slow", tmp_path)


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load_troubles(f"slow,diez,{put(tmp_path, 'slow.yaml', WHOLE)},{put(tmp_path, 'bad.yaml', 'dwon: []')}")
    unknown, twice, misspelt = str(refused.value).splitlines()
    assert unknown.startswith('--trouble: unknown trouble "diez": did you mean "dies"?')
    assert twice.startswith('--trouble: "slow" is given twice')
    assert misspelt == f'{tmp_path / "bad.yaml"}:1: dwon: unknown key "dwon": did you mean "down"?'


def test_a_file_called_off_would_be_taken_for_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='--trouble: "off" means that nothing fails; rename the file'):
        load_troubles(put(tmp_path, "off.yaml", WHOLE))


def down(*numbers: int, until_s: float = inf) -> Trouble:
    return Trouble(failures=tuple(InstanceFailure("down", number, 10.0, until_s) for number in numbers))


def possible(trouble: Trouble, *, prefills: int = 0, pooled: bool = False) -> None:
    check_possible("mine", trouble, instances=4, prefills=prefills, pooled=pooled)


@pytest.mark.parametrize(
    ("trouble", "prefills", "said"),
    [
        (down(4), 0, "mine: there is no instance 4 among 4, which are numbered from 0 to 3"),
        (Trouble(pool_away=((1.0, 2.0),)), 0, "mine: pool_away needs a pool; give one with --pool"),
        (down(0, 1, 2, 3), 0, "mine: instances 0 to 3 die for good, which leaves none to answer"),
        (down(2, 3), 2, "mine: instances 2 to 3 die for good"),
    ],
)
def test_what_a_fleet_cannot_suffer_is_refused(trouble: Trouble, prefills: int, said: str) -> None:
    with pytest.raises(ConfigError, match=f"--trouble: {said}"):
        possible(trouble, prefills=prefills)


def test_what_it_can_is_not() -> None:
    possible(down(0, 1, 2))
    possible(down(0, 1, 2, 3, until_s=20.0))  # all of them, but they come back
    possible(down(0, 1), prefills=2)
    possible(Trouble(pool_away=((1.0, 2.0),)), pooled=True)


def test_lists_have_commas_and_each_value_once() -> None:
    assert options.parse_list("--instances", "8, 4,8,") == ["8", "4"]
    with pytest.raises(ConfigError, match="--instances: found no value"):
        options.parse_list("--instances", " , ")


@pytest.mark.parametrize("text", ["0", "-1", "2.5", "many", "nan", "inf"])
def test_a_whole_number_is_wanted(text: str) -> None:
    with pytest.raises(ConfigError, match=f"--instances: found '{text}'"):
        options.parse_whole("--instances", text)


def test_numbers_may_be_written_for_people() -> None:
    assert options.parse_number("--rate", "1.5e2") == 150.0
    assert options.parse_whole("--pool", "2e6") == 2_000_000
    assert options.parse_whole("--pool", "150_000") == 150_000


def test_what_keeps_kv_is_off_or_a_speed_or_a_speed_and_a_size() -> None:
    assert options.parse_memory("--pool", "off") is None
    assert options.parse_memory("--pool", "40000") == options.MemoryOption(40_000.0, None)
    assert options.parse_memory("--pool", "40000:2e6") == options.MemoryOption(40_000.0, 2_000_000)


@pytest.mark.parametrize("text", ["on", "0", "40000:", ":5", "40000:-1"])
def test_nothing_that_could_keep_kv(text: str) -> None:
    with pytest.raises(ConfigError, match="--host-memory: found"):
        options.parse_memory("--host-memory", text)


def test_lags_are_two_numbers_in_milliseconds() -> None:
    assert options.parse_lags("200:500") == EventLags(0.2, 0.5)
    assert options.parse_lags("0:50") == EventLags(0.0, 0.05)


@pytest.mark.parametrize("text", ["50", "50:", "a:b", "-1:50", "50:0", "inf:1", "nan:1"])
def test_no_lags(text: str) -> None:
    with pytest.raises(ConfigError, match="--lags: found"):
        options.parse_lags(text)


def test_an_exchange_is_a_delay_and_what_is_lost() -> None:
    assert options.parse_exchange("off") is None
    assert options.parse_exchange("0") == ReplicaLink(0.0, 0.0)
    assert options.parse_exchange("20:5") == ReplicaLink(0.02, 0.05)


@pytest.mark.parametrize("text", ["", "on", "-1", "inf", "nan", "1:100", "1:-5", "1:nan", "1:a"])
def test_no_exchange(text: str) -> None:
    with pytest.raises(ConfigError, match="--exchange: found"):
        options.parse_exchange(text)
