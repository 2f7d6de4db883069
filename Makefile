# Every target sets up what it needs: a virtual environment with the pinned versions of constraints.txt.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed

.PHONY: help setup demo docs quick coverage wheel-test minimum-test lock test test-slow test-ray test-integrations format lint type check bench bench-evaluators bench-adversary clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("bpsearch needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev,gymnax,minari,mujoco,sb3-contrib]'
	@touch $(STAMP)

setup: $(STAMP)  ## create the virtual environment and install bpsearch into it

demo: setup  ## one policy by Monte Carlo, by the paper's method and by the default; a picture
	$(BIN)/bpsearch demo

test: lint type check  ## every check: format, lint, types, tests, the README as printed

check: setup  ## the tests alone
	$(BIN)/pytest

test-slow: setup  ## the tests that take longest: the paper's experiments end to end, kills, other systems
	$(BIN)/pytest -m slow

test-ray: setup  ## workers on a Ray cluster of two nodes on this computer
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray]'
	BPSEARCH_TEST_RAY=1 $(BIN)/pytest -n 0 tests/test_ray.py

test-integrations: setup  ## agents and environments of every library; installs all extras
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all,dev]'
	$(BIN)/pytest -m integration -n 0

format: setup  ## rewrite the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: setup  ## format and lint, without changing anything
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

type: setup  ## mypy: --strict on src, that calls are right in benchmarks
	$(BIN)/mypy --strict src benchmarks

bench: setup  ## time per BPG iteration: this program, vectorised NumPy, a plain loop
	$(BIN)/python -m benchmarks.bpg_iteration

bench-evaluators: setup  ## errors and coverage of every method on every task; hours, and resumable
	$(BIN)/python -m benchmarks.evaluators --jobs 2 --out docs/evaluators

bench-adversary: setup  ## tasks that attack the default, and the worst of them; hours, and resumable
	$(BIN)/python -m benchmarks.adversary --tasks 200 --studies 200 --jobs 2 --out docs/adversary

# A spread of the tests: each room once, proofs by enumeration first, nothing that starts processes or trains.
QUICK := architecture estimators oracle outcomes trajectories unbiased words

quick: setup  ## a minute of tests, from every room; for every change
	$(BIN)/pytest -q -x -k 'not flips_no_global_flag' $(foreach name,$(QUICK),$(wildcard tests/test_$(name).py))

coverage: setup  ## the tests, and which lines they run: htmlcov/index.html
	$(BIN)/pytest --cov=bpsearch --cov-report=term:skip-covered --cov-report=html

wheel-test: setup  ## wheel and sdist, installed in empty environments and tried
	rm -rf dist build
	$(BIN)/python -m build --outdir dist
	for package in dist/*.whl dist/*.tar.gz; do \
		rm -rf build/empty && $(PYTHON) -m venv build/empty && \
		build/empty/bin/pip install --quiet --disable-pip-version-check -c constraints.txt "$$package" && \
		build/empty/bin/python tests/smoke.py || exit 1; \
	done
	build/empty/bin/pip install --quiet --disable-pip-version-check -c constraints.txt "$$(ls dist/*.whl)[report]"
	build/empty/bin/python tests/smoke.py --report
	ls -l dist

minimum-test: setup  ## the oldest versions that pyproject.toml allows; needs uv
	mkdir -p build
	uv pip compile --quiet --resolution lowest-direct --python-version 3.11 --no-header pyproject.toml --extra report -o build/minimum.txt
	uv venv --quiet --clear --python 3.11 build/minimum
	uv pip install --quiet --python build/minimum/bin/python -r build/minimum.txt .
	build/minimum/bin/python tests/smoke.py --report

lock:  ## write requirements.lock; needs uv
	mkdir -p build && cp requirements.lock build/requirements.lock
	uv pip compile --quiet pyproject.toml --universal --python-version 3.11 -c constraints.txt --generate-hashes \
		--extra dev --extra docs --extra gymnax --extra minari --extra mujoco --extra sb3-contrib \
		--no-emit-index-url --no-emit-find-links --no-header --no-annotate -o build/requirements.lock
	(echo '# Every package that `make setup` and `make docs` install, with hashes: pip install --require-hashes -r requirements.lock'; \
		echo '# Made by `make lock`.'; cat build/requirements.lock) > requirements.lock

docs: setup  ## the site, with warnings as errors, every link checked and every code block run: docs/_build/html
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	rm -rf docs/_build/html
	$(BIN)/python -m sphinx -q -E -W --keep-going -b html docs docs/_build/html
	$(BIN)/python docs/check_site.py docs/_build/html
	$(BIN)/pytest -m 'slow or not slow' tests/test_pages.py

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
