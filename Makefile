# Everything here works on a fresh Debian or Ubuntu with make and Python >= 3.11: each target sets .venv up by itself.
#
#   make demo    healthd on this machine, then a simulated node that breaks, is drained, repaired and let back
#   make test    all tests; installs Slurm, munge, FUSE and a C compiler first where apt and root are there; of what is
#                long a sample, another one in each run
#   make test-exhaustive   all tests, and everything of which `make test` takes a sample
#   make test-kubernetes   with a real API server, Helm and the image: half an hour; they are built once, where Go is;
#                VERSION=1.30 or VERSION=newest: on the oldest or the newest Kubernetes; HEALTHD_TEST_EXHAUSTIVE=1:
#                agent and controller killed at every boundary, not at a sample
#   make test-slurm VERSION=26.05   the live Slurm tests on 22.05, 24.11 or 26.05, each in a root of its own: needs root
#   make test-packages     the .deb from installation to purge on a Debian that is booted for it, and both packages in
#                minimal roots of the distributions that they are for, those for arm64 by qemu: needs root; a release of a
#                fresh clone, built twice; the Ansible role, linted and run on such a Debian
#   make test-check CHECK=host.numa   one check: its own test, what every check keeps to, its rows of the fault matrix
#   make simulate   fleets with production's daemons on one simulated cluster and clock, a life for each seed
#   make fuzz    ten million changed inputs for the parsers of text from outside: minutes on two free cores
#   make check   what CI runs: lint, types, import contracts, all tests with branch coverage of the pure modules
#   make bench   measurements; make docs: the generated reference pages and dashboards; make chart: what follows from
#                the Helm chart; make site: all pages, in build/site; make wheel, deb,
#                rpm: dist/, packages with a CPython of their own, compiled once (needs root); make image: dist/, the
#                container image as an OCI layout (needs root, buildah, mmdebstrap); make lock; make clean
#   make release   all that a site downloads, built of the commit into dist/healthd-VERSION; twice the same to the byte
#
# Variables: PYTHON (which python3; of make deb and rpm: a venv of it instead), ARCH (amd64, arm64), JOBS, VERSION (of Slurm or Kubernetes), TESTS (paths for make test), WORKERS (processes that share
# it), HEALTHD_TEST_SEED (of its sample), PYTEST_ARGS, DEMO_ARGS, FUZZ_ARGS, LOCK_ARGS; of make simulate SEED (the first), SEEDS (how many), HOURS, NODES, SIMULATE_ARGS.

TESTS = tests
WORKERS = 8
KUBERNETES_TESTS = tests/live/kubernetes tests/packaging tests/contract/test_orchestrators.py
VENV = .venv/bin
# More of them than cores, which real daemons leave idle most of the time. In the order that tests/conftest.py gives.
IN_PARALLEL = --numprocesses $(WORKERS) --no-loadscope-reorder
# Nothing that runs from here asks the cloud anything.
export AWS_EC2_METADATA_DISABLED = true
# A process of ours that has to compile its modules takes half as long again to start, and tests start thousands.
unexport PYTHONDONTWRITEBYTECODE

SEED = 1
SEEDS = 20
HOURS = 336
MEASURED = -p tests.support.pure_coverage

.PHONY: demo test test-exhaustive test-check fuzz simulate test-slurm test-kubernetes test-packages check lint types contracts coverage bench docs site chart lock wheel deb rpm image release clean

# `healthd check` may find this machine wanting (1) or hard to tell (2); only a crash of ours fails the demo.
demo: .venv/runtime.stamp
	@echo "== healthd check, on this machine"
	@$(VENV)/healthd check --no-daemon || { code=$$?; test $$code -le 2 || exit $$code; }
	@echo "== healthd demo"
	@$(VENV)/healthd demo $(DEMO_ARGS)

test: .venv/dev.stamp
	@sh tests/system-packages.sh
	$(VENV)/python -m pytest $(IN_PARALLEL) $(if $(filter tests,$(TESTS)),$(MEASURED)) $(PYTEST_ARGS) $(TESTS)

test-exhaustive:
	HEALTHD_TEST_EXHAUSTIVE=1 $(MAKE) test

# VERSION: 22.05, 24.11, 26.05; without one, the Slurm that is installed here, whose tests `make test` runs as well.
test-slurm: .venv/dev.stamp
	@sh tests/system-packages.sh
	sh tests/slurm-root.sh "$(VERSION)" $(PYTEST_ARGS)

# What `make test` leaves out: a real API server, the chart, the image. Programs that are neither in KUBEBUILDER_ASSETS,
# nor cached, nor in PATH are built with Go, once, at your niceness; the session says how far that is.
# VERSION: 1.30, newest, or another that tests/live/kubernetes/pin_kubernetes.py has pinned; then what needs the
# API server alone.
test-kubernetes: .venv/dev.stamp
	@sh tests/system-packages.sh compiler debian image arm64
	HEALTHD_TEST_KUBERNETES=1 HEALTHD_TEST_KUBERNETES_VERSION=$(VERSION) $(VENV)/python -m pytest $(IN_PARALLEL) \
		-m "$(if $(VERSION),kubernetes and )not slurm" $(PYTEST_ARGS) $(KUBERNETES_TESTS)

# Five minutes on two cores that are free. FUZZ_ARGS: --inputs, --workers, --seed, names of targets (tests/fuzz).
fuzz: .venv/dev.stamp
	$(VENV)/python -m tests.fuzz $(FUZZ_ARGS)

test-check: .venv/dev.stamp
	$(VENV)/python -m pytest -q $(PYTEST_ARGS) tests/checks/test_$(subst .,_,$(CHECK)).py tests/contract/test_checks.py \
		tests/faults/test_matrix.py -k "$(CHECK) or $(subst .,_,$(CHECK)) or contract or every_code or no_state or belongs"

test-packages: .venv/dev.stamp
	@sh tests/system-packages.sh
	@sh tests/system-packages.sh image arm64
	HEALTHD_TEST_PACKAGES=1 $(VENV)/python -m pytest $(PYTEST_ARGS) tests/installing

# Ends at the first violation, with its seed: `make simulate SEED=17 SEEDS=1` shows it again.
simulate: .venv/dev.stamp
	$(VENV)/python -m tests.simulation --seed $(SEED) --seeds $(SEEDS) --hours $(HOURS) $(if $(NODES),--nodes $(NODES)) \
		--workers $(WORKERS) $(SIMULATE_ARGS)

check: lint types contracts test

lint: .venv/dev.stamp
	$(VENV)/ruff check
	$(VENV)/ruff format --check

types: .venv/dev.stamp
	$(VENV)/mypy

contracts: .venv/dev.stamp
	$(VENV)/lint-imports
	$(VENV)/deptry .
	$(VENV)/deptry . --optional-dependencies-dev-groups dev --extend-exclude "bench|docs|packaging|tests"

# What `make test` measures as well, from the tests alone that count.
coverage: .venv/dev.stamp
	$(VENV)/python -m pytest -q $(IN_PARALLEL) $(MEASURED) $(PYTEST_ARGS) tests/unit

# All of them, also after one that cannot run here (77) or misses an aim.
bench: .venv/dev.stamp
	@sh tests/system-packages.sh
	@missed= skipped=; for file in bench/bench_*.py; do \
		name=$$(basename "$$file" .py); echo "== $$name"; code=0; \
		$(VENV)/python -m "bench.$$name" || code=$$?; \
		case $$code in 0) ;; 77) skipped="$$skipped $$name" ;; *) missed="$$missed $$name" ;; esac; \
	done; \
	echo "== skipped:$${skipped:- none}; aim missed, or broken:$${missed:- none}"; \
	test -z "$$missed"

# By way of the sdist, from nothing: a build/ left behind would bring deleted modules back.
wheel: .venv/dev.stamp
	rm -rf build/lib build/bdist.* build/scripts-* dist/healthd-*.whl dist/healthd-*.tar.gz
	$(VENV)/python -m build --no-isolation --outdir dist .

# With a CPython of their own, or the one that PYTHON names: packaging/stage.sh.
deb:
	sh packaging/deb/build.sh dist

rpm:
	sh packaging/rpm/build.sh dist

image:
	sh packaging/container/build.sh dist

# Of what is committed, into dist/healthd-VERSION: all of the above, chart, SBOM, licences, checksums, provenance.
release: .venv/dev.stamp
	$(VENV)/python packaging/release.py

docs: .venv/dev.stamp
	$(VENV)/python docs/generate.py
	$(VENV)/python packaging/grafana/make.py

site: .venv/dev.stamp
	$(VENV)/python docs/site.py

chart: .venv/dev.stamp
	$(VENV)/python packaging/kubernetes/render.py

lock:
	sh packaging/lock.sh $(LOCK_ARGS)

clean:
	rm -rf .venv build dist *.egg-info .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache

LOCKED = pyproject.toml requirements/build.txt packaging/venv.sh

.venv/runtime.stamp: $(LOCKED) requirements/runtime.txt
	sh packaging/venv.sh runtime
	@touch $@

.venv/dev.stamp: $(LOCKED) requirements/dev.txt
	sh packaging/venv.sh dev
	@touch $@ .venv/runtime.stamp
