"""`python -m tests.gateway.install` builds kube-apiserver and etcd into the cache folder, anew when its script changed.

It takes 7 minutes of CPU time on Debian 12 and needs its package archive; tests that need the programs skip without.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
from pathlib import Path

from router.testbed.local_stack.install import cache_root

SCRIPT = Path(__file__).resolve().parent / "build_apiserver.sh"
PROGRAMS = ("kube-apiserver", "etcd")


def programs_folder() -> Path:
    """Return the folder of the programs that this version of the script builds, built or not."""
    return cache_root() / f"apiserver-{hashlib.sha256(SCRIPT.read_bytes()).hexdigest()[:12]}"


def is_built(folder: Path) -> bool:
    return all((folder / program).is_file() for program in PROGRAMS)


def build() -> Path:
    """Return the folder with the programs, after building them if needed. Raises CalledProcessError."""
    folder = programs_folder()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_built(folder):
            log = folder.with_suffix(".log")
            print(f"gateway: building kube-apiserver in {folder}, which takes some minutes; log: {log}", flush=True)
            with log.open("w") as out:
                subprocess.run([str(SCRIPT), str(folder)], stdout=out, stderr=subprocess.STDOUT, check=True)
    return folder


if __name__ == "__main__":
    try:
        print(f"gateway: {build()}")
    except subprocess.CalledProcessError as failed:
        sys.exit(f"gateway: {SCRIPT.name} failed with {failed.returncode}: see the end of its log")
