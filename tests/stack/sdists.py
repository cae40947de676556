"""Chat templates of real models, taken from source distributions that pip downloads; nothing of them is committed.

pip prepares the metadata of whatever it downloads, which for these two means compilers and several GB of build
dependencies. So it is given a build backend of its own, under the names of theirs, which returns the metadata that the
distribution already holds (PKG-INFO): no code of a distribution is run. Only files called `*.jinja` are unpacked.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from router.lab.local_stack.install import cache_root

PINS = ("llama-cpp-python==0.3.36", "vllm==0.32.0")
BACKENDS = ("scikit_build_core/build.py", "setuptools/build_meta.py")
BACKEND = """\
from email import message_from_string
from pathlib import Path

def get_requires_for_build_wheel(config_settings=None):
    return []

def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    text = Path("PKG-INFO").read_text()
    fields = message_from_string(text)
    folder = f"{fields['Name'].replace('-', '_')}-{fields['Version']}.dist-info"
    Path(metadata_directory, folder).mkdir()
    Path(metadata_directory, folder, "METADATA").write_text(text)
    return folder
"""


class Template(NamedTuple):
    name: str  # distribution and path in it
    file: Path

    @property
    def text(self) -> str:
        return self.file.read_text(encoding="utf-8")


def chat_templates(pip: Path) -> list[Template]:
    """Return the templates of all pinned distributions, each text once. Downloads them when called the first time."""
    folder = cache_root() / f"templates-{hashlib.sha256(repr(PINS).encode()).hexdigest()[:12]}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
            _download(pip, Path(unfinished))
            with suppress(OSError):  # another run was faster
                (Path(unfinished) / "templates").rename(folder)
    texts: dict[bytes, Template] = {}
    for file in sorted(folder.rglob("*.jinja")):
        texts.setdefault(file.read_bytes(), Template(str(file.relative_to(folder)), file))
    return list(texts.values())


def _download(pip: Path, folder: Path) -> None:
    """Fill `folder`/templates. Raises CalledProcessError with pip's output."""
    for backend in BACKENDS:
        file = folder / "backends" / backend
        file.parent.mkdir(parents=True)
        file.write_text(BACKEND)
        (file.parent / "__init__.py").touch()
    command = [str(pip), "download", "--no-deps", "--no-binary=:all:", "--no-build-isolation", "--dest", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(folder / "backends")}
    done = subprocess.run([*command, *PINS], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"pip found no source distribution: {done.stdout[-500:]}{done.stderr[-2000:]}"
    for archive in sorted(folder.glob("*.tar.gz")):
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.isfile() and member.name.endswith(".jinja"):
                    target = folder / "templates" / member.name
                    assert target.resolve().is_relative_to(folder.resolve()), member.name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    content = tar.extractfile(member)
                    assert content is not None
                    with target.open("wb") as out:
                        shutil.copyfileobj(content, out)
