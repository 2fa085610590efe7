# All that a person or a machine does with this project. `make` alone lists it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
HERE := $(shell pwd)

.DEFAULT_GOAL := help
.PHONY: help setup build crates tested test coverage coverage-python coverage-rust foreign integrations bench bench-train study bindings demo docs wheel \
    sdist wheel-test lint lint-rust lint-cpp lint-python lint-workflows advisories format clean

# The build scripts of cargo look where these point. They are the same for every target, so that nothing is built twice.
export DALI_ZARR_PYTHON := $(HERE)/$(BIN)/python
SYSTEM_NVCC := $(shell nvcc --version 2>/dev/null | grep -q 'release 13\.' && command -v nvcc)
ifeq ($(DALI_ZARR_NVCC)$(SYSTEM_NVCC),)
export DALI_ZARR_NVCC := $(HERE)/$(VENV)/cuda/nvidia/cu13/bin/nvcc
export DALI_ZARR_CUDA_INCLUDE := $(HERE)/$(VENV)/cuda/nvidia/cu13/include
TOOLKIT := $(VENV)/.toolkit
endif
export CARGO_TARGET_DIR := $(HERE)/target

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# DALI=2.2.0 is for another version of DALI than the one that tests/requirements.txt names.
setup: $(VENV)/.python $(TOOLKIT)  ## Make .venv with all that building and testing needs

$(VENV)/.pip:
	@command -v cargo >/dev/null || { echo "cargo was not found: install Rust 1.92 or later"; exit 1; }
	@command -v c++ >/dev/null || { echo "c++ was not found: install a C++20 compiler (apt install g++)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@touch $@

# Python compiles what is imported, which is little of these 8 GB.
$(VENV)/.python: tests/requirements.txt | $(VENV)/.pip
	$(BIN)/python -m pip install --quiet --no-compile --requirement tests/requirements.txt
	$(if $(DALI),$(BIN)/python -m pip install --quiet --no-compile nvidia-dali-cuda130==$(DALI))
	@touch $@

# Beside the environment's packages and not among them, because PyTorch brings a later CUDA.
$(VENV)/.toolkit: pyproject.toml | $(VENV)/.pip
	@$(BIN)/python cmake/toolkit.py > $@.new
	@cmp -s $@.new $@ || $(BIN)/python -m pip install --quiet --no-compile --no-deps --upgrade --target $(VENV)/cuda -r $@.new
	@mv $@.new $@

$(VENV)/.bench: $(VENV)/.python tests/requirements-bench.txt
	$(BIN)/python -m pip install --quiet --requirement tests/requirements-bench.txt
	@touch $@

# The writers of foreign stores: Python's in .venv, but zarr-python 2, anemoi-datasets (which needs it), anemoi-training and Node's in folders of
# their own.
build/foreign/.python: $(VENV)/.python tests/requirements-foreign.txt tests/foreign/requirements-zarr2.txt tests/foreign/requirements-anemoi.txt \
    tests/foreign/requirements-anemoi-training.txt
	$(BIN)/python -m pip install --quiet --requirement tests/requirements.txt --requirement tests/requirements-foreign.txt
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(@D)/zarr2 --requirement tests/foreign/requirements-zarr2.txt
	$(BIN)/python -m pip install --quiet --upgrade --target $(@D)/anemoi --requirement tests/foreign/requirements-anemoi.txt
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(@D)/anemoi-training \
	    --requirement tests/foreign/requirements-anemoi-training.txt
	@touch $@

build/foreign/.node: tests/foreign/package.json
	@command -v npm >/dev/null || { echo "npm was not found: install Node 20 or later (apt install npm)"; exit 1; }
	@mkdir -p $(@D) && cp $< $(@D)
	npm install --silent --prefix $(@D) --no-package-lock --no-audit --no-fund
	@touch $@

build: setup  ## Build the plugin and install the package dali_zarr into .venv
	$(BIN)/python -m pip install --quiet --no-build-isolation --no-deps .

# Tests run with assertions and checks of overflow (profile.checked in Cargo.toml). The library is not the one that users get, so it is
# installed in a folder of its own. One worker more than there are cores; PYTEST_ARGS="-n0 -k name" runs some of the tests without workers.
# Rust's tests run beside Python's, for which they make way: most run while Python's leave a core idle. What they print is shown where one fails.
# Compiled Python is kept, whatever the environment says: pytest compiles tests and plugins in a way of its own, otherwise in each worker.
TESTED := $(HERE)/build/tested

# Compiling the kernels for all architectures takes minutes. Without a GPU one shows that they compile.
ifeq ($(shell command -v nvidia-smi),)
crates tested test lint coverage: export CUDAARCHS ?= 75
endif

# The library and its tests in Rust. They need no package of Python but CUDA's compiler, so they can be built beside `make setup`. (Cargo would
# take the jobs of `make --jobs` for its own.)
CRATES := --profile checked --locked --workspace --features dali-zarr/testing

crates: $(TOOLKIT)
	env -u MAKEFLAGS cargo test $(CRATES) --lib --tests --no-run --quiet

tested: setup
	$(BIN)/python -m pip install --quiet --no-build-isolation --no-deps --upgrade --target $(TESTED) \
	    -C build-dir=build/checked -C cmake.define.DALI_ZARR_PROFILE=checked .

test: tested  ## Run every test; those that need a GPU are skipped without one
	cargo test $(CRATES) --lib --tests --no-run
	@{ nice -n 5 cargo test $(CRATES) --lib --tests && nice -n 5 cargo test $(CRATES) --doc; } > build/rust-tests.log 2>&1 & rust=$$!; status=0; \
	    PYTHONDONTWRITEBYTECODE= PYTHONPATH=$(TESTED) $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal \
	    $(PYTEST_ARGS) tests || status=$$?; \
	    wait $$rust || { status=$$?; cat build/rust-tests.log; }; grep '^test result' build/rust-tests.log; exit $$status

# Python's by coverage.py, in all processes of the tests; Rust's by cargo-llvm-cov, which builds everything anew, for the tests in Rust.
# The kernels' code for the host isn't measured. Tools of LLVM must fit the compiler's LLVM: rustup's are taken where they are installed.
COVERAGE := build/coverage

$(COVERAGE)/.installed: pyproject.toml
	$(PYTHON) -m venv $(COVERAGE)/.venv
	$(COVERAGE)/.venv/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(COVERAGE)/.venv/bin/python -m pip install --quiet --group coverage
	$(COVERAGE)/.venv/bin/python -c pass
	@touch $@

coverage: coverage-python coverage-rust  ## Measure which lines the tests run; tables are printed, pages are in build/coverage

coverage-python: tested $(COVERAGE)/.installed
	rm -f $(COVERAGE)/python*
	export DALI_ZARR_COVERAGE=$(HERE)/$(COVERAGE)/python COVERAGE_PROCESS_START=$(HERE)/pyproject.toml \
	    PYTHONPATH=$(TESTED):$(HERE)/tests/coverage:$$(echo $(HERE)/$(COVERAGE)/.venv/lib/python3*/site-packages); \
	$(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal $(PYTEST_ARGS) tests; status=$$?; unset COVERAGE_PROCESS_START; \
	$(BIN)/python -m coverage combine --quiet && $(BIN)/python -m coverage html --quiet --directory $(COVERAGE)/pages-python && \
	    $(BIN)/python -m coverage report --skip-covered; exit $$status

LLVM_TOOLS = $$(found=$$(rustc --print target-libdir)/../bin; test -x $$found/llvm-profdata && echo $$found || echo $(HERE)/$(COVERAGE)/.venv/bin)

coverage-rust: setup $(COVERAGE)/.installed
	export LLVM_COV=$(LLVM_TOOLS)/llvm-cov LLVM_PROFDATA=$(LLVM_TOOLS)/llvm-profdata; cov="$(COVERAGE)/.venv/bin/cargo-llvm-cov llvm-cov"; \
	$$cov --profile checked --locked --workspace --lib --tests --no-report && \
	$$cov report --profile checked --html --output-dir $(COVERAGE)/pages-rust --ignore-filename-regex $(RUST_TESTS) && \
	$$cov report --profile checked --summary-only --ignore-filename-regex $(RUST_TESTS)

# What isn't counted: the tests themselves.
RUST_TESTS := '(^|/)tests?(_[a-z_]*)?(\.rs|/)'

foreign: build build/foreign/.python build/foreign/.node  ## Read what other programs write; installs all of them
	DALI_ZARR_FOREIGN_REQUIRED=1 $(BIN)/python -m pytest tests/foreign

# Frameworks that tests/requirements.txt doesn't name clash with it, or with each other: each has a folder of its own. Its file says all
# that it needs beside .venv.
INTEGRATIONS := $(patsubst tests/integrations/requirements-%.txt,%,$(wildcard tests/integrations/requirements-*.txt))

build/integrations/%/.python: tests/integrations/requirements-%.txt $(VENV)/.python
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(@D) --requirement $<
	@touch $@

integrations: build $(INTEGRATIONS:%=build/integrations/%/.python)  ## Test adapters beside their frameworks, and compare speeds
	$(BIN)/python -m pytest $(PYTEST_ARGS) tests/integrations
	@for name in xbatcher lightning anemoi credit transformers physicsnemo viscy monai torchgeo; do ANEMOI_BASE_SEED=1 PYTHONPATH=$(HERE)/build/integrations/$$name \
	    $(BIN)/python -W ignore tests/integrations/speed.py $$name > build/integrations/$$name.log 2>&1 || \
	    { cat build/integrations/$$name.log; exit 1; }; done
	@$(BIN)/python tests/integrations/speed.py --table

# BENCH holds arguments: make bench BENCH="--device cpu --fields 32". tests/bench/history.py keeps the results for the site.
bench: build $(VENV)/.bench  ## Measure throughput beside other readers
	$(BIN)/python tests/bench/bench.py --json bench-data/results.json $(BENCH)

# Where there is no GPU it is small. TRAIN holds arguments: make bench-train TRAIN="--stores zstd --profile".
bench-train: build  ## Measure what reading costs the training of U-Nets
	$(BIN)/python tests/bench/train.py $(if $(shell command -v nvidia-smi),,--small) $(TRAIN)

# Where there is no GPU it is small. STUDY holds arguments: make study STUDY="--data /dev/shm/study".
study: build  ## Repeat the study that began with training at 9 % of what the GPU could do
	for one in store chunking reading decompression bars timelines gpus skill draw; do \
	    $(BIN)/python examples/study/$$one.py --size $(if $(shell command -v nvidia-smi),whole,small) $(STUDY) || exit 1; done

# libclang reads the headers; the compiler's own ones aren't part of it.
BINDINGS ?= src/nvcomp-sys/src/sys.rs

bindings: setup  ## Write the bindings of nvCOMP anew, from the headers in .venv
	LIBCLANG_PATH=$$(echo $(HERE)/$(VENV)/lib/python3*/site-packages/clang/native) cargo run --quiet --locked --manifest-path src/nvcomp-sys/bindgen/Cargo.toml -- \
	    $$(cc -print-file-name=include) $(VENV)/lib/python3*/site-packages/nvidia/libnvcomp/include $(or $(DALI_ZARR_CUDA_INCLUDE),/usr/local/cuda/include) > $(BINDINGS).new
	@mv $(BINDINGS).new $(BINDINGS)

# The demo has an environment and a build of its own, with what it needs alone. Where there is a GPU, it trains by PyTorch, with the
# library that users get, compiled for this GPU. Elsewhere it takes what is ready soonest: JAX, whose packages have a tenth of the size, a
# library that isn't optimised (profile.demo in Cargo.toml), and kernels as PTX.
DEMO := build/demo/.venv
DEMO_TOOLKIT := $(if $(TOOLKIT),$(if $(wildcard $(TOOLKIT)),,$(DEMO)/.toolkit))
ifeq ($(shell command -v nvidia-smi),)
DEMO_SCRIPT := era5_unet_jax.py
DEMO_PROFILE := demo
DEMO_FRAMEWORK := jax jaxlib
demo: export CUDAARCHS ?= 75-virtual
else
DEMO_SCRIPT := era5_unet.py
DEMO_PROFILE := release
DEMO_FRAMEWORK := torch
demo: export CUDAARCHS ?= native
endif

$(DEMO)/.python: examples/requirements-demo.txt tests/requirements.txt
	@command -v cargo >/dev/null || { echo "cargo was not found: install Rust 1.92 or later"; exit 1; }
	@command -v c++ >/dev/null || { echo "c++ was not found: install a C++20 compiler (apt install g++)"; exit 1; }
	$(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/python -m pip install --quiet --no-compile --requirement examples/requirements-demo.txt \
	    $(foreach name,$(DEMO_FRAMEWORK),$$(grep ^$(name)== tests/requirements.txt))
	@touch $@

$(DEMO)/.toolkit: $(DEMO)/.python pyproject.toml
	$(DEMO)/bin/python cmake/toolkit.py > $@.new
	$(DEMO)/bin/python -m pip install --quiet --no-compile --no-deps --upgrade --target $(DEMO)/cuda -r $@.new
	@mv $@.new $@

demo: $(DEMO)/.python $(DEMO_TOOLKIT)  ## Train a small U-Net on an ERA5-like store
	$(if $(DEMO_TOOLKIT),DALI_ZARR_NVCC=$(HERE)/$(DEMO)/cuda/nvidia/cu13/bin/nvcc DALI_ZARR_CUDA_INCLUDE=$(HERE)/$(DEMO)/cuda/nvidia/cu13/include) \
	    $(DEMO)/bin/python -m pip install --quiet --no-compile --no-build-isolation --no-deps \
	    -C build-dir=build/demo/cmake -C cmake.define.DALI_ZARR_PROFILE=$(DEMO_PROFILE) .
	$(DEMO)/bin/python examples/$(DEMO_SCRIPT)

# MkDocs has an environment of its own: the site needs neither DALI nor what the tests need.
DOCS := build/docs/.venv

$(DOCS)/.installed: pyproject.toml
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --upgrade pip
	$(DOCS)/bin/python -m pip install --quiet --group docs
	@touch $@

docs: $(DOCS)/.installed  ## Build the site of docs/ in build/docs/site, and check links, code widths, contrast and the search
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet
	$(DOCS)/bin/python tests/support/built_site.py build/docs/site

# The wheel's tools are in an environment of their own too. One release for all: see cmake/wheel.py.
WHEEL := build/wheel

$(WHEEL)/.venv/.installed: pyproject.toml
	@command -v cargo >/dev/null || { echo "cargo was not found: install Rust 1.92 or later"; exit 1; }
	$(PYTHON) -m venv $(WHEEL)/.venv
	$(WHEEL)/.venv/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(WHEEL)/.venv/bin/python -m pip install --quiet --group wheel
	@touch $@

# ARCH=aarch64 is for Arm: on another machine cmake/cross.sh makes what that needs.
ARCH := $(shell uname -m)

wheel: $(WHEEL)/.venv/.installed  ## Build the wheel for all versions of DALI and CUDA, in dist, with an SBOM beside it
	$(WHEEL)/.venv/bin/python cmake/wheel.py $(ARCH)

sdist: $(WHEEL)/.venv/.installed  ## Build the source package in dist, and check what PyPI would refuse
	$(WHEEL)/.venv/bin/python -m build --sdist --no-isolation --skip-dependency-check --outdir dist
	$(WHEEL)/.venv/bin/twine check --strict dist/*.tar.gz $(wildcard dist/*.whl)

# A wheel for another kind of machine is tested under emulation. WHEEL_TEST holds arguments: make wheel-test ARCH=aarch64 WHEEL_TEST=--whole.
wheel-test: setup  ## Install the wheel of dist into fresh environments, one for each build of DALI, and read by it
	$(BIN)/python tests/$(if $(filter $(shell uname -m),$(ARCH)),wheel,emulated).py $(WHEEL_TEST)

# The tools that Rust and Python don't bring along are in an environment of their own.
LINT := build/lint/.venv/bin

$(LINT)/.installed: pyproject.toml
	$(PYTHON) -m venv build/lint/.venv
	$(LINT)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(LINT)/python -m pip install --quiet --group lint
	@touch $@

CPP = $(shell find include src examples tests/c_abi -name '*.[ch]' -o -name '*.cc' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh')
SHIM = -isystem $(VENV)/lib/python3*/site-packages/nvidia/dali/include \
    -isystem $(or $(DALI_ZARR_CUDA_INCLUDE),/usr/local/cuda/include) -I target/checked/bridge/include -DNDEBUG -DDALI_ZARR_DALI=204
TIDY = xargs -I{} -P $(shell nproc) $(LINT)/clang-tidy --quiet {} --

lint: lint-rust lint-cpp lint-python lint-workflows  ## Check format, style, types, licences and workflows

lint-rust: setup $(LINT)/.installed
	cargo fmt --all --check
	$(LINT)/cargo-deny --locked check bans licenses sources
	cargo clippy --profile checked --locked --workspace --all-targets -- --deny warnings
	RUSTDOCFLAGS="--deny warnings --allow rustdoc::private_intra_doc_links" cargo doc --profile checked --quiet --locked --workspace --features dali-zarr/testing --no-deps --document-private-items

# clang-tidy needs the headers that cargo writes. It sees the kernels as the C++ compiler does.
lint-cpp: lint-rust
	$(LINT)/clang-format --dry-run --Werror $(CPP)
	ls src/kernels/cuda/*.cpp | $(TIDY) -std=c++17
	ls src/plugin/shim/*.cc | $(TIDY) -std=c++17 $(SHIM)

lint-python: setup
	$(BIN)/ruff check python examples tests cmake docs .ci/subjects
	$(BIN)/pyright --pythonpath $(BIN)/python

lint-workflows: $(LINT)/.installed
	$(LINT)/actionlint -shellcheck $(LINT)/shellcheck -pyflakes= .github/workflows/*.yml
	$(LINT)/shellcheck .ci/run

# The database is at GitHub, so this isn't part of `make lint`.
advisories: $(LINT)/.installed  ## Look for crates with known vulnerabilities, in RustSec's database
	$(LINT)/cargo-deny --locked check advisories

format: setup $(LINT)/.installed  ## Format Rust, C, C++ and CUDA
	cargo fmt --all
	$(LINT)/clang-format -i $(CPP)

clean:  ## Remove what was built; .venv stays
	rm -rf target build dist example-data bench-data bench-train
