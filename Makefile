# Every target sets up what it needs by itself, once, and is quick the next time.
# Needs: Linux, make, Python >= 3.11 with pip. `make test`, `lab` and `bench` may install Debian packages
# (packaging/apt-packages.txt) as root or through sudo; `make demo` never does.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VENV ?= .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check -q install
OUT := out
# Real cgroups are root's.
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
PYTEST_ARGS ?=
LAB_ARGS ?=
BENCH_ARGS ?=
POLICY_ARGS ?=

SUITE ?= bookworm

.PHONY: help demo venv test check lab bench bench-policies bench-costs bench-smoke deb test-vm format lock clean

help: ## this list
	@echo "perphd: make TARGET"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

demo: $(VENV)/.stamp-runtime ## the whole loop on a simulated host: no root, no kernel writes, under a minute
	@$(VENV)/bin/perphd demo

venv: $(VENV)/.stamp-runtime ## perphd and perphctl in .venv/bin, to run them from here: no root, no compiler

test: $(VENV)/.stamp-dev ## all tests; those that lack root, cgroups or a VM skip and say so
	$(PY) -m pytest $(PYTEST_ARGS)

check: $(VENV)/.stamp-dev ## lint, types, layers of imports
	$(VENV)/bin/ruff check
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-logo

lab: $(VENV)/.stamp-dev ## the real experiment: MariaDB beside batch jobs, scheme by scheme (root)
	@packaging/apt-install lab
	$(SUDO) $(PY) -m tools.lab --out $(OUT)/lab $(LAB_ARGS)

bench: bench-policies bench-costs ## both of the next: half an hour on two cores, and some minutes as root

bench-policies: $(VENV)/.stamp-dev ## policies beside each other and the optimum, simulated; interrupted, it goes on where it was
	$(PY) -m tools.bench.policies --out $(OUT)/policies $(POLICY_ARGS)

bench-costs: $(VENV)/.stamp-dev ## what perphd itself costs: tick, CPU share, memory, reaction (root)
	$(SUDO) $(PY) -m tools.bench --out $(OUT)/bench $(BENCH_ARGS)

bench-smoke: $(VENV)/.stamp-dev ## a few short scenarios of the policy bench: two minutes
	$(PY) -m tools.bench.policies --quick --out $(OUT)/policies-smoke

deb: ## the Debian package, into out/deb: on Debian 12, no root but for missing Debian packages
	@packaging/apt-install deb
	@packaging/build-deb $(OUT)/deb

test-vm: $(VENV)/.stamp-dev deb ## the package and the daemon on a real Debian with systemd, under QEMU (root; SUITE=bookworm)
	@packaging/apt-install vm
	$(SUDO) env PERPHD_VM_SUITE=$(SUITE) $(PY) -m pytest tests/vm $(PYTEST_ARGS)

format: $(VENV)/.stamp-dev ## put the code into its one layout
	$(VENV)/bin/ruff check --fix-only
	$(VENV)/bin/ruff format

# Hashes come from the package index; no address of one is written down.
COMPILE = CUSTOM_COMPILE_COMMAND="make lock" $(VENV)/bin/pip-compile -q --generate-hashes --strip-extras \
	--allow-unsafe --annotation-style=line --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
	--no-emit-options $(LOCK_ARGS)

lock: $(VENV)/.stamp-dev ## pin requirements/*.txt anew (LOCK_ARGS=--upgrade for newer versions)
	$(COMPILE) -o requirements/bootstrap.txt requirements/bootstrap.in
	$(COMPILE) -o requirements/runtime.txt pyproject.toml requirements/older-python.in
	$(COMPILE) --all-extras -c requirements/runtime.txt -o requirements/dev.txt pyproject.toml requirements/older-python.in
	$(COMPILE) --extra systemd --extra network --extra codec -c requirements/dev.txt \
		-o packaging/debian/requirements.txt pyproject.toml requirements/older-python.in

clean: ## remove what was built, measured and installed here
	rm -rf $(VENV) $(OUT) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- set-up ---------------------------------------------------------------------------------------------------

$(VENV)/.stamp-venv: requirements/bootstrap.txt packaging/python-venv
	@packaging/python-venv $(VENV)
	@touch $@

# --no-build-isolation: perphd and the few packages without wheels are built by the pinned setuptools, whose
# remark that an editable installation is one needs no reader.
$(VENV)/.stamp-runtime: $(VENV)/.stamp-venv requirements/runtime.txt pyproject.toml
	@echo "Installing what perphd runs on into $(VENV)"
	@$(PIP) --require-hashes --no-build-isolation -r requirements/runtime.txt
	@PYTHONWARNINGS=ignore $(PIP) --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.stamp-dev: $(VENV)/.stamp-runtime requirements/dev.txt packaging/apt-packages.txt
	@packaging/apt-install build test
	@echo "Installing what building, testing and measuring need into $(VENV)"
	@$(PIP) --require-hashes --no-build-isolation -r requirements/dev.txt
	@touch $@
