# Everything is installed from constraints.txt, the tested lock, into .venv; nothing else is needed but Python, make, pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check -q

.PHONY: run stack test check test-stack bench bench-sim bench-sim-full lock schema clean

run: $(VENV)/.installed  ## the embedded fleet and the router, ready to try
	$(BIN)/warmroute fleet --config configs/quickstart.yaml --decision-log build/decisions

stack: $(VENV)/.installed  ## two real vLLM engines over a real Mooncake Store, and the router in front of them
	$(BIN)/warmroute stack --config configs/stack-cpu.yaml

test: check  ## lint, types, floors and every test that needs no real engine
	$(BIN)/python -m pytest -m "not stack"

check: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test-stack: $(VENV)/.installed-test  ## the rest: real vLLM engines and a real Mooncake Store behind the router
	$(BIN)/python -m router.testbed.local_stack.install
	$(BIN)/python -m pytest -m stack

bench: $(VENV)/.installed-test  ## every figure with its bar, beside peers (about 40 minutes; BENCH=--quick: 5)
	$(BIN)/python -m tests.bench $(BENCH)

bench-sim: $(VENV)/.installed-test  ## the simulator against what others measured, and all policies against each other, reduced (about half an hour)
	$(BIN)/python -m tests.agreement rows --reduced --resume
	$(BIN)/python -m tests.agreement grid --reduced

bench-sim-full: $(VENV)/.installed-test  ## the same in full, resumable (about 10 hours on 2 cores)
	$(BIN)/python -m tests.agreement rows --resume
	$(BIN)/python -m tests.agreement grid

schema: $(VENV)/.installed  ## regenerate the JSON Schemas of the configuration
	$(BIN)/python -m router.config.generated_docs configs

lock: ## resolve the newest versions inside the ranges of pyproject.toml and write constraints.txt
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/pip --disable-pip-version-check -q install -e '.[test]'
	build/lock/bin/pip freeze --exclude-editable > constraints.txt

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing what runs (once, about half a minute) ..."
	@$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-test: pyproject.toml constraints.txt $(VENV)/.installed | $(VENV)/bin/python
	@echo "installing what tests (once, about half a minute) ..."
	@$(PIP) install -c constraints.txt -e '.[test]'
	@touch $@
