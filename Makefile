# Every target sets up what it needs by itself, once, and is quick the next time.
# Needs: Linux, make, Python >= 3.11 with pip. `make test`, `lab`, `cluster` and `bench` may install Debian packages
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
CLUSTER_ARGS ?=

SUITE ?= bookworm
PMU_SUITES ?= bookworm trixie

# Not every target is for people: only those with ## are listed.
.PHONY: deb-of-suite vm-image vm-tests-package vm-tests-others help demo venv dev test check lab docs bench bench-policies bench-costs bench-smoke bench-guard bench-detector bench-predictor bench-forecasts bench-trials cluster cluster-engines kubernetes-engines soak faults deb tutorial test-vm test-rdt test-pmu pmu-tests format lock clean

help: ## this list
	@echo "perphd: make TARGET"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

demo: $(VENV)/.stamp-runtime ## the whole loop on a simulated host: no root, no kernel writes, under a minute
	@$(VENV)/bin/perphd demo

venv: $(VENV)/.stamp-runtime ## perphd and perphctl in .venv/bin, to run them from here: no root, no compiler

dev: $(VENV)/.stamp-dev ## the same with every optional part and the tools of development: may install Debian packages

test: $(VENV)/.stamp-dev ## all tests; those that lack root, cgroups or a VM skip and say so
	$(PY) -m pytest $(PYTEST_ARGS)

check: $(VENV)/.stamp-dev ## lint, types, layers of imports, plain English in documents
	$(VENV)/bin/ruff check
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-logo
	$(PY) -m tools.prose

docs: $(VENV)-docs/.stamp ## the documentation as a site, into out/site
	@$(VENV)-docs/bin/python -m sphinx -q -W --keep-going -b html -d $(OUT)/site-doctrees docs $(OUT)/site
	@echo "$(OUT)/site/index.html"

lab: $(VENV)/.stamp-dev ## the real experiment: servers beside batch jobs, scheme by scheme (root); LAB_ARGS=--list lists its cells
	@packaging/apt-install lab
	$(SUDO) $(PY) -m tools.lab --out $(OUT)/lab $(LAB_ARGS)

bench: bench-policies bench-costs ## both of the next: a night on two cores, and some minutes as root

bench-policies: $(VENV)/.stamp-dev ## policies beside each other and the optimum, simulated, ten seeds: a night; interrupted, it goes on
	$(PY) -m tools.bench.policies --out $(OUT)/policies $(POLICY_ARGS)

bench-costs: $(VENV)/.stamp-dev ## what perphd itself costs: tick, CPU share, memory, reaction (root)
	$(SUDO) $(PY) -m tools.bench --out $(OUT)/bench $(BENCH_ARGS)

bench-smoke: $(VENV)/.stamp-dev ## a few short scenarios of the policy bench, everybody: three minutes
	$(PY) -m tools.bench.policies --quick --out $(OUT)/policies-smoke

bench-guard: $(VENV)/.stamp-dev ## has a change altered decisions? the quick scenarios beside the last run of this: a minute
	$(PY) -m tools.bench.policies.guard --kept $(OUT)/guard.jsonl

bench-detector: $(VENV)/.stamp-dev ## how soon, how surely and how rightly trouble is seen; the quiet week takes minutes
	$(PY) -m tools.bench.detector --out $(OUT)/detector.md

bench-predictor: $(VENV)/.stamp-dev ## the models beside each other, before and after drift: the tables of docs/predictor_report.md
	OPENBLAS_NUM_THREADS=1 $(PY) -m tools.bench.predictor

bench-forecasts: $(VENV)/.stamp-dev ## series forecasters, their ladder, peak predictors, and what they cost: the tables of docs/forecast_report.md
	$(PY) -m tools.bench.forecasts --out $(OUT)/forecasts.md

bench-trials: $(VENV)/.stamp-dev ## do trials and reports tell the truth? where it is known; interrupted, it goes on where it was
	$(PY) -m tools.bench.trial --out $(OUT)/trial
	$(PY) -m tools.bench.weeks --out $(OUT)/weeks

# The control plane is PERPHD_KUBELAB, or lies packed beside the checkout, or is built by Go, once.
# CLUSTER_ARGS="--hosts 10 --seconds 90" takes some minutes.
cluster: $(VENV)/.stamp-dev ## 50 simulated hosts on a real Kubernetes control plane, against the stock scheduler: 12 minutes on two busy cores
	@packaging/apt-install cluster
	$(PY) -m tools.cluster --out $(OUT)/cluster.txt $(CLUSTER_ARGS)

cluster-engines: $(VENV)/.stamp-dev ## YARN's jars for tests/cluster, into ~/.cache/perphd-cluster: 81 MB by Maven, once
	@$(PY) -m tools.cluster.yarn

kubernetes-engines: $(VENV)/.stamp-dev ## etcd, kube-apiserver, kube-scheduler, kwok and kubelet, into the same cache: Go >= 1.26, 20 minutes of CPU time, once
	@$(PY) -m tools.cluster.engines

soak: $(VENV)/.stamp-dev ## an hour and two virtual hours at 10 Hz, 100 workloads coming and going: what grows? (root)
	$(SUDO) $(PY) -m tools.soak both

faults: $(VENV)/.stamp-dev ## every fault at every operation; `make test` takes a sample of them (root)
	$(SUDO) env PERPHD_FAULTS=all $(PY) -m pytest -p no:cacheprovider tests/unit/test_faults_*.py tests/sim/test_faults_loop.py tests/kernel/test_faults_cgroups.py tests/kernel/test_network_netns.py

# The package has the Python and the libraries of one release: this host's own, or one built for it in a chroot.
HOST_SUITE = $(shell . /etc/os-release && echo $$VERSION_CODENAME)
deb: SUITE := $(if $(filter file,$(origin SUITE)),$(HOST_SUITE),$(SUITE))
deb: ## the package, into out/deb: for this host's release without root, or SUITE=bookworm, trixie, noble in a chroot (root)
	@packaging/apt-install deb
	@if [ "$(SUITE)" = "$(HOST_SUITE)" ]; then packaging/build-deb $(OUT)/deb; \
	else packaging/apt-install vm && $(SUDO) packaging/build-deb-for $(SUITE) $(OUT)/deb; fi

# The package of the release that the tests boot: this host's own, or one built for it in a chroot. One that is newer than
# all it is made of is used again.
PACKAGED = perphd rdt profiles systemd docs packaging requirements pyproject.toml LICENSE CHANGELOG.md
deb-of-suite:
	@if [ "$(SUITE)" = "$$(. /etc/os-release; echo $$VERSION_CODENAME)" ]; then folder=$(OUT)/deb; else folder=$(OUT)/deb/$(SUITE); fi; \
	built=$$(ls -t $$folder/perphd_*.deb 2>/dev/null | head -n 1); \
	if [ -n "$$built" ] && [ -z "$$(find $(PACKAGED) -name __pycache__ -prune -o -newer $$built -print -quit)" ]; then \
		echo "$$built is newer than all it is made of"; \
	else $(MAKE) deb SUITE=$(SUITE); fi

# The disk of the machine that the tests boot.
vm-image: $(VENV)/.stamp-dev
	@packaging/apt-install vm
	@$(SUDO) $(PY) -m tools.vm --suite $(SUITE) --out $(OUT)/vm build

tutorial: $(VENV)/.stamp-dev ## the tutorial's commands in a container with systemd, each with its time (root; SUITE=bookworm)
	@packaging/apt-install deb vm
	@$(MAKE) deb-of-suite
	@$(SUDO) $(PY) -m tools.vm.tutorial --suite $(SUITE) --out $(OUT)/vm $(TUTORIAL_ARGS)

# Two machines beside each other: on one the package from installation to purge, on the other everything else.
test-vm: $(VENV)/.stamp-dev $(VENV)-ansible/.stamp ## the package and the daemon on a real Debian with systemd, under QEMU (root; SUITE=bookworm)
	@packaging/apt-install deb vm
	@$(MAKE) -j2 deb-of-suite vm-image
	@echo "Booting two machines; what their tests say is shown when they are through"
	@$(MAKE) -j2 -k --output-sync=target vm-tests-package vm-tests-others

VM_TESTS = $(SUDO) env PERPHD_ANSIBLE=$(or $(PERPHD_ANSIBLE),$(abspath $(VENV)-ansible/bin/ansible-playbook)) PERPHD_VM_SUITE=$(SUITE) PERPHD_VM_NAME=$(@:vm-tests-%=%) $(PY) -m pytest -p no:cacheprovider --durations=8

# Status 5: PYTEST_ARGS select nothing of these.
vm-tests-package:
	@$(VM_TESTS) tests/vm/test_vm_package.py $(PYTEST_ARGS) || [ $$? = 5 ]

vm-tests-others:
	@$(VM_TESTS) tests/vm --ignore=tests/vm/test_vm_package.py $(PYTEST_ARGS) || [ $$? = 5 ]

# First of all it says in one line what is missing.
test-rdt: $(VENV)/.stamp-dev ## cache and bandwidth allocation on a real kernel, under a QEMU with Intel RDT (root; PERPHD_QEMU_RDT)
	@packaging/apt-install build deb vm
	@PERPHD_QEMU_RDT="$(PERPHD_QEMU_RDT)" $(PY) -m tools.vm.rdt $(OUT)/vm >/dev/null
	@$(MAKE) -j2 deb-of-suite vm-image
	@$(SUDO) env PERPHD_VM_SUITE=$(SUITE) PERPHD_QEMU_RDT="$(PERPHD_QEMU_RDT)" $(PY) -m pytest -p no:cacheprovider --durations=20 \
		tests/rdt/test_rdt_kernel.py tests/rdt/test_rdt_scenes.py tests/rdt/test_rdt_sockets.py \
		tests/rdt/test_rdt_calibrate.py tests/rdt/test_rdt_endings.py $(PYTEST_ARGS)

test-pmu: $(VENV)/.stamp-dev ## hardware counters that others use too, on a real PMU under QEMU, Linux 6.1 and 6.12 (root; PMU_SUITES)
	@packaging/apt-install pmu
	@for suite in $(PMU_SUITES); do $(MAKE) pmu-tests SUITE=$$suite || exit 1; done

pmu-tests:
	@$(SUDO) $(PY) -m tools.pmu --suite $(SUITE) --out $(OUT)/pmu build
	@$(SUDO) env PERPHD_PMU_SUITE=$(SUITE) $(PY) -m pytest -p no:cacheprovider --durations=5 tests/pmu $(PYTEST_ARGS)

format: $(VENV)/.stamp-dev ## put the code into its one layout
	$(VENV)/bin/ruff check --fix-only
	$(VENV)/bin/ruff format

# Hashes come from the package index; no address of one is written down.
COMPILE = CUSTOM_COMPILE_COMMAND="make lock" $(VENV)/bin/pip-compile -q --generate-hashes --strip-extras \
	--allow-unsafe --annotation-style=line --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
	--no-emit-options $(LOCK_ARGS)

lock: $(VENV)/.stamp-dev ## pin requirements/*.txt anew (LOCK_ARGS=--upgrade for newer versions)
	$(COMPILE) -o requirements/bootstrap.txt requirements/bootstrap.in
	$(COMPILE) -o requirements/docs.txt requirements/docs.in
	$(COMPILE) -o requirements/ansible.txt requirements/ansible.in
	$(COMPILE) -c requirements/constraints.in -o requirements/runtime.txt pyproject.toml requirements/older-python.in
	$(COMPILE) --all-extras -c requirements/constraints.in -c requirements/runtime.txt -o requirements/dev.txt pyproject.toml requirements/older-python.in
	$(COMPILE) --extra systemd --extra network --extra top -c requirements/dev.txt \
		-o packaging/debian/requirements.txt pyproject.toml requirements/older-python.in

clean: ## remove what was built, measured and installed here
	rm -rf $(VENV) $(VENV)-docs $(VENV)-ansible $(OUT) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- set-up ---------------------------------------------------------------------------------------------------

$(VENV)/.stamp-venv: requirements/bootstrap.txt packaging/python-venv
	@packaging/python-venv $(VENV)
	@touch $@

# The site's tools want versions of their own.
$(VENV)-docs/.stamp: requirements/bootstrap.txt requirements/docs.txt packaging/python-venv
	@packaging/python-venv $(VENV)-docs
	@echo "Installing what builds the documentation into $(VENV)-docs"
	@$(VENV)-docs/bin/python -m pip --disable-pip-version-check -q install --require-hashes -r requirements/docs.txt
	@touch $@

$(VENV)-ansible/.stamp: requirements/bootstrap.txt requirements/ansible.txt packaging/python-venv
	@packaging/python-venv $(VENV)-ansible
	@echo "Installing what rolls the package out to a machine of the tests into $(VENV)-ansible"
	@$(VENV)-ansible/bin/python -m pip --disable-pip-version-check -q install --require-hashes -r requirements/ansible.txt
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
