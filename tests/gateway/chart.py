"""The Helm chart for tests: what it renders, and its pods' files and command as the kubelet would make them."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import yaml
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT4

from tests.gateway.install import SCHEMAS, program
from tests.paths import ROOT

CHART = ROOT / "deploy" / "helm" / "warmroute"
ENGINES = {"engines": {"labels": {"app": "vllm"}}}
MODERN = "1.34.0"
DEFINITIONS = "/api/_definitions.json"  # as the schemas refer to it

Json = dict[str, Any]


def merge(one: Mapping[str, Any], other: Mapping[str, Any]) -> Json:
    """Return `one` with `other` over it, at every depth, as Helm merges values."""
    merged = dict(one)
    for key, value in other.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged


class Helm:
    """The program `helm`, with a home of its own."""

    def __init__(self, executable: Path, home: Path, options: Sequence[str] = ()) -> None:
        self._command = [str(executable), *options]
        self._home = home
        self._files = 0

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {"HOME": str(self._home), "PATH": os.environ["PATH"]}
        return subprocess.run([*self._command, *arguments], env=environment, capture_output=True, text=True)

    def done(self, *arguments: str) -> str:
        """Run it. Returns what it prints; fails with what it says when it fails."""
        finished = self.run(*arguments)
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    def write(self, values: Mapping[str, Any]) -> str:
        """Return the name of a new file with `values`."""
        self._files += 1
        file = self._home / f"values-{self._files}.yaml"
        file.write_text(yaml.safe_dump(dict(values)), encoding="utf-8")
        return str(file)

    def template(self, values: Mapping[str, Any], *options: str, version: str = MODERN) -> Rendered:
        """Render the chart as release `warmroute` in the namespace `llm` of a cluster of that version."""
        named = ("template", "warmroute", str(CHART), "--namespace", "llm", "--kube-version", version)
        return Rendered(self.done(*named, "--values", self.write(values), *options))

    def refusal(self, values: Mapping[str, Any]) -> str:
        """Return why the chart cannot be rendered; fails when it can."""
        finished = self.run("template", "warmroute", str(CHART), "--values", self.write(values))
        assert finished.returncode != 0, finished.stdout
        return finished.stderr


class Rendered:
    """The manifests of one rendering, whose objects are called `name`."""

    def __init__(self, text: str, name: str = "warmroute") -> None:
        self.text = text
        self._name = name
        self.all: list[Json] = [document for document in yaml.safe_load_all(text) if document]

    def find(self, kind: str, name: str | None = None) -> Json:
        name = name or self._name
        (found,) = [each for each in self.all if (each["kind"], each["metadata"]["name"]) == (kind, name)]
        return found

    @property
    def kinds(self) -> list[str]:
        return sorted(each["kind"] for each in self.all)

    @property
    def pod(self) -> Json:
        return dict(self.find("Deployment")["spec"]["template"]["spec"])

    def container(self, name: str = "warmroute") -> Json:
        (found,) = [each for each in self.pod["containers"] if each["name"] == name]
        return dict(found)

    @property
    def config(self) -> Json:
        """The router's configuration, as YAML reads it."""
        return dict(yaml.safe_load(self.find("ConfigMap")["data"]["warmroute.yaml"]))


class Files:
    """The volumes of a pod's containers below a folder, as the kubelet makes them: a ConfigMap's files are links into
    `..data`, a link itself, which an update renames over.
    """

    def __init__(
        self, folder: Path, rendered: Rendered, secrets: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        self.folder = folder
        self._secrets = secrets or {}
        self._versions = 0
        self.update(rendered)

    def update(self, rendered: Rendered) -> None:
        """Write what is new in the ConfigMaps, each at once."""
        volumes = {volume["name"]: volume for volume in rendered.pod["volumes"]}
        for mount in (mount for container in rendered.pod["containers"] for mount in container["volumeMounts"]):
            assert "subPath" not in mount
            path = self.folder / mount["mountPath"].lstrip("/")
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o777)
            content = self._content(volumes[mount["name"]], rendered)
            if content is not None:
                self.swap(path, content)

    def _content(self, volume: Json, rendered: Rendered) -> Mapping[str, str] | None:
        if "configMap" in volume:
            return dict(rendered.find("ConfigMap", volume["configMap"]["name"]).get("data") or {})
        if "secret" in volume:
            content = self._secrets[volume["secret"]["secretName"]]
            items = volume["secret"].get("items", [{"key": key, "path": key} for key in content])
            return {item["path"]: content[item["key"]] for item in items}
        assert "emptyDir" in volume, volume
        return None

    def swap(self, path: Path, content: Mapping[str, str]) -> None:
        """Replace a volume's files by `content`, all at once."""
        self._versions += 1
        before = (path / "..data").resolve() if (path / "..data").is_symlink() else None
        if before is not None and {file.name: file.read_text() for file in before.iterdir()} == content:
            return
        new = path / f"..2026_11_22_{self._versions}"
        new.mkdir()
        for name, text in content.items():
            (new / name).write_text(text, encoding="utf-8")
            if not (path / name).is_symlink():
                (path / name).symlink_to(f"..data/{name}")
        (path / "..data_tmp").symlink_to(new.name)
        (path / "..data_tmp").replace(path / "..data")
        for gone in [] if before is None else before.iterdir():
            if gone.name not in content:
                (path / gone.name).unlink()
        if before is not None:
            for file in before.iterdir():
                file.unlink()
            before.rmdir()

    def command(self, rendered: Rendered) -> list[str]:
        """Return the container's command, run by this checkout, with its files in the folder."""
        program_name, *arguments = rendered.container()["command"]
        assert program_name == "warmroute"
        return [sys.executable, "-m", "router", *(re.sub(r"^(?=/)", str(self.folder), each) for each in arguments)]

    def environment(self, rendered: Rendered) -> dict[str, str]:
        """Return the container's environment; a reference to a Secret is looked up."""
        return {entry["name"]: self._value(entry) for entry in rendered.container()["env"]}

    def _value(self, entry: Json) -> str:
        if "value" in entry:
            return str(entry["value"])
        reference = entry["valueFrom"]["secretKeyRef"]
        return self._secrets[reference["name"]][reference["key"]]


def validate(documents: Sequence[Json]) -> None:
    """Check manifests by the schemas of Kubernetes 1.34, which refuse unknown fields; kinds of others pass."""
    with zipfile.ZipFile(program(SCHEMAS)) as schemas:
        text = schemas.read("_definitions.json")
        registry: Registry[Any] = Registry().with_resource(DEFINITIONS, Resource(json.loads(text), DRAFT4))
        for document in documents:
            group, _, version = document["apiVersion"].rpartition("/")
            middle = f"{group.partition('.')[0]}-" if group else ""
            name = f"{document['kind'].lower()}-{middle}{version}.json"
            if name in schemas.namelist():
                jsonschema.Draft4Validator(json.loads(schemas.read(name)), registry=registry).validate(document)
            else:
                assert "." in group, f"{document['kind']} {document['apiVersion']}"


def secret(name: str, content: Mapping[str, str]) -> Json:
    data = {key: base64.b64encode(text.encode()).decode() for key, text in content.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}
