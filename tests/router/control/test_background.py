"""The guard with the real trial, and files that are really followed."""

from __future__ import annotations

from pathlib import Path

from router.clock import ManualClock, SystemClock
from router.control import background
from router.tasks import Tasks
from tests.fakes.engines import eventually
from tests.router.control.control_plane import TEXTS, ControlPlane, experiment

DEADLINE_S = 10.0


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


async def test_a_saved_file_takes_effect_and_a_broken_one_heals(tmp_path: Path) -> None:
    main = tmp_path / "main.yaml"
    inline = ", ".join(f"{name}: {{{text}}}" for name, text in TEXTS.items())
    text = f"fleet: {{instances: [{{url: 'http://127.0.0.1:1'}}]}}\npolicies: {{{inline}}}\nactive: "
    main.write_text(text + "near\n")
    house = ControlPlane(file=main, clock=SystemClock())
    tasks = Tasks("test")
    background.start(house.control, house.core, house.clock, tasks, watch=True)
    try:
        main.write_text(text + "nobody\n")
        await eventually(lambda: house.control.errors, DEADLINE_S)
        assert house.active == "near"
        main.write_text(text + "far\n")
        await eventually(lambda: house.active == "far" and not house.control.errors, DEADLINE_S)
    finally:
        await tasks.close()
