"""Compiles the modules on the path of a request with mypyc, where that is wished for; installs pure Python otherwise.

    pip install .                          pure Python
    WARMROUTE_COMPILE=1 pip install .      compiled: a minute or two, and a C compiler
    make compiled                          compiled in place

pyproject.toml describes the project. `pip install -e .` never compiles: an edited module would go on running as it was
compiled (tests/conftest.py refuses that).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from sysconfig import get_paths
from tempfile import TemporaryDirectory
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

from distutils.ccompiler import new_compiler  # isort: skip  # setuptools' own, from here on
from distutils.sysconfig import customize_compiler  # isort: skip

COMPILED = (
    "router/backends/vllm/kv_event.py",
    "router/backends/vllm/kv_events.py",
    "router/features/adapters/book.py",
    "router/features/admission/lease.py",
    "router/features/admission/waiting.py",
    "router/features/aliases/*.py",
    "router/features/continuation/*.py",
    "router/features/preload/book.py",
    "router/features/preload/booking.py",
    "router/features/preload/recent_prompts.py",
    "router/features/tenants/*.py",
    "router/fleet/*.py",
    "router/kvcache/*.py",
    "router/prompt/*.py",
    "router/prompt/api/*.py",
    "router/prompt/tokenization/*.py",
    "router/proxy/*.py",
    "router/request/*.py",
    "router/scheduling/*.py",
    "router/scheduling/experiments/regret.py",
    "router/scheduling/experiments/shadow.py",
    "router/scheduling/policy/*.py",
    "router/tenants/*.py",
    "router/telemetry/failure.py",
    "router/telemetry/metrics/buckets.py",
    "router/telemetry/metrics/engine_tables.py",
    "router/telemetry/metrics/prometheus.py",
    "router/telemetry/recent_records.py",
    "router/lab/simulator/block_cache.py",
    "router/lab/simulator/cluster.py",
    "router/lab/simulator/event_queue.py",
    "router/lab/simulator/fast_engine.py",
    # of plug-ins the shared loops: of a compiled one, users would see neither its parameters' types nor its docstring
    "scorers/blocks.py",
    "scorers/chance.py",
    "scorers/headroom.py",
    "scorers/polled.py",
    "scorers/rivals/prefix_trees.py",
    "scorers/row_loops.py",
    "scorers/streams.py",
    "scorers/ttft.py",
)
INTERPRETED = {
    "msgspec reads the classes, and mypyc keeps no annotations": (
        "router/fleet/drains.py",
        "router/fleet/saved_instance.py",
        "router/fleet/saved_parts.py",
        "router/fleet/worker_share.py",
        "router/kvcache/snapshot_format.py",
        "router/prompt/api/anthropic.py",
        "router/prompt/api/conversation_id.py",
        "router/prompt/api/fields.py",
        "router/prompt/api/openai.py",
        "router/prompt/api/responses.py",
        "router/prompt/api/size_limits.py",
        "router/prompt/prompt.py",
        "router/scheduling/policy/record.py",
        "router/scheduling/ticket.py",
        "router/features/tenants/tenant_totals.py",
        "router/features/tenants/token_counts.py",
        "router/features/tenants/usage.py",
    ),
    "No request passes them": (
        "router/features/tenants/api.py",
        "router/features/tenants/metering.py",
        "router/features/tenants/peers.py",
        "router/features/tenants/usage_store.py",
    ),
    "Awaits in `finally`: the exception would be seen by whatever runs meanwhile": (
        "router/proxy/disaggregated.py",
        "router/proxy/listener.py",
    ),
    "Derives from `dict` with `__missing__`": ("router/kvcache/engine_hashes.py",),
    "Written in C as well, which is compiled in its place": ("router/kvcache/bulk.py",),
    "Libraries in Python and C do the work": (
        "router/prompt/tokenization/chat_template.py",
        "router/prompt/tokenization/content_format.py",
        "router/prompt/tokenization/harmony.py",
        "router/prompt/tokenization/kimi.py",
        "router/prompt/tokenization/local_tokenizer.py",
        "router/prompt/tokenization/message_renderer.py",
        "router/prompt/tokenization/mistral.py",
        "router/prompt/tokenization/model_folder.py",
        "router/prompt/tokenization/probes.py",
        "router/prompt/tokenization/text_codec.py",
        "router/prompt/tokenization/threads.py",
        "router/prompt/tokenization/tokenization.py",
        "router/proxy/asgi.py",
        "router/proxy/certificates.py",
        "router/proxy/listening_sockets.py",
        "router/request/error_body.py",
        "router/request/ops_api.py",
        "router/request/picker_api.py",
        "router/request/picker_path.py",
        "router/request/query_parameters.py",
        "router/request/token_ids.py",
        "router/tenants/tokens.py",
    ),
}
BUILT_ONCE = ("__init__.py", "feature.py")
COMPILES = os.environ.get("WARMROUTE_COMPILE") == "1"
# mypy has mypyc; the others have types that compiled modules use
REQUIRES = [
    "mypy>=2.4,<3",
    "httptools>=0.6.4,<0.10",
    "msgspec>=0.19,<0.23",
    "pydantic>=2.10,<3",
    "tokenizers>=0.21,<0.24",
    "xxhash>=3.5,<5",
]
LIBRARY = "scorers.compiled"  # all modules in one, so that they call each other without Python's calls


def modules_to_compile() -> list[str]:
    """Return the files of the modules, sorted."""
    interpreted = {file for files in INTERPRETED.values() for file in files}
    found = {str(file) for pattern in COMPILED for file in Path().glob(pattern) if file.name not in BUILT_ONCE}
    return sorted(found - interpreted)


def has_compiler() -> bool:
    """Return whether C that includes Python's headers compiles."""
    compiler = new_compiler()
    customize_compiler(compiler)
    with TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text("#include <Python.h>\n")
        try:
            compiler.compile([str(source)], output_dir=folder, include_dirs=[get_paths()["include"]])
        except CompileError:
            return False
    return True


def bulk() -> Extension:
    """Return the C twin of the Python module of that name."""
    sources, headers = (sorted(map(str, Path("router/kvcache/native").glob(f"*.{kind}"))) for kind in "ch")
    return Extension("router.kvcache.bulk", sources, depends=headers, extra_compile_args=["-O2", "-Wall"])


def build_extensions() -> list[Extension]:
    """Translate the modules to C, and return the extensions to compile."""
    if not has_compiler():
        sys.exit("warmroute: compiling needs a C compiler and Python.h (Debian: gcc and python3-dev)")
    from mypyc.build import mypycify

    # types are checked by `make check`; here libraries whose types do not matter need not even be installed
    options = ["--config-file=", "--ignore-missing-imports", "--no-error-summary"]
    try:
        found = mypycify([*options, *modules_to_compile()], opt_level="2", multi_file=True, group_name=LIBRARY)
    except SystemExit as failed:  # it has printed why
        sys.exit(f"warmroute: mypyc failed ({failed.code}); without WARMROUTE_COMPILE=1 pure Python is installed")
    for extension in found:
        extension.include_dirs.append("build/scorers")  # of the library's header, which mypyc forgets in a package
        extension.extra_compile_args.append("-g0")  # debug information takes a fifth of the time
    return [*found, bulk()]


class ParallelBuild(build_ext):
    """Compiles the source files of an extension on all cores. The option `parallel` does so with whole extensions, but
    nearly all of the work is one of them.
    """

    def build_extensions(self) -> None:
        """Build all extensions."""
        compile_sources = self.compiler.compile

        def compile_in_parallel(sources: Sequence[str], **options: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as threads:
                compiled = threads.map(lambda source: compile_sources([source], **options), sources)
                return [file for files in compiled for file in files]

        self.compiler.compile = compile_in_parallel
        super().build_extensions()


if __name__ == "__main__":  # mypyc starts processes that import this module
    setup(
        ext_modules=build_extensions() if "build_ext" in sys.argv or (COMPILES and "bdist_wheel" in sys.argv) else [],
        setup_requires=REQUIRES if COMPILES else [],
        cmdclass={"build_ext": ParallelBuild},
        options={"build_ext": {"parallel": os.cpu_count()}},
    )
