"""The load of the machine, from the kernel's counters."""

from __future__ import annotations

from tests.bench.machine import _busy_ticks, name, others_cores


def test_idle_and_waiting_for_disks_is_not_busy() -> None:
    # user 10, nice 20, system 30, idle 1000, iowait 500, irq 1, softirq 2, steal 4: 10 + 20 + 30 + 1 + 2 + 4
    assert _busy_ticks("cpu  10 20 30 1000 500 1 2 4 0 0\ncpu0 5 5 5 5 5 5 5 5 5 5\n") == 67


def test_no_more_cores_are_busy_than_could_be() -> None:
    assert 0 <= others_cores(0.05) <= 1024
    assert "Python 3." in name()
