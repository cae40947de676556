"""A small API server on a real socket, for what the real one cannot be asked to do: half a line, silence, 429.

    async with ApiServer(folder) as server:
        server.put("vllm-0", ip="10.0.0.1")         an object, which open watches hear of
        server.refusals.append(Refusal(429, retry_after=2))

It keeps pods of one namespace by name, resource versions, pages of lists, label selectors of equality, and watches.
The same client runs against a real API server in `tests/gateway`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from router.config.sections.discovery import KubernetesApiConfig

Json = dict[str, Any]
PODS = "/api/v1/namespaces/llm/pods"
POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/llm/inferencepools"


class Refusal(NamedTuple):
    """An answer to the next request, whatever it is."""

    status: int
    retry_after: int | None = None


class ApiRequest(NamedTuple):
    path: str
    query: dict[str, str]
    token: str


class Watch(NamedTuple):
    request: ApiRequest
    lines: asyncio.Queue[bytes | None]  # None: the end

    def matches(self, found: Json) -> bool:
        wanted = self.request.query.get("labelSelector", "")
        labels = found["metadata"].get("labels", {})
        return all(
            labels.get(pair.partition("=")[0]) == pair.partition("=")[2] for pair in filter(None, wanted.split(","))
        )


class ApiServer:
    """The server, and what a test changes."""

    def __init__(self, folder: Path) -> None:
        self.token_file = folder / "token"
        self.token_file.write_text("first\n")
        self.token = "first"
        self.version = 100
        self.oldest = 0  # versions before this one are too old for a watch
        self.objects: dict[str, dict[str, Json]] = {PODS: {}, POOLS: {}}  # by path and name
        self.history: list[tuple[int, str, Json]] = []
        self.requests: list[ApiRequest] = []
        self.refusals: list[Refusal] = []
        self.watches: list[Watch] = []
        self.silent = False  # watches hear nothing, and do not end
        self.scales: dict[str, int] = {}  # replicas, by path
        self.patches: list[tuple[str, Json]] = []  # path and change
        self.made = 0
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> ApiServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.end_watches()
        self.hang_up()
        await self._server.wait_closed()

    @property
    def config(self) -> KubernetesApiConfig:
        return KubernetesApiConfig(url=f"http://127.0.0.1:{self.port}", token_file=str(self.token_file), ca_file=None)

    def hang_up(self) -> None:
        """Break every connection."""
        for writer in self._writers:
            writer.transport.abort()

    def lists(self, path: str = PODS) -> int:
        """Lists that were asked for, each counted once whatever its pages."""
        return sum(
            request.path == path and "watch" not in request.query and "continue" not in request.query
            for request in self.requests
        )

    # changes

    def put(
        self, name: str, *, ip: str | None = "10.0.0.1", ready: bool = True, uid: str | None = None, **metadata: Any
    ) -> str:
        """Make or change a pod. Returns its uid."""
        known = self.objects[PODS].get(name)
        if uid is None:
            self.made += known is None
            uid = known["metadata"]["uid"] if known is not None else f"{self.made:08x}-0000"
        meta = {"labels": {"app": "vllm"}} | metadata | {"name": name, "uid": uid, "namespace": "llm"}
        conditions = [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": str(ready)}]
        pod: Json = {
            "kind": "Pod",
            "metadata": meta,
            "spec": {"containers": [{}]},
            "status": {"conditions": conditions},
        }
        if ip is not None:
            pod["status"] |= {"podIP": ip, "podIPs": [{"ip": ip}]}
        self.store(PODS, pod)
        return uid

    def store(self, path: str, found: Json) -> None:
        """Keep an object, and tell the watches."""
        name = found["metadata"]["name"]
        before = self.objects[path].get(name)
        self.version += 1
        found["metadata"]["resourceVersion"] = str(self.version)
        self.objects[path][name] = found
        for watch in self.watches:
            if watch.request.path == path:
                matched, matches = before is not None and watch.matches(before), watch.matches(found)
                if matched or matches:
                    self._tell(watch, "DELETED" if not matches else "MODIFIED" if matched else "ADDED", found)
        self.history.append((self.version, "MODIFIED" if before is not None else "ADDED", found))

    def delete(self, name: str, *, lost: bool = False, path: str = PODS) -> None:
        """Delete an object; where the event is lost, no watch hears of it."""
        found = self.objects[path].pop(name)
        self.version += 1
        found["metadata"]["resourceVersion"] = str(self.version)
        if not lost:
            self.history.append((self.version, "DELETED", found))
            for watch in self.watches:
                if watch.request.path == path and watch.matches(found):
                    self._tell(watch, "DELETED", found)

    def send(self, line: bytes) -> None:
        """Send bytes to every watch, as they are."""
        for watch in self.watches:
            watch.lines.put_nowait(line)

    def end_watches(self) -> None:
        """End every watch, as the server does after timeoutSeconds."""
        for watch in self.watches:
            watch.lines.put_nowait(None)

    def expire(self) -> None:
        """Forget the history: versions up to now are too old."""
        self.oldest = self.version + 1
        self.version += 1

    def _tell(self, watch: Watch, kind: str, found: Json) -> None:
        if not self.silent:
            watch.lines.put_nowait(encode_event(kind, found))

    # answers

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)content-length: (\d+)", head)
                await self._answer(head, b"" if length is None else await reader.readexactly(int(length[1])), writer)
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        first, *lines = head.decode().split("\r\n")
        url = urlsplit(first.split(" ")[1])
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        request = ApiRequest(url.path, query, headers["authorization"].removeprefix("Bearer "))
        self.requests.append(request)
        if self.refusals:
            self._refuse(writer, self.refusals.pop(0))
        elif request.token != self.token:
            self._refuse(writer, Refusal(401))
        elif head.startswith(b"PATCH"):
            self._patch(request, headers["content-type"], json.loads(body), writer)
        elif request.path in self.scales:
            self._show_scale(request, writer)
        elif "watch" in query:
            await self._watch(request, writer)
        else:
            self._list(request, writer)
        await writer.drain()

    def _refuse(self, writer: asyncio.StreamWriter, refusal: Refusal) -> None:
        body = json.dumps({"kind": "Status", "message": f"refused with {refusal.status}", "code": refusal.status})
        pause = "" if refusal.retry_after is None else f"retry-after: {refusal.retry_after}\r\n"
        writer.write(f"HTTP/1.1 {refusal.status} No\r\n{pause}content-length: {len(body)}\r\n\r\n{body}".encode())

    def _show_scale(self, request: ApiRequest, writer: asyncio.StreamWriter) -> None:
        replicas = self.scales[request.path]
        spec = {"replicas": replicas} if replicas else {}  # the real one leaves a zero out
        body = json.dumps({"kind": "Scale", "apiVersion": "autoscaling/v1", "spec": spec})
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())

    def _patch(self, request: ApiRequest, kind: str, change: Json, writer: asyncio.StreamWriter) -> None:
        assert kind == "application/merge-patch+json"
        self.patches.append((request.path, change))
        if request.path in self.scales:
            self.scales[request.path] = change["spec"]["replicas"]
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    def _list(self, request: ApiRequest, writer: asyncio.StreamWriter) -> None:
        start, limit = int(request.query.get("continue", "0")), int(request.query["limit"])
        watch = Watch(request, asyncio.Queue())
        matching = [found for found in self.objects[request.path].values() if watch.matches(found)]
        meta = {"resourceVersion": str(self.version)}
        if len(matching) > start + limit:
            meta["continue"] = str(start + limit)
        body = json.dumps({"kind": "PodList", "metadata": meta, "items": matching[start : start + limit]})
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())

    async def _watch(self, request: ApiRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        since = int(request.query["resourceVersion"])
        if since < self.oldest:
            old = {"kind": "Status", "reason": "Expired", "code": 410, "message": f"too old resource version: {since}"}
            writer.write(encode_chunk(encode_event("ERROR", old)) + b"0\r\n\r\n")
            return
        watch = Watch(request, asyncio.Queue())
        for version, kind, found in self.history:
            if version > since and watch.matches(found):
                self._tell(watch, kind, found)
        self.watches.append(watch)
        try:
            while (line := await watch.lines.get()) is not None:
                writer.write(encode_chunk(line))
                await writer.drain()
            writer.write(b"0\r\n\r\n")
        finally:
            self.watches.remove(watch)


def encode_event(kind: str, found: Json) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"


def encode_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def pool(name: str, labels: dict[str, str], ports: Sequence[int]) -> Json:
    """An InferencePool."""
    spec = {"selector": {"matchLabels": labels}, "targetPorts": [{"number": port} for port in ports]}
    return {"kind": "InferencePool", "metadata": {"name": name, "uid": f"pool-{name}", "labels": {}}, "spec": spec}
