"""`python -m tests.clients.install` puts the clients that `make test-clients` runs into the cache folder, once per pin.

    node        the packages of sdk/package-lock.json: `npm ci`, no install scripts
    langchain   an environment of its own: it needs another `openai` than ours
    aider       the same

The openai and anthropic packages for Python are the project's own test dependencies. Where npm is not installed, or the
registry has no binary of an agent for this system, the tests of that client skip with the reason.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from router.lab.local_stack.install import STAMP, InstallFailed, cache_root, cached_venv, venv_path

SDK = Path(__file__).resolve().parent / "sdk"
MANIFEST = ("package.json", "package-lock.json", ".npmrc")
VENVS = ("langchain", "aider")
PROGRAMS = {  # package: its command
    "aider": "bin/aider",
    "codex": "node_modules/.bin/codex",
    "opencode": "node_modules/opencode-linux-x64-baseline/bin/opencode",
}


def home(client: str) -> Path:
    """Return the folder of a client's packages, installed or not: a virtual environment, or the parent of
    `node_modules`.
    """
    if client in VENVS:
        return venv_path(f"client-{client}", _requirements(client))
    digest = hashlib.sha256(b"".join((SDK / name).read_bytes() for name in MANIFEST))
    return cache_root() / f"client-node-{digest.hexdigest()[:12]}"


def program(client: str) -> Path:
    """Return where the command of an agent is, installed or not."""
    return home(client) / PROGRAMS[client]


def why_missing(client: str) -> str | None:
    """Return why the tests of this client cannot run; None if they can."""
    if (home(client) / STAMP).exists() and (client not in PROGRAMS or program(client).exists()):
        return None
    return f"{client} is not installed: python -m tests.clients.install"


def install() -> None:
    """Install all clients. Raises InstallFailed."""
    for client in VENVS:
        cached_venv(f"client-{client}", _requirements(client), lambda venv: None)
    if shutil.which("npm") is None:
        print("clients: no npm: the clients for node are left out", flush=True)
        return
    folder = home("node")
    if (folder / STAMP).exists():
        return
    print(f"clients: npm ci in {folder}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in MANIFEST:
        shutil.copy(SDK / name, folder)
    quiet = ("--no-audit", "--no-fund", "--loglevel=error")
    done = subprocess.run(["npm", "ci", "--ignore-scripts", *quiet], cwd=folder)
    if done.returncode:
        raise InstallFailed(f"npm ci in {folder} failed with {done.returncode}")
    (folder / STAMP).touch()


def _requirements(client: str) -> Path:
    return SDK.parent / f"requirements-{client}.txt"


if __name__ == "__main__":
    try:
        install()
    except InstallFailed as failed:
        sys.exit(f"clients: {failed}")
