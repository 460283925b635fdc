# The same commands that CI runs. Everything happens in .venv; nothing else on the machine is touched.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
TOPIC  ?= all
MINUTES ?= 10

# What an extra brings along: the larger environment serves the smaller ones' commands.
BRINGS_system := dev all
BRINGS_dev    := all
BRINGS_bench  := all

.DEFAULT_GOAL := help
.PHONY: help demo up test test-system check bench soak clean

help: ## show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip

# One stamp a set of extras: a second run installs nothing.
$(VENV)/.installed-%: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing gainroute[$*] into $(VENV) ..."
	@$(PIP) -e '.[$*]'
	@touch $@ $(BRINGS_$*:%=$(VENV)/.installed-%)

demo: $(VENV)/.installed-all ## train, calibrate and route the embedded digits; writes out/demo/report.html
	@$(BIN)/gainroute demo --out out/demo

up: $(VENV)/.installed-all ## serve the demo's run on this machine, with a dashboard; Ctrl-C stops it
	@test -f out/demo/run/run.json || $(BIN)/gainroute demo --out out/demo
	@$(BIN)/gainroute up out/demo/run

test: $(VENV)/.installed-dev ## run all tests (under 5 minutes)
	@$(BIN)/python -m pytest -n 2 --dist worksteal

test-system: $(VENV)/.installed-system ## a real browser, PostgreSQL, a full disk (Debian: chromium, postgresql)
	@$(BIN)/python -m pytest -n 2 --dist loadfile tests/system

check: test ## tests, then lint, types, import contracts and the examples in docstrings
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m pytest --doctest-modules src/gainroute -p no:cacheprovider

bench: $(VENV)/.installed-bench ## measure side by side: make bench [TOPIC=calibration|routing|...]
	@$(BIN)/python -m benchmarks $(TOPIC)

soak: $(VENV)/.installed-all ## load while parties and coordinator are killed: make soak [MINUTES=10]
	@$(BIN)/python -m benchmarks.soak --minutes $(MINUTES)

clean: ## remove the environment and everything written under out/
	rm -rf $(VENV) out build dist src/*.egg-info
