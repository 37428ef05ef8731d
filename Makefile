# make run | test | test-all | check | bench | clean. Each sets up what is missing: system packages (Debian, Ubuntu), .venv, the tensor module.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# What somebody gives to these goes into commands as it is: a name or a folder, and nothing that a shell would read otherwise.
ODD := ; & | < > $$ ` ( ) { } [ ] ' " \ * ? ! \#
odd = $(strip $(foreach each,$(ODD),$(findstring $(each),$(1))) $(word 2,$(1)))
given = $(filter command environment,$(origin $(1)))
$(foreach name,ARCH CONFIG ON OUT SEEDS ONLY PROCESSOR MAX_USD,$(if $(call given,$(name)),$(if $(call odd,$(value $(name))),\
	$(error $(name): expected a plain name or folder, not $(value $(name))))))

ARCH ?= spirt
ON ?= local
# Two at a time, a file's tests in one process: they share its servers. In the folders' order, which has the long files first; xdist's own
# begins with the files of many tests, and ends with those of a single one that takes minutes.
PYTEST ?= -n 2 --dist loadfile --no-loadscope-reorder

VENV := .venv
PYTHON := $(VENV)/bin/python
CROSSOVER := $(VENV)/bin/crossover
REQUIREMENTS := requirements.txt requirements-dev.txt pyproject.toml setup.py
STAMP := $(VENV)/.installed-$(shell cat $(REQUIREMENTS) | sha256sum | cut -c1-16)
SOURCES := crossover cdk stacks functions peers layer lab $(filter-out tests/aws/test_%,$(wildcard tests/aws/*.py)) $(wildcard tools/arm_*.py tools/layer_*.py) tests/chaos/world tests/moto_patches $(wildcard app.py)

# Every experiment on digits whose architecture exists: config/x-y.yaml with stacks/x_y.py.
CONFIGS := $(filter-out %-cifar10 pricing published,$(basename $(notdir $(wildcard config/*.yaml))))
exists = $(wildcard stacks/$(subst -,_,$(1)).py)
ARCHITECTURES := $(strip $(foreach config,$(CONFIGS),$(if $(call exists,$(config)),$(config))))
NAME := $(subst _,-,$(ARCH))
OUT ?= results/$(NAME)

# On a bare machine hundreds of megabytes come over the network, and one connection that breaks would end the set-up. What a package
# manager prints is shown only where it fails, its last lines.
thrice = log=$$(mktemp); for attempt in 1 2 3; do { $(1); } >"$$log" 2>&1 && break; tail -n 15 "$$log" >&2; \
	[ $$attempt != 3 ] || { rm -f "$$log"; exit 1; }; echo "trying again" >&2; sleep 5; done; rm -f "$$log"

.PHONY: help
help: ## Show the targets
	@grep -hE '^[a-z-]+:.*##' Makefile | awk -F ':.*## ' '{printf "make %-20s %s\n", $$1, $$2}'

.PHONY: run
run: setup redis-module ## Train on this machine: ARCH=spirt (default), another one, or all; OUT=results/<arch>
ifeq ($(ARCH),all)
	@for config in $(ARCHITECTURES); do $(CROSSOVER) run config/$$config.yaml --on $(ON) --out results/$$config; done
	@$(CROSSOVER) compare $(addprefix results/,$(ARCHITECTURES)) --out results/comparison
else
	@$(CROSSOVER) run config/$(NAME).yaml --on $(ON) --out $(OUT)
endif

.PHONY: test test-all
test: setup redis-module node_modules browser ## The first ring, five minutes: every part once; PYTEST="-k name" passes options on
	$(PYTHON) -m pytest --ignore tests/witnesses -m "not slow" $(PYTEST)

test-all: lint test ## Linters, and every test with a sample of the sweeps
	$(PYTHON) -m pytest --ignore tests/witnesses -m slow $(PYTEST)

# A pytest suite on an account of one's own: docs/aws.md, "Unproven". Each step says its price and asks; MAX_USD=1 is a ceiling in dollars
# instead. Without tests/conftest.py, which hides the account from all other tests.
.PHONY: test-aws
test-aws: setup node_modules layer ## Try on your AWS account what docs/aws.md calls unproven, about fifty cents; MAX_USD=1, CONFIG=config/gpu.yaml
	CROSSOVER_TEST_AWS="on $(if $(filter command,$(origin CONFIG)),$(CONFIG)) $(if $(MAX_USD),--most-usd $(MAX_USD))" \
		$(PYTHON) -m pytest --noconftest -s -rs tests/aws/test_account.py

# On a machine with a GPU, and a PyTorch that sees it in .venv; exit status 77 says that nothing was run.
.PHONY: gpu-check
gpu-check: setup ## Check the programs for GPUs on this machine's own: fp32, half precision, resumption, memory, seconds of a step
	@$(PYTHON) -m tests.gpu

.PHONY: test-every-call
test-every-call: setup redis-module node_modules browser ## Every test with its sweeps whole: every call, every architecture, every seed, and on ARM
	CROSSOVER_EVERY_CALL=1 $(PYTHON) -m pytest --ignore tests/witnesses $(PYTEST)

SEEDS ?= 0-999
.PHONY: chaos
chaos: setup ## Look for schedules of faults that break a promise: ARCH=all or one, or CONFIG=mine.yaml; SEEDS=0-999
	@for config in $(or $(if $(filter command,$(origin CONFIG)),$(CONFIG)),$(patsubst %,config/%.yaml,$(if $(filter all,$(ARCH)),$(ARCHITECTURES),$(NAME)))); do echo "$$config"; \
		$(PYTHON) -m tests.chaos.world $$config --seeds $(SEEDS) || failed=1; done; [ -z "$${failed:-}" ]

.PHONY: check
check: setup redis-module lint witness-environment-asl_validator ## Linters, types, quick tests, synthesis with validation and cdk-nag
	CROSSOVER_WITNESS=asl_validator $(PYTHON) -m pytest -m "not slow" tests/unit tests/infrastructure \
		tests/witnesses/test_asl_validator.py $(PYTEST)
	@folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; for config in $(ARCHITECTURES); do \
		echo "synthesis of config/$$config.yaml, with validation and cdk-nag"; \
		CDK_OUTDIR="$$folder/$$config" $(PYTHON) app.py -c config=config/$$config.yaml; done

# Judges that we did not write, each in build/witnesses/<name>, made from what lies in tests/witnesses/<name>/. Those that take longer than
# a minute or two are named here; the others are asked in CI.
WITNESSES := $(patsubst tests/witnesses/test_%.py,%,$(wildcard tests/witnesses/test_*.py))
LONG_WITNESSES := cfn_lint checkov debian_boot sanitizers valkey_8

.PHONY: witnesses witnesses-quick
witnesses: $(WITNESSES:%=witness-%) ## Ask every judge that we did not write; witness-<name> for one
witnesses-quick: WITNESS_OPTIONS := -m "not slow"
witnesses-quick: $(filter-out $(LONG_WITNESSES:%=witness-%),$(WITNESSES:%=witness-%)) ## Those that end within 4 minutes together
witness-%: witness-environment-% redis-module
	CROSSOVER_WITNESS=$* $(PYTHON) -m pytest tests/witnesses/test_$*.py $(WITNESS_OPTIONS)
witness-environment-%: setup
	@$(PYTHON) -m tests.witnesses.environments $*

.PHONY: lint
lint: setup ## ruff check, ruff format --check, mypy --strict, wording
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy --strict $(SOURCES)
	@$(PYTHON) -m tools.wording
	@$(PYTHON) -m tools.freshness

.PHONY: pictures
pictures: setup ## Draw the pictures of docs/architectures anew, with the figures of its pages
	@$(PYTHON) -m tools.pictures

# In an environment of its own, since no run and no test needs the program. Broken links and anchors fail it.
SITE := build/docs/environment
.PHONY: docs
docs: setup $(SITE)/.installed ## Build the documentation as a site to open from the disk, build/docs/site/index.html
	@$(PYTHON) -m tools.site $(SITE)/bin/zensical && echo "open build/docs/site/index.html"
$(SITE)/.installed: requirements-docs.txt | $(STAMP)
	@$(PYTHON) -m venv --clear $(SITE)
	@$(call thrice,$(SITE)/bin/pip install --quiet --disable-pip-version-check -r requirements-docs.txt)
	@touch $@

.PHONY: freshness
freshness: setup ## List prices and documented limits that are old
	@$(PYTHON) -m tools.freshness

.PHONY: bench
bench: setup redis-module ## Benchmarks to benchmarks/out/<name>.json; ONLY=name for one
	@for file in $(if $(ONLY),benchmarks/$(ONLY).py,$(wildcard benchmarks/*.py)); do \
		name=$$(basename $$file .py); [ $$name = report ] || { echo "benchmark $$name"; $(PYTHON) -m benchmarks.$$name; }; done

# Each in seconds, to see that it runs; one that fails fails the target, a missed goal does not.
.PHONY: bench-quick
bench-quick: setup redis-module ## Every benchmark with --quick, a few minutes together
	@for file in $(wildcard benchmarks/*.py); do name=$$(basename $$file .py); [ $$name = report ] || \
		{ echo "benchmark $$name"; $(PYTHON) -m benchmarks.$$name --quick; }; done

.PHONY: redis-module
redis-module: packages ## Build the tensor engine, redis_module/build/tensors.so (g++ only)
	@$(MAKE) --no-print-directory -s -C redis_module core

# PyTorch for ARM and the data plane's packages, pruned and packed; 1 to 10 minutes from nothing, nothing to do while they are up to date.
.PHONY: layer
layer: setup node_modules ## What AWS needs: the CDK's command line, build/layer-torch.zip and build/layer-dataplane.zip
	@$(PYTHON) -m layer.build

# The tensor module as Redis hosts on AWS load it: for Graviton, or with PROCESSOR=amd64 for x86. A compiler for another processor than
# this machine's is installed where it is wanted.
PROCESSOR ?= arm64
CROSS_arm64 := aarch64-linux-gnu-g++
CROSS_amd64 := x86_64-linux-gnu-g++
.PHONY: host-module cross-compiler
host-module: cross-compiler ## Build the tensor module for Redis hosts on AWS, build/tensors-arm64.so (PROCESSOR=amd64 for x86 hosts)
	@$(MAKE) --no-print-directory -s -C redis_module $(PROCESSOR)
	@mkdir -p build && install -m 0644 redis_module/build/tensors-$(PROCESSOR).so build/tensors-$(PROCESSOR).so
cross-compiler:
	@missing=; command -v $(CROSS_$(PROCESSOR)) >/dev/null || missing=g++-$(subst _,-,$(patsubst %-g++,%,$(CROSS_$(PROCESSOR)))); \
	$(install_missing)

# `crossover deploy` calls this; the CDK's own commands build nothing. Synthesis needs nothing built: without layers and module it takes
# placeholders, says so, and CloudFormation refuses to deploy them. Hence a failure here is told and stops nothing.
.PHONY: assets
assets:
	@[ -n "$(CROSSOVER_WITHOUT_LAYERS)" ] || $(PYTHON) -m layer.build >&2 \
		|| echo "the Lambda layers were not built; the template can be made, but not deployed" >&2
	@[ -n "$(CROSSOVER_WITHOUT_LAYERS)" ] || [ -z "$(PROCESSOR)" ] || $(MAKE) --no-print-directory host-module >&2 \
		|| echo "the tensor module for hosts was not built; a template with Redis hosts can be made, but not deployed" >&2

.PHONY: setup packages
setup: packages $(STAMP)

# A .venv of its own; installed anew when a requirement changes.
$(STAMP): $(REQUIREMENTS)
	@python=$$(for name in python3 python3.13 python3.12 python3.11; do command -v $$name >/dev/null \
		&& $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' && echo $$name && break; done) \
		|| { echo "Crossover needs Python 3.11 or later; this machine has $$(python3 --version 2>&1)" >&2; exit 2; }; \
		[ -x $(PYTHON) ] || $$python -m venv $(VENV)
	@echo "installing requirements into $(VENV) (a few minutes the first time)"
	@$(call thrice,$(PYTHON) -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt)
	@$(call thrice,$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --editable .)
	@[ -d $(UPLOT) ] || $(NPM_CI) --omit dev --fetch-retries 0 >/dev/null 2>&1 \
		|| echo "uPlot was not fetched, so play.html will have no curves; make node_modules tries again" >&2
	@rm -f $(VENV)/.installed-* && touch $@

# What `make setup` installs of these is uPlot alone, which draws the curves of play.html; the others are the CDK's command line, and what
# drives and judges the browser, as package-lock.json pins them with their hashes.
UPLOT := node_modules/uplot
NPM_CI := PATH="$(CURDIR)/$(VENV)/bin:$$PATH" npm ci --prefer-offline --no-audit --no-fund --loglevel error
node_modules: package.json package-lock.json $(STAMP)
	@$(call thrice,$(NPM_CI))
	@touch $@

# Installed only where a program is absent. RUNLEVEL=1 keeps Debian from starting its own redis and rabbitmq: Crossover starts the servers
# it needs itself, on free ports, in folders of its own.
packages:
	@missing=; need() { eval "$$1" >/dev/null 2>&1 || missing="$$missing $$2"; }; \
	need 'command -v redis-server || command -v valkey-server' redis-server; \
	need 'command -v rabbitmq-server || test -x /usr/sbin/rabbitmq-server' rabbitmq-server; \
	need 'command -v g++' g++; \
	need 'command -v openssl' openssl; \
	need 'test -x $(PYTHON) || python3 -c "import ensurepip, venv"' python3-venv; \
	$(install_missing)

# For tests alone, which open every kind of page in it: nobody who trains needs it.
.PHONY: browser
browser:
	@missing=; command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
		|| missing=chromium; $(install_missing)

# The last part of a recipe: installs the packages that $$missing names.
define install_missing
[ -n "$$missing" ] || exit 0; \
	if ! command -v apt-get >/dev/null; then \
		echo "missing on this machine:$$missing (Debian's names); please install them, then run make again" >&2; exit 2; fi; \
	sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo; \
	if [ -n "$$sudo" ] && ! command -v sudo >/dev/null; then \
		echo "missing on this machine:$$missing; as root: apt-get install$$missing" >&2; exit 2; fi; \
	echo "installing$$missing (a minute or two)"; \
	$(call thrice,$$sudo apt-get update -qq && $$sudo env RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
		--no-install-recommends $$missing)
endef

.PHONY: clean
clean: ## Remove what was built and measured; .venv stays
	rm -rf results cdk.out build redis_module/build benchmarks/out .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
