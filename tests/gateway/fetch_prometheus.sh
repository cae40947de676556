#!/usr/bin/env bash
# fetch_prometheus.sh FOLDER: puts prometheus and promtool 2.42 into FOLDER, for the tests of alerting rules and dashboard.
#
# They are in Debian 12's package `prometheus` and need nothing but libc. The package is fetched and unpacked into a
# scratch folder, so nothing is installed and no root is needed; 100 MB remain.
set -euo pipefail

OUT=$(mkdir -p "$1" && cd "$1" && pwd)
WORK=$(mktemp -d "$OUT/scratch.XXXXXX")
trap 'rm -rf "$WORK"' EXIT

# apt with lists and caches of its own, so that the system's are left alone.
mkdir -p "$WORK"/apt/{state/lists/partial,cache/archives/partial} "$WORK/debian"
APT=(-qq -o Dir::Etc::sourcelist=/etc/apt/sources.list.d/debian.sources -o Dir::Etc::sourceparts=/dev/null
     -o "Dir::State=$WORK/apt/state" -o "Dir::Cache=$WORK/apt/cache" -o Dir::State::status=/var/lib/dpkg/status
     -o "APT::Sandbox::User=$(id -un)")
cd "$WORK"
apt-get "${APT[@]}" update
apt-get "${APT[@]}" download prometheus
dpkg-deb -x prometheus_*.deb debian
for PROGRAM in promtool prometheus; do
  debian/usr/bin/$PROGRAM --version
  mv debian/usr/bin/$PROGRAM "$OUT/$PROGRAM"
done
