"""An environment whose programs answer as vLLM's and Mooncake's do and do no more: such a stack starts at once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from router.config.sections.local_stack import LocalStackConfig
from router.lab.local_stack.preflight import free_ports

SERVER = """\
#!{python}
import http.server, os, sys, time
print("started as", sys.argv[1:], flush=True)
if "--die" in sys.argv:
    print("(APIServer pid=6) WARNING 11-21 [y.py:2] This may cause OSError: [Errno 24] Too many open files")
    print("(Worker pid=7) ERROR 11-21 [x.py:1] ValueError: no room for the cache")
    print("RuntimeError: Engine core initialization failed. See root cause above.")
    sys.exit(3)
if "--mute" in sys.argv:
    time.sleep(60)
for word in sys.argv:
    if word.startswith("--mute-once=") and not os.path.exists(file := word.partition("=")[2]):
        open(file, "w").close()
        time.sleep(60)
if "--offspring" in sys.argv and os.fork() == 0:
    time.sleep(60)
class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    do_POST = do_GET
flags = dict(word.lstrip("-").split("=") for word in sys.argv if "=" in word)
port = flags.get("metrics_port") or flags.get("port") or sys.argv[sys.argv.index("--port") + 1]
http.server.HTTPServer(("127.0.0.1", int(port)), Healthy).serve_forever()
"""


@pytest.fixture(scope="session")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("venv") / "bin"
    folder.mkdir()
    for name in ("vllm", "mooncake_master", "mooncake_client"):
        (folder / name).write_text(SERVER.format(python=sys.executable))
        (folder / name).chmod(0o755)
    return folder.parent


@pytest.fixture
def make_config(tmp_path: Path) -> Callable[..., LocalStackConfig]:
    """A small stack on ports that are free."""

    def make(**given: object) -> LocalStackConfig:
        ports = dict(zip(("master_port", "master_http_port", "client_port"), free_ports(3), strict=True))
        base = {"model": str(tmp_path), "logs_dir": str(tmp_path / "logs"), "first_port": 0, "start_timeout_s": 20.0}
        return LocalStackConfig.model_validate({**base, **ports, **given})

    return make
