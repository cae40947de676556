"""A hub of one model for `hf download`: with `serve_model(repository, folder) as url`.

It answers what huggingface_hub 2.4 asks: which commit a revision is, which files that has, and each file. It lists
weights too, which it does not have: a client that downloads more than it should fails.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "a" * 40
WEIGHTS = "model.safetensors"


@contextmanager
def serve_model(repository: str, folder: Path) -> Iterator[str]:
    """Serve the files of `folder` as the hub serves those of `repository`. Yields the hub's URL."""
    files = {file.name: file.read_bytes() for file in folder.iterdir()}

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_HEAD(self) -> None:
            self._answer()

        def _answer(self) -> None:
            path, _, _ = self.path.partition("?")
            name = path.rpartition("/")[2]
            if path == f"/api/models/{repository}/revision/main":
                listed = [{"rfilename": name} for name in [*files, WEIGHTS]]
                self._send(200, json.dumps({"id": repository, "sha": COMMIT, "siblings": listed}).encode())
            elif path == f"/api/models/{repository}/tree/{COMMIT}":
                tree = [{"type": "file", "path": name, "size": 1, "oid": _digest(b"")} for name in [*files, WEIGHTS]]
                self._send(200, json.dumps(tree).encode())
            elif path == f"/{repository}/resolve/{COMMIT}/{name}" and name in files:
                self._send(200, files[name], etag=f'"{_digest(files[name])}"', **{"x-repo-commit": COMMIT})
            else:
                self._send(404, b"{}")

        def _send(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in ({"content-length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing: the tests print no requests."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def _digest(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
