"""The guard with a real experiment, and real files: rewritten, replaced, swapped behind symlinks, gone and back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from router.clock import ManualClock, SystemClock
from router.control import background
from router.control.background import find_watched, watch_changes
from router.tasks import Tasks
from tests.fakes.engines import eventually
from tests.router.control.control_plane import TEXTS, ControlPlane, experiment

DEADLINE_S = 10.0
LOOK_EVERY_S = 0.1


def test_an_arm_that_fails_is_rolled_back() -> None:
    clock = ManualClock(1000.0, wall=5000.0)
    house = ControlPlane(running=experiment(limits={"error_rate_max": "5%"}), clock=clock)
    for requests in range(1, 401):
        record = house.record()
        house.core.assign_policy(record, b"unit %d" % requests)
        record.done, record.duration_ms, record.ttft_ms = True, 50.0, 20.0
        record.status = 500 if record.arm == "far" else 200
        house.core.complete(record)
        clock.advance(0.1)
        background.check_experiment(house.control, house.core, clock)
        if house.control.policy_set.rolled_back:
            break
    assert house.control.policy_set.rolled_back == {"far"}
    assert requests <= 100  # about half of them fail
    entry = house.audit.latest(1)[0]
    assert (entry.what, entry.arm) == ("rollback", "far")
    assert entry.why is not None
    assert entry.why.startswith("error_rate_max:")


def test_without_an_experiment_there_is_nothing_to_look_at() -> None:
    house = ControlPlane()
    assert background.check_experiment(house.control, house.core, house.clock) is False


async def test_a_broken_list_of_engines_refuses_no_policy(tmp_path: Path) -> None:
    """It is followed by itself (`FileDiscovery`), which reports its error."""
    main, engines = tmp_path / "main.yaml", tmp_path / "engines.yaml"
    engines.write_text("[{url: 'http://127.0.0.1:1'}]\n")
    inline = ", ".join(f"{name}: {{{text}}}" for name, text in TEXTS.items())
    text = f"fleet: {{file: {engines}}}\npolicies: {{{inline}}}\nactive: "
    main.write_text(text + "near\n")
    house = await ControlPlane.following(main, SystemClock())
    for broken in ("[{url: http://127.0.0.1:1, portt: 2}]\n", None):
        engines.unlink() if broken is None else engines.write_text(broken)
        main.write_text(text + ("near\n" if broken is None else "far\n"))
        assert await house.control.reload_files() is not None
        assert house.active == ("near" if broken is None else "far")
    assert not house.control.failures


async def test_a_saved_file_takes_effect_and_a_broken_one_heals(tmp_path: Path) -> None:
    main = tmp_path / "main.yaml"
    inline = ", ".join(f"{name}: {{{text}}}" for name, text in TEXTS.items())
    text = f"fleet: {{instances: [{{url: 'http://127.0.0.1:1'}}]}}\npolicies: {{{inline}}}\nactive: "
    main.write_text(text + "near\n")
    house = await ControlPlane.following(main, SystemClock())
    tasks = Tasks("test")
    tasks.supervise("files", lambda: background.follow_files(house.control))
    try:
        main.write_text(text + "nobody\n")
        await eventually(lambda: house.control.errors, DEADLINE_S)
        assert house.active == "near"
        main.write_text(text + "far\n")
        await eventually(lambda: house.active == "far" and not house.control.errors, DEADLINE_S)
    finally:
        await tasks.close()


class Seen:
    def __init__(self) -> None:
        self.count = 0
        self._news = asyncio.Event()

    def add(self) -> None:
        self.count += 1
        self._news.set()

    async def after(self, change: Callable[[], object]) -> None:
        """Do this, and wait until it is noticed."""
        self._news.clear()
        change()
        await asyncio.wait_for(self._news.wait(), DEADLINE_S)

    async def quiet(self) -> None:
        """Nothing comes any more."""
        while True:
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), 4 * LOOK_EVERY_S)
            except TimeoutError:
                return


@asynccontextmanager
async def watching(*paths: Path) -> AsyncIterator[Seen]:
    """From when the first look is over."""
    seen = Seen()

    async def watch() -> None:
        async for _ in watch_changes(lambda: paths, LOOK_EVERY_S):
            seen.add()

    task = asyncio.create_task(watch())
    try:
        await seen.quiet()
        yield seen
    finally:
        task.cancel()
        await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), DEADLINE_S)
        assert task.cancelled()


async def test_the_first_look_comes_by_itself(tmp_path: Path) -> None:
    """What changed between reading a file and watching it would be missed otherwise."""
    file = tmp_path / "main.yaml"
    file.write_text("a")
    async with watching(file) as seen:
        assert seen.count == 1


async def test_a_file_rewritten_and_a_file_replaced(tmp_path: Path) -> None:
    file = tmp_path / "main.yaml"
    file.write_text("a")

    def replace() -> None:
        (tmp_path / "new.yaml").write_text("c")
        (tmp_path / "new.yaml").replace(file)

    async with watching(file) as seen:
        await seen.after(lambda: file.write_text("b"))
        await seen.quiet()
        await seen.after(replace)


async def test_files_in_a_folder_come_and_go(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    async with watching(folder) as seen:
        await seen.after(lambda: (folder / "a.yaml").write_text("a"))
        await seen.quiet()
        await seen.after(lambda: (folder / "a.yaml").unlink())


async def test_logs_beside_the_configuration_are_nothing_to_read_it_for(tmp_path: Path) -> None:
    file = tmp_path / "main.conf"
    file.write_text("a")
    async with watching(file) as seen:
        before = seen.count
        for name in ("router.log", "audit.jsonl", "main.conf.swp", "log", "..log"):
            (tmp_path / name).write_text("x")
        await seen.quiet()
        assert seen.count == before
        await seen.after(lambda: file.write_text("b"))


async def test_a_config_map_is_swapped(tmp_path: Path) -> None:
    """As the kubelet does it: main.yaml -> ..data/main.yaml, ..data -> ..1; then ..data is renamed over."""
    for number in ("1", "2", "3"):
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}" / "main.yaml").write_text(number)
    (tmp_path / "..data").symlink_to("..1")
    file = tmp_path / "main.yaml"
    file.symlink_to("..data/main.yaml")

    def swap(number: str) -> None:
        (tmp_path / "..data_tmp").symlink_to(f"..{number}")
        (tmp_path / "..data_tmp").replace(tmp_path / "..data")

    async with watching(file) as seen:
        for number in ("2", "3"):
            await seen.after(lambda number=number: swap(number))  # type: ignore[misc]
            assert file.read_text() == number
            await seen.quiet()


async def test_a_link_that_leads_elsewhere_is_followed(tmp_path: Path) -> None:
    for name in ("here", "one", "two"):
        (tmp_path / name).mkdir()
    for name in ("one", "two"):
        (tmp_path / name / "real.yaml").write_text(name)
    file = tmp_path / "here" / "main.yaml"
    file.symlink_to(tmp_path / "one" / "real.yaml")

    def relink() -> None:
        file.unlink()
        file.symlink_to(tmp_path / "two" / "real.yaml")

    async with watching(file) as seen:
        await seen.after(lambda: (tmp_path / "one" / "real.yaml").write_text("x"))
        await seen.quiet()
        await seen.after(relink)
        await seen.quiet()
        await seen.after(lambda: (tmp_path / "two" / "real.yaml").write_text("x"))


async def test_a_release_is_switched_by_a_link_to_its_folder(tmp_path: Path) -> None:
    for release in ("41", "42"):
        (tmp_path / release).mkdir()
        (tmp_path / release / "main.conf").write_text(release)
    current, following = tmp_path / "current", tmp_path / "next"
    current.symlink_to("41")
    following.symlink_to("42")
    async with watching(current / "main.conf") as seen:
        await seen.after(lambda: following.replace(current))
        await seen.quiet()
        await seen.after(lambda: (tmp_path / "42" / "main.conf").write_text("x"))


async def test_a_missing_folder_is_complained_of_once_and_noticed_when_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "later" / "main.yaml"
    other = tmp_path / "other.yaml"
    other.write_text("a")

    def appear() -> None:
        file.parent.mkdir()
        file.write_text("a")

    async with watching(file, other) as seen:
        await seen.after(lambda: other.write_text("b"))
        await seen.quiet()
        assert caplog.text.count(f"configuration folder missing, checking every 0.1 s: {file.parent}") == 1
        await seen.after(appear)
        await seen.quiet()
        await seen.after(lambda: file.write_text("b"))


async def test_nothing_to_watch_at_all_is_looked_for(tmp_path: Path) -> None:
    file = tmp_path / "later" / "main.yaml"
    async with watching(file) as seen:
        await seen.after(file.parent.mkdir)
        await seen.quiet()
        await seen.after(lambda: file.write_text("b"))


async def test_a_folder_that_was_replaced_is_watched_again(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()

    def replace() -> None:
        folder.rename(tmp_path / "old")
        folder.mkdir()

    async with watching(folder / "a.yaml") as seen:
        await seen.after(replace)
        await seen.quiet()
        await seen.after(lambda: (folder / "a.yaml").write_text("b"))


def test_every_folder_on_the_way(tmp_path: Path) -> None:
    def of(*paths: Path) -> Iterable[Path]:
        return find_watched(paths).folders.keys()

    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.yaml").write_text("")
    (tmp_path / "link").symlink_to("real")
    assert set(of(tmp_path / "real" / "a.yaml")) == {tmp_path / "real"}
    # link/a.yaml: the folder as named, the one where the link lies, and where it leads.
    assert set(of(tmp_path / "link" / "a.yaml")) == {tmp_path / "link", tmp_path, tmp_path / "real"}
    (tmp_path / "round").symlink_to("round")
    assert tmp_path in set(of(tmp_path / "round" / "a.yaml"))
