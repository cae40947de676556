# Everything is installed into .venv from constraints.txt, the tested lock. Needed beforehand: Python >= 3.11, make, pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# pytest workers. Twice the cores that the project is tested on: half of the tests mostly wait.
WORKERS ?= 4
PIP := $(BIN)/pip --disable-pip-version-check -q
# Tests that need a machine or a time of their own, see the markers in pyproject.toml
HERE := not stack and not abuse and not gateway and not doctor and not browser and not clients and not oracle and not gameday and not rollout
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
# Not in `make test`, each with a target of its own that CI runs
TOOLS := tests/agreement tests/bench tests/picker_conformance tests/router/lab tests/router/operate \
  tests/e2e/test_load.py tests/e2e/test_picker_conformance.py tests/router/scheduling/experiments/test_error_rates.py \
  $(addprefix tests/router/cli/,advise doctor gameday load replay rollout simulate workload)
SEVERAL := $(addprefix tests/e2e/test_,workers.py admission_workers.py replicas.py)
ELSEWHERE := $(TOOLS) $(SEVERAL) $(addprefix tests/,abuse browser clients docs gameday gateway oracle package stack)
# of `make fuzz`
TARGETS ?= client engine gateway zmtp peers token keys events snapshot body answer metrics engine_json config
MINUTES ?= 10
# of `make simulation`, in virtual time
HOURS ?= 10
# of `make simulation` and `make soak`
SEED ?= 1
# JavaScript libraries of the live page, copied into the repository by `make vendor`
VENDORED := uplot@1.6.32 preact@11.2.0 htm@3.1.1 axe-core@4.14.1
# Tests start hundreds of interpreters: each would compile all modules again where the environment forbids to keep them.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run stack test check test-router test-tools test-workers test-deep test-package test-abuse test-pure test-stack test-stack-long test-gateway test-alerts test-doctor test-rollout test-browser test-oracle test-clients gameday soak soak-short simulation abuse fuzz audit bench bench-sim bench-sim-full headtohead compiled pure wheel dist lock reference protos docs docs-serve vendor screenshots clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.installed  ## start four simulated engines and the router in front of them
	$(BIN)/warmroute fleet --config configs/quickstart.yaml --decision-log build/decisions

stack: $(VENV)/.installed  ## start two real vLLM engines over a real Mooncake Store, and the router
	$(BIN)/warmroute stack --config configs/stack-cpu.yaml

test: $(VENV)/.installed-test  ## run `check` and the tests of the router, beside each other (4 to 7 minutes on two cores)
	@$(MAKE) --no-print-directory -j 2 check test-router

test-router: $(VENV)/.installed-test  ## run the tests of the router: every module, and whole routers before emulated engines
	$(PYTEST) -m "$(HERE)" $(addprefix --ignore=,$(ELSEWHERE))

test-tools: $(VENV)/.installed-test  ## run the tests of lab, doctor, rollout, simulations, benchmarks and the picker conformance suite
	$(PYTEST) -m "$(HERE)" $(TOOLS)

test-workers: $(VENV)/.installed-test  ## run the tests of routers of several workers, and of several routers (a minute and a half)
	$(PYTEST) -m "$(HERE)" $(SEVERAL)

test-deep: $(VENV)/.installed-test  ## try all properties with many new examples (`make test` tries 20, always the same)
	$(PYTEST) -m "hypothesis and $(HERE)" --hypothesis-profile deep

test-package: $(VENV)/.installed-test  ## build sdist and wheel, install the wheel without extras, and use it
	$(BIN)/python -m pytest tests/package

test-abuse: $(VENV)/.installed-test  ## run the attacks that take seconds (`make abuse`: all)
	$(PYTEST) -m "$(HERE)" tests/abuse

check: $(VENV)/.installed-test  ## run lint, format, types and import rules (under a minute)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@$(BIN)/python tests/measure_house.py

# tests/builds holds both builds equal, so the parts that decide and index are what is worth testing in both.
test-pure: $(VENV)/.installed-test  ## run the core's tests on the source of compiled modules
	WARMROUTE_PURE=1 $(PYTEST) -m "$(HERE)" \
	  tests/scorers tests/router/features tests/router/fleet tests/router/kvcache tests/router/prompt tests/router/proxy tests/router/request tests/router/scheduling

test-stack: $(VENV)/.installed-test  ## run the tests that need real vLLM engines and a real Mooncake Store
	$(BIN)/python -m router.lab.local_stack.install
	$(BIN)/python -m pytest -m "stack and not long" tests/stack tests/router/lab/local_stack

test-stack-long: $(VENV)/.installed-test  ## run the tests with real engines that take minutes by themselves (20 minutes; not in CI)
	$(BIN)/python -m router.lab.local_stack.install
	$(BIN)/python -m pytest -m "stack and long" tests/stack

test-gateway: $(VENV)/.installed-test  ## run the tests that need a real Kubernetes API server (built once: 7 minutes of CPU time), Envoy or Prometheus
	$(BIN)/python -m tests.gateway.install
	$(BIN)/python -m pytest -m "gateway and not long" tests/gateway

test-alerts: $(VENV)/.installed-test  ## raise and resolve every alert on a real Prometheus by the faults of two deployments (6 minutes; not in CI)
	$(BIN)/python -m tests.gateway.install
	$(BIN)/python -m pytest -m "gateway and long" tests/gateway

test-doctor: $(VENV)/.installed-test  ## plant every fault that `warmroute doctor` knows in a fleet of emulated engines (a minute)
	$(BIN)/python -m pytest -m doctor -n $(WORKERS) tests/router/operate/doctor tests/e2e/test_doctor.py

test-rollout: $(VENV)/.installed-test  ## restart fleets of emulated engines with `warmroute rollout`, and the router itself (two minutes)
	$(BIN)/python -m pytest -m rollout tests/e2e/test_rollout.py tests/e2e/test_handover.py tests/e2e/test_snapshot.py tests/e2e/test_killed_workers.py

# Playwright drives Debian's browser, not one of its own.
test-browser: $(VENV)/.installed-test  ## run the tests of the live page in Chromium, which is installed from Debian where it is not there
	@command -v chromium > /dev/null || { apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium; }
	$(BIN)/python -m pytest -m browser tests/browser

test-oracle: $(VENV)/.installed-test  ## compare the router with an engine queried directly, all requests in all configurations (3 minutes)
	$(BIN)/python -m pytest -m oracle -n 2 tests/oracle

# The clients are installed once, outside of .venv, into the cache folder.
test-clients: $(VENV)/.installed-test  ## run real clients (SDKs for Python and node, aider, Codex CLI, opencode) against the router (4 minutes)
	@command -v npm > /dev/null || { apt-get update -qq && apt-get install -qq -y --no-install-recommends nodejs npm; }
	$(BIN)/python -m tests.clients.install
	$(BIN)/python -m pytest -m clients -n 2 --dist loadfile tests/clients

screenshots: $(VENV)/.installed-test  ## make the pictures of the live page's documentation anew (5 minutes)
	$(BIN)/python -m tests.browser.screenshots

gameday: $(VENV)/.installed-test  ## kill, freeze and deceive engines under load, the short day (2 minutes)
	$(BIN)/python -m pytest tests/gameday

soak: $(VENV)/.installed-test  ## play faults that a seed draws against three routers, and examine what is left (2 hours; SEED=1)
	$(BIN)/python -m router gameday soak --seed $(SEED) --folder build/soak --json build/soak.json

soak-short: $(VENV)/.installed-test  ## the same for 10 minutes
	$(BIN)/python -m router gameday soak-short --seed $(SEED) --folder build/soak-short --json build/soak-short.json

simulation: $(VENV)/.installed-test  ## run routers, engines and a network in virtual time with faults by seed (HOURS=10: 12 minutes)
	$(BIN)/python -m tests.simulation $(HOURS) --seed $(SEED)

abuse: $(VENV)/.installed-test  ## attack a running router in every known way and print what others notice (15 minutes)
	$(BIN)/python -m pytest tests/abuse

fuzz: $(VENV)/.installed-test  ## fuzz what parses bytes from outside, guided by coverage (140 minutes; TARGETS="client body", MINUTES=1)
	@$(PIP) install -c constraints.txt -e '.[fuzz]'
	set -e; for target in $(TARGETS); do $(BIN)/python -m tests.abuse.fuzz $$target --minutes $(MINUTES); done

# Without --strict it passes when the advisory service knows none of the packages, or is a mirror that has no advisories.
audit: $(VENV)/.installed-test  ## ask PyPI's advisory service for known vulnerabilities of what constraints.txt pins
	@$(BIN)/pip-audit --strict --progress-spinner off --disable-pip --no-deps -r constraints.txt || \
	  { echo "make audit: not passed: a known vulnerability, or not everything could be looked up (see above)"; exit 1; }

bench: $(VENV)/.installed-test  ## measure every figure against its bar and peers (about 52 minutes; BENCH=--quick: 9)
	$(BIN)/python -m tests.bench $(BENCH)

bench-sim: $(VENV)/.installed-test  ## compare the simulator with published measurements, and all policies, reduced (about an hour)
	$(BIN)/python -m tests.agreement rows --reduced --resume
	$(BIN)/python -m tests.agreement admission --reduced --seeds 1
	$(BIN)/python -m tests.agreement grid --reduced

bench-sim-full: $(VENV)/.installed-test  ## run bench-sim in full, resumable (about 12 hours on 2 cores)
	$(BIN)/python -m tests.agreement rows --resume
	$(BIN)/python -m tests.agreement admission
	$(BIN)/python -m tests.agreement grid

headtohead: $(VENV)/.installed-test  ## play the real routers and ours on the same emulated engines (15 hours, in pieces; ARGS=--short: 45 minutes)
	@command -v nginx > /dev/null || { apt-get update -qq && apt-get install -qq -y --no-install-recommends nginx-light; }
	$(BIN)/python -m tests.headtohead $(ARGS)

compiled: $(VENV)/.installed-test  ## compile the modules on a request's path in place (2 minutes; needs a C compiler)
	$(BIN)/python setup.py -q build_ext --inplace
	find router scorers -name '*.so' -exec touch {} +

pure:  ## remove the compiled modules
	find router scorers -name '*.so' -delete

wheel: $(VENV)/.installed-test  ## build the compiled wheel of this platform into dist/ (5 minutes)
	WARMROUTE_COMPILE=1 $(BIN)/python -m build --no-isolation --wheel

dist: $(VENV)/.installed-test  ## build sdist, pure wheel and a bill of materials (CycloneDX) of what it installs into dist/, and check them
	rm -rf dist build/bom && $(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl
	$(PYTHON) -m venv --without-pip build/bom
	$(PIP) --python build/bom/bin/python install -c constraints.txt dist/*.whl
	$(BIN)/cyclonedx-py environment build/bom --pyproject pyproject.toml --output-reproducible \
	  --output-file dist/$$(basename dist/*.whl -py3-none-any.whl).cdx.json

reference: $(VENV)/.installed  ## write what is generated from the code: reference pages, JSON Schemas, diagrams
	$(BIN)/python -m docs.tools.generate

protos: $(VENV)/.installed-test  ## generate the Python code of all .proto files
	$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. router/picker/*.proto router/features/autoscaling/keda/*.proto

docs: $(VENV)/.installed-test  ## build the pages into build/site and run their examples; fails on dead links and unlisted pages
	$(PYTEST) tests/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

vendor:  ## copy the live page's JavaScript libraries, with licences, from npm into router/control/page/vendor
	tests/browser/vendor.sh $(VENDORED)

docs-serve: $(VENV)/.installed-test  ## serve the pages on http://127.0.0.1:8080 and rebuild them when one changes
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve --dev-addr 127.0.0.1:8080

lock:  ## resolve the newest versions inside the ranges of pyproject.toml and write constraints.txt
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/pip --disable-pip-version-check -q install -e '.[test]'
	build/lock/bin/pip freeze --exclude-editable > constraints.txt

clean:  ## remove the environment, builds and caches
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing the router (once, about half a minute) ..."
	@$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-test: pyproject.toml constraints.txt $(VENV)/.installed | $(VENV)/bin/python
	@echo "installing the test tools (once, about half a minute) ..."
	@$(PIP) install -c constraints.txt -e '.[test]'
	@touch $@
