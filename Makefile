# Set-up, demonstration and checks. A second run of any target installs and downloads nothing.
#   make demo    everything from nothing: environment, model, a decided and replayed example case
#   make test    all checks and all tests, those on the real engine included
#   make check   format, lint, types and the tests that need no engine (under two minutes)

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3.11
UV ?= uv
VENV := .venv
BIN := $(VENV)/bin
DPM_HOME ?= .dpm
MODEL := smollm2-135m-instruct
MANIFEST := $(DPM_HOME)/weights/$(MODEL)/dpm-manifest.json

.PHONY: help setup weights demo check test lock clean

help:
	@sed -n 's/^#   //p' Makefile

setup: $(VENV)/.project-installed

$(VENV)/.lock-installed: locks/cpu.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || { \
	  echo "error: '$(PYTHON)' is not a Python 3.11. The lock is for CPython 3.11 on x86-64 Linux." >&2; \
	  echo "Install Python 3.11, or name it: make $(or $(MAKECMDGOALS),setup) PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV) || { \
	  echo "error: $(PYTHON) cannot make a virtual environment; Debian and Ubuntu need the package python3.11-venv." >&2; \
	  exit 1; }
	@echo "Installing the locked packages into $(VENV): 2.8 GB, from one minute on" >&2
	@$(BIN)/python -m pip install --disable-pip-version-check --no-input --no-deps --require-hashes \
	    --requirement locks/cpu.txt || { \
	  echo "error: the locked packages could not be installed; pip's own message is above." >&2; \
	  echo "If it found no torch 2.13.0+cpu: the general package index carries only the GPU build. Point pip at" >&2; \
	  echo "PyTorch's index of CPU wheels with PIP_EXTRA_INDEX_URL, or at a folder that holds the wheel with" >&2; \
	  echo "PIP_FIND_LINKS, and run make again. The lock checks the hash, wherever the wheel comes from." >&2; exit 1; }
	@touch $@

$(VENV)/.project-installed: $(VENV)/.lock-installed pyproject.toml
	@$(BIN)/python -m pip install --disable-pip-version-check --no-input --quiet --no-deps --no-build-isolation --editable .
	@touch $@

weights: $(MANIFEST)

$(MANIFEST): | $(VENV)/.project-installed
	$(BIN)/dpm weights pull $(MODEL)

demo: weights
	$(BIN)/dpm demo

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -q -n auto -m "not engine"

test: check weights
	$(BIN)/pytest -q -m engine

# Needs uv, and whatever pip needs to find the CPU build of torch, under uv's own names (UV_FIND_LINKS, UV_INDEX).
lock:
	@command -v $(UV) >/dev/null || { echo "error: 'make lock' needs uv: name it with UV=/path/to/uv" >&2; exit 1; }
	cd locks && UV_CUSTOM_COMPILE_COMMAND="make lock" $(UV) pip compile cpu.in --output-file cpu.txt --quiet \
	    --python-version 3.11 --python-platform x86_64-manylinux_2_28 --generate-hashes --allow-unsafe \
	    --no-emit-package torchvision --no-emit-package torchaudio --no-emit-package torchcodec --no-emit-package triton

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
