"""Ports: those that are given, those that are chosen, and one that is taken."""

from __future__ import annotations

import socket

import pytest

from router.config.sections.local_stack import LocalStackConfig
from router.testbed.local_stack import ports


def test_given_ports_stay_and_engines_follow_the_first() -> None:
    asked = LocalStackConfig(engines=3, first_port=8100, master_port=1, master_http_port=2, client_port=3)
    assert ports.choose_ports(asked) == (asked, [8100, 8101, 8102])


def test_zero_is_a_free_port() -> None:
    chosen, engines = ports.choose_ports(LocalStackConfig(first_port=0, master_port=0, client_port=4))
    assert len(engines) == 2
    assert all(engines)
    assert chosen.master_port > 0
    assert (chosen.client_port, chosen.master_http_port) == (4, 9003)


def test_a_taken_port_is_said_in_one_line() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(ports.PortTaken) as failure:
            ports.check_ports({"stack.client_port": port})
    assert str(failure.value) == f"port {port} is in use: end what listens there, or change stack.client_port"
    ports.check_ports({"stack.client_port": port, "admin.port": 0})
