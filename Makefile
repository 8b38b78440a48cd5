# One command per chore; the same that CI runs. Every target makes what it needs.
PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
TOOLED := $(VENV)/.tooled
BUILDER := $(VENV)/.builder
RELEASER := $(VENV)/.releaser
# Four more than there are cores: many tests wait, for clocks and for machines that boot.
JOBS   ?= $(shell echo $$(( $$(nproc) + 4 )))
SAMPLE ?= 50
SEED   ?= 3

# Tests start many processes of Python. Where this is set, as in some containers, each would compile every module anew.
export PYTHONDONTWRITEBYTECODE :=

# A fresh machine updates itself: another apt-get is waited for.
APT_INSTALL = until said=$$(apt-get update -qq 2>&1); do \
	    case $$said in *"Could not get lock"*) echo "waiting for another apt-get"; sleep 5 ;; *) echo "$$said"; exit 1 ;; esac; \
	  done; \
	  DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -y -qq --no-install-recommends

.DEFAULT_GOAL := help
.PHONY: help demo quick test test-compiled compiled torture mutants tools java lint format types check bench bench-peers bench-churn bench-nodes bench-calls bench-web bench-web-load bench-spark docs wheel release deb clean
.DELETE_ON_ERROR:

help: ## Show this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16
	@echo '  PYTHON=python3.12 chooses another Python, JOBS=4 the number of test processes,'
	@echo '  COMPILED=1 the compiled build for torture'

demo: $(READY) ## Real requests surviving absent workers and killed processes, in under a minute
	$(BIN)/titanic demo

test: $(TOOLED) tools java ## All tests, in parallel; core, protocol and store tests also on the compiled build
	@$(COLLECT)
	$(BIN)/pytest -n $(JOBS) --dist worksteal tests
	$(COMPILE)
	$(ON_COMPILED) -n $$(nproc) --dist worksteal $(NO_POSTGRES) $(filter-out tests/titanic/cluster,$(CORE_TESTS)) \
	  tests/broker/io/test_connections.py tests/titanic/facts/test_facts.py tests/titanic/web/api/test_openapi.py --deselect tests/titanic/web/api/test_openapi.py::test_schemathesis_finds_nothing

# Of a fresh clone Python has compiled nothing: each test process would compile all tests, as they all begin at once.
COLLECT = [ -d .pytest_cache ] || printf 'tests/%s\n' 'titanic/[a-r]*' 'titanic/s*' 'titanic/[t-z]* tests/[c-s]*/' 'b* tests/*.py' | \
  xargs -P "$$(nproc)" -I@ sh -c '$(BIN)/pytest -q -p no:cacheprovider --collect-only @ >/dev/null 2>&1 || :'

quick: lint ## For every save, under 90 seconds: lint, layering, cores, protocol, the embedded stores, clients, command line
	$(BIN)/pytest -q -n $(JOBS) --dist worksteal -m "not torture" $(NO_POSTGRES) $(CORE_TESTS) tests/test_imports.py tests/titanic/client \
	  tests/titanic/cli/test_entry.py tests/titanic/cli/test_help.py tests/titanic/cli/test_submit_reply.py

test-compiled: $(TOOLED) tools java compiled ## All tests on the compiled build
	$(ON_COMPILED) -n $(JOBS) --dist worksteal tests

torture: $(TOOLED) tools java $(if $(COMPILED),compiled) ## The long tests, with a summary: every crash point, power cuts, full disks, kills; under an hour
	TITANIC_TORTURE=1 $(if $(COMPILED),$(ON_COMPILED),$(BIN)/pytest) -n $(JOBS) --dist worksteal -m torture tests

# Both packages with their compiled modules, in a folder of their own: what is installed here stays pure Python. Not optimised, which takes
# half the time; COMPILED_LEVEL=2 makes what a wheel has.
BUILT := build/compiled
COMPILED_LEVEL ?= 0
ON_COMPILED = PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/$(BUILT) $(BIN)/pytest -o pythonpath="$(BUILT) data tests"
# Without those of the store that take long: about the disk under it, processes beside it, and what other versions left.
SLOW_STORE := %crash.py %damage.py %disk.py %durability.py %formats.py %full.py %moving.py %readers.py %salvage.py %soak.py
CORE_TESTS := tests/broker/core $(wildcard tests/broker/patterns/*/test_core.py) tests/titanic/protocol tests/titanic/dispatch tests/titanic/cluster \
  tests/titanic/services $(filter-out $(SLOW_STORE),$(wildcard tests/titanic/store/test_*.py))
# Nothing of it is compiled.
NO_POSTGRES := -k "not postgres" $(patsubst %,--ignore-glob='*%*',postgres several_nodes claims_broken)
# Tests of packages compile, too, beside all others; afterwards there is only to copy.
COMPILE = MYPYC_OPT_LEVEL=$(COMPILED_LEVEL) $(BIN)/python hatch_build.py $(BUILT)
compiled: $(TOOLED)
	$(COMPILE)

mutants: $(TOOLED) ## Mutation testing of store, dispatch and broker: SAMPLE=50 of each, SEED=3; takes long
	nice -n 10 $(BIN)/python tests/mutants.py run --sample $(SAMPLE) --seed $(SEED)

lint: $(TOOLED) ## Formatting and lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: $(TOOLED) ## Format the source
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: $(TOOLED) ## mypy --strict on the packages
	$(BIN)/mypy

check: lint types test ## All that CI runs

bench: $(READY) ## Measure this machine's limits, and Titanic
	$(BIN)/titanic bench

bench-peers: $(TOOLED) ## Titanic beside RabbitMQ, Redis, NATS, Celery and others; some minutes. ARGS="echo --rival ENDPOINT" chooses
	@for package in rabbitmq-server redis-server beanstalkd libzmq3-dev; do \
	  [ -e /usr/share/doc/$$package ] || missing="$$missing $$package"; \
	done; \
	if [ -z "$$missing" ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  $(APT_INSTALL) $$missing; \
	else echo "Not installed:$$missing. On Debian: apt-get install$$missing. They are left out."; fi
	TITANIC_PURE=1 $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[peers]'
	PYTHONPATH=tests $(BIN)/python -m benchmarks.peers $(ARGS)

bench-churn: $(TOOLED) ## Growth of PostgreSQL's tables under load. ARGS="--lives 10000000"
	PYTHONPATH=tests $(BIN)/python -m benchmarks.churn $(ARGS)

bench-nodes: $(TOOLED) ## What one, two and three nodes wait for in PostgreSQL
	PYTHONPATH=tests $(BIN)/python -m benchmarks.nodes $(ARGS)

bench-calls: $(TOOLED) ## What a request costs: CPU, commits, system calls. ARGS="--tree ../before --tree ." compares
	PYTHONPATH=tests $(BIN)/python -m benchmarks.calls $(ARGS)

bench-web: $(TOOLED) ## Cost of an HTTP request, compared with an empty POST to Starlette. ARGS="--seconds 10"
	@$(MAKE) --no-print-directory tools TOOLS=wrk:wrk
	PYTHONPATH=tests $(BIN)/python -m benchmarks.web $(ARGS)

bench-web-load: $(TOOLED) ## titanic web with 100,000 requests and 50 viewers; ARGS="--requests 1000000 --services 1000"
	PYTHONPATH=tests $(BIN)/python -m benchmarks.web_load $(ARGS)

bench-spark: $(TOOLED) java ## Rows per second that the data pipeline reads, archives and writes
	PYTHONPATH=tests $(BIN)/python -m benchmarks.pipeline

docs: $(TOOLED) ## Build the documentation site into build/site
	$(BIN)/python deploy/docs/build.py build/site

wheel: $(BUILDER) ## Build the wheel and the source distribution into dist/
	$(BIN)/python -m build --no-isolation

DEBIAN ?= $(if $(filter 0,$(shell id -u)),bookworm trixie)
release: $(RELEASER) ## Build, check and tag a release: VERSION=1.2.3; LOCAL=1 for a trial, DEBIAN="bookworm trixie"
	$(BIN)/python deploy/release.py '$(VERSION)' $(if $(LOCAL),--local) $(DEBIAN:%=--debian %)

deb: $(BUILDER) ## Build a Debian package for this machine into dist/
	deploy/deb.sh $(BIN)/python dist

clean: ## Remove everything that make created
	rm -rf $(VENV) dist build .mutants .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name .git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# The virtual environment, with what Titanic itself needs. It is made anew when the project's dependencies changed, when the folder was moved, when
# its Python is gone (an upgraded system), and when another one is wanted with PYTHON=….
WHO := -c 'import sys; print(sys.base_prefix, sys.hexversion)'
ifneq ($(wildcard $(READY)),)
  ASK := $(if $(filter file,$(origin PYTHON)),$(BIN)/python,$(PYTHON))
  ifneq ($(shell cat $(READY)),$(CURDIR) $(shell $(ASK) $(WHO) 2>/dev/null))
    .PHONY: $(READY)
  endif
endif

$(READY): pyproject.toml
	@command -v $(PYTHON) >/dev/null || \
	  { echo "There is no $(PYTHON) here. Titanic needs Python 3.11 or newer; PYTHON=… says which."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Titanic needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) -V). Try: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  package=$$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    $(APT_INSTALL) $$package; \
	  else echo "$(PYTHON) has no venv module. On Debian: apt-get install $$package"; exit 1; fi; }
	$(PYTHON) -m venv --clear $(VENV)
	TITANIC_PURE=1 $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@echo "$(CURDIR) $$($(BIN)/python $(WHO))" >$@

# What only those need who work on it: tests, tools, Spark.
$(TOOLED): $(READY)
	TITANIC_PURE=1 $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

# What builds a wheel, which needs neither Spark nor a browser.
$(BUILDER): $(READY)
	TITANIC_PURE=1 $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[build]'
	@touch $@

$(RELEASER): $(READY)
	TITANIC_PURE=1 $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[release]'
	@touch $@

# Programs and headers that tests use, and the Debian packages that have them. Without them, and without the right to install them,
# those tests are skipped.
TOOLS := strace:strace faketime:faketime promtool:prometheus systemd-nspawn:systemd-container debootstrap:debootstrap \
  /usr/include/zmq.h:libzmq3-dev /usr/share/java/jeromq.jar:libjeromq-java chromium-headless-shell:chromium-headless-shell npm:npm $(or $(lastword $(wildcard /usr/lib/postgresql/*/bin/initdb)),initdb):postgresql
torture: TOOLS += lintian:lintian patroni:patroni etcd:etcd-server /usr/lib/python3/dist-packages/etcd:python3-etcd
tools:
	@missing=; for tool in $(TOOLS); do \
	    command -v "$${tool%:*}" >/dev/null || [ -e "$${tool%:*}" ] || missing="$$missing $${tool#*:}"; \
	  done; \
	  if [ -z "$$missing" ]; then :; \
	  elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    $(APT_INSTALL) $$missing; \
	  else echo "Missing:$$missing; tests that need them are skipped. On Debian: apt-get install$$missing"; fi

# Spark runs on Java. In CI a missing one fails the tests; elsewhere those that need it are skipped.
java:
	@command -v java >/dev/null || [ -x "$$JAVA_HOME/bin/java" ] || \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    $(APT_INSTALL) openjdk-17-jre-headless; \
	  else echo "Missing: java; tests of the Spark pipeline are skipped. On Debian: apt-get install openjdk-17-jre-headless"; fi
