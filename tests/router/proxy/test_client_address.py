"""Whom a connection is counted for, and whom the header of a trusted proxy names."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from router.proxy.client_address import MAX_PROXIES, TrustedProxies, client_of

PROXIES = TrustedProxies([ip_network("10.0.0.0/8"), ip_network("2001:db8:f::/48")])


@pytest.mark.parametrize(
    ("host", "client"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("", ""),
    ],
)
def test_an_address_is_counted_as(host, client):
    assert client_of(host) == client


@pytest.mark.parametrize(
    ("host", "trusted"),
    [("10.1.2.3", True), ("::ffff:10.1.2.3", True), ("2001:db8:f:1::1", True), ("11.0.0.1", False), ("x", False)],
)
def test_who_is_trusted(host, trusted):
    assert PROXIES.trusts(host) is trusted


def test_without_networks_nobody_is_trusted():
    assert not TrustedProxies([]).trusts("10.1.2.3")


@pytest.mark.parametrize(
    ("lines", "client"),
    [
        (["192.0.2.1"], "192.0.2.1"),
        (["198.51.100.7, 192.0.2.1"], "192.0.2.1"),  # what it said itself, and what the proxy saw
        (["192.0.2.1, 10.0.0.9, 10.0.0.8"], "192.0.2.1"),
        (["198.51.100.7", "192.0.2.1,10.0.0.9"], "192.0.2.1"),
        (["192.0.2.1:4711"], "192.0.2.1"),
        (["[2001:db8::1]:4711"], "2001:db8::/64"),
        (["2001:db8::1"], "2001:db8::/64"),
        (["::ffff:192.0.2.1"], "192.0.2.1"),
        (["10.0.0.1, 10.0.0.2"], None),
        (["192.0.2.1, unknown"], None),
        (["192.0.2.1,"], None),
        (["_hidden"], None),
        ([""], None),
        ([], None),
        ([", ".join(["10.0.0.1"] * MAX_PROXIES)], None),
        ([", ".join(["192.0.2.1"] + ["10.0.0.1"] * MAX_PROXIES)], None),
        ([", ".join(["192.0.2.1"] + ["10.0.0.1"] * (MAX_PROXIES - 1))], "192.0.2.1"),
        ([",".join(["10.0.0.1"] * 7000)], None),
        (["\xff\xfe"], None),
    ],
)
def test_the_last_address_that_is_not_a_proxys_counts(lines, client):
    headers = [(b"host", b"r"), *((b"x-forwarded-for", line.encode("latin-1")) for line in lines)]
    assert PROXIES.find_client(headers) == client
