# The same commands that CI runs. Everything happens in .venv; nothing else on the machine is touched.
#   make LOCKED=1 test    installs exactly the versions of requirements.lock, checked by hash
#   make PYTHON=python3.12 VENV=.venv-312 test
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# The theme advertises its successor on every build otherwise.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
# Many commands start processes: what our modules compile to is kept, also where the environment says otherwise.
export PYTHONDONTWRITEBYTECODE =
TOPIC  ?= all
MINUTES ?= 10
EXTRAS ?= serve,onnxruntime

# Installing the key also installs the values: a larger environment runs the commands of the smaller ones.
INCLUDED_system := dev all docs
INCLUDED_dev    := all docs
INCLUDED_bench  := all

.DEFAULT_GOAL := help
.PHONY: help demo up federation test test-system test-containers check check-types check-docs docs bench soak fuzz sbom audit-deps wheels lock clean

help: ## show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# One stamp per set of extras: a second run installs nothing.
ifdef LOCKED
$(VENV)/.installed-%: pyproject.toml requirements.lock | $(VENV)/bin/python
	@echo "installing gainroute and the locked versions of everything it uses into $(VENV) ..."
	@$(PIP) --require-hashes -r requirements.lock
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $(patsubst %,$(VENV)/.installed-%,all docs dev system bench)
else
$(VENV)/.installed-%: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing gainroute[$*] into $(VENV) ..."
	@$(PIP) --upgrade pip
	@$(PIP) -c constraints.txt -e '.[$*]'
	@touch $@ $(INCLUDED_$*:%=$(VENV)/.installed-%)
endif

demo: $(VENV)/.installed-all ## train, calibrate and route the embedded digits; writes out/demo/report.html
	@$(BIN)/gainroute demo --out out/demo

up: $(VENV)/.installed-all ## serve the demo's run on this machine, with a dashboard; Ctrl-C stops it
	@test -f out/demo/run/run.json || $(BIN)/gainroute demo --out out/demo
	@$(BIN)/gainroute up out/demo/run

federation: $(VENV)/.installed-all ## four organisations form a federation from raw files, and serve it; Ctrl-C stops it
	@rm -rf out/federation
	@$(BIN)/python examples/13_a_federation_that_forms.py --out out/federation

test: $(VENV)/.installed-dev ## run the tests, without the slow ones and those of tests/system (under five minutes)
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not slow'

# Files in the order of their names: by number of tests, the files with one long test would come last.
test-system: $(VENV)/.installed-system ## browser, PostgreSQL, Prometheus, full disk, wheel, long examples; needs Debian packages (.ci/run installs them)
	@$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m 'not containers' tests/system

test-containers: $(VENV)/.installed-system ## build the images, and run a federation in them; as root, with Debian's buildah, podman, runc, debootstrap
	@$(BIN)/python -m pytest -rs -s -m containers tests/system

# What failed is the last thing printed; coverage follows only where all tests passed: the total, and files below 85 %.
check: $(VENV)/.installed-dev ## lint, types, import contracts, documentation, doctests, tests with coverage
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target check-types check-docs
	@$(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=
	@$(BIN)/coverage report | awk '/^Name/ || /^TOTAL/ || (/%$$/ && $$NF + 0 < 85)'

check-types:
	@$(BIN)/mypy

check-docs:
	@$(MKDOCS)
	@$(BIN)/python -m pytest --doctest-modules src/gainroute -p no:cacheprovider

docs: $(VENV)/.installed-docs ## build the documentation, offline and strict; open out/site/index.html
	@$(MKDOCS)
	@echo "open out/site/index.html, or: $(BIN)/python -m http.server -d out/site"

bench: $(VENV)/.installed-bench ## measure side by side: make bench [TOPIC=calibration|routing|...] [ROWS=10000000 with TOPIC=batch]
	@$(BIN)/python -m benchmarks $(TOPIC) $(ROWS)

soak: $(VENV)/.installed-all ## load while processes are killed and frozen, a disk is full, a client hostile: make soak [MINUTES=10]
	@$(BIN)/python -m benchmarks.soak --minutes $(MINUTES)

fuzz: $(VENV)/.installed-dev ## mutate requests, messages and files, and report what is not refused: make fuzz [MINUTES=10]
	@$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

sbom: $(VENV)/bin/python ## a software bill of materials of the locked versions, CycloneDX: out/sbom.json
	@$(BIN)/python tools/sbom.py out/sbom.json

# pip-audit gets an environment of its own: it brings many packages that are not ours.
audit-deps: ## look for known vulnerabilities of the locked versions, where a database can be reached
	@test -x out/audit/bin/pip-audit || { $(PYTHON) -m venv out/audit && \
		out/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit; } || true
	@$(PYTHON) tools/audit_dependencies.py out/audit/bin/pip-audit

wheels: $(VENV)/bin/python ## the locked wheels of gainroute[EXTRAS], to build images without a network: out/wheels
	@mkdir -p out && sed -nE 's/^([A-Za-z0-9._-]+)(\[[^]]*\])?==([^ ;]+).*/\1==\3/p' requirements.lock > out/pins.txt
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check -c out/pins.txt -w out/wheels setuptools '.[$(EXTRAS)]'

lock: $(VENV)/bin/python ## write requirements.lock; UV_FIND_LINKS or UV_INDEX must offer the CPU build of torch
	@$(PIP) uv
	@mkdir -p out && rm -f out/lock.txt
	@$(BIN)/uv pip compile --quiet pyproject.toml --extra system --extra bench -c constraints.txt --generate-hashes \
		--no-header --no-emit-index-url --no-emit-find-links --python-version 3.11 \
		--python-platform x86_64-manylinux_2_28 -o out/lock.txt
	@(sed -n '/^#/!q;p' requirements.lock; cat out/lock.txt) > out/lock.new && mv out/lock.new requirements.lock

clean: ## remove the environment and everything written under out/
	rm -rf $(VENV) out build dist src/*.egg-info
