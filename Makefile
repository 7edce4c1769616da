# On a fresh machine with Python 3.11, gcc and make: `make demo`, `make test`.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= $(shell nproc)
STARTED := $(shell date +%s)
export PATH := $(abspath $(BIN)):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export TOKENIZERS_PARALLELISM := false

# What an installation is made from: any change installs again.
SOURCES := pyproject.toml requirements.lock $(shell find runtime \( -name '*.c' -o -name '*.cpp' -o -name '*.h' -o -name '*.inc' -o -name '*.cmake' -o -name CMakeLists.txt \))
C_FILES = $(shell git ls-files '*.c' '*.cpp' '*.cu' '*.h' | grep -v '^runtime/src/layout.h$$')
CMAKE = cmake -S runtime -G Ninja -DINFC_PYTHON=OFF

.PHONY: help demo test test-all lint test-c test-python sanitize fuzz gpu-check tensorrt-plugins wheel clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.with-%: $(BIN)/python $(SOURCES)
	$(BIN)/pip install --quiet -c requirements.lock -e '.[$*]'
	touch $@

demo: $(VENV)/.with-build ## fetch MiniLM, build it, compare sentences, latency beside PyTorch and ONNX Runtime
	$(BIN)/python examples/demo.py

test: lint test-c test-python ## everything a change must pass, in minutes

test-all: lint test-c sanitize $(VENV)/.with-dev ## the full sweep: slow tests, sanitizers, 10,000 mutated artifacts
	ctest --test-dir build/c -C slow -L slow --output-on-failure -j $(JOBS)
	INFC_MUTATE=build/address/mutate INFC_MUTATIONS=10000 INFC_FAKE_GPU=$(CURDIR)/build/c/fake_gpu $(BIN)/python -m pytest -m 'not gpu' -n $(JOBS) --dist loadfile
	@echo "make test-all took $$((($$(date +%s) - $(STARTED)) / 60)) minutes"

lint: $(VENV)/.with-dev ## ruff, mypy, clang-format
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(C_FILES)

test-c: $(VENV)/.with-dev ## the C tests of libinfc
	$(CMAKE) -B build/c > build/c.log || { cat build/c.log; exit 1; }
	@sed -n 's/^-- \(TensorRT adapter\)/\1/p' build/c.log
	cmake --build build/c
	ctest --test-dir build/c --output-on-failure -j $(JOBS)

test-python: $(VENV)/.with-dev test-c
	INFC_MUTATE=build/c/mutate INFC_FAKE_GPU=$(CURDIR)/build/c/fake_gpu $(BIN)/python -m pytest -m 'not slow and not gpu' -n $(JOBS) --dist loadfile

sanitize: $(VENV)/.with-dev ## the C tests under ASan+UBSan and TSan
	for kind in address,undefined thread; do \
	  $(CMAKE) -B build/$${kind%%,*} -DINFC_SANITIZE=$$kind -DCMAKE_BUILD_TYPE=RelWithDebInfo; \
	  cmake --build build/$${kind%%,*}; \
	  ctest --test-dir build/$${kind%%,*} --output-on-failure -j $(JOBS); \
	done

# FUZZ_SECONDS: for each of the three. What they find new is in build/fuzz/corpus, what they stumble over in build/fuzz/found-*; to
# keep inputs, see tests/fuzz/corpus/README.md.
FUZZ_SECONDS ?= 60
FUZZ = -max_total_time=$(FUZZ_SECONDS) -timeout=60 -rss_limit_mb=2048 -artifact_prefix=build/fuzz/found- -print_final_stats=1
fuzz: $(VENV)/.with-dev ## coverage-guided fuzzing of the artifact reader, the C API and language models; needs clang, or gcc and libFuzzer.a
	options=$$(tests/c/fuzz/libfuzzer/find.sh build/fuzz/libfuzzer) && \
	  $(CMAKE) -B build/fuzz $$options -DINFC_SANITIZE=address,undefined -DINFC_LIBFUZZER=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_C_FLAGS_RELWITHDEBINFO=-O1
	cmake --build build/fuzz --target fuzz_artifact fuzz_calls fuzz_lm
	mkdir -p build/fuzz/corpus/artifact build/fuzz/corpus/calls build/fuzz/corpus/lm build/fuzz/subjects
	$(BIN)/python -m tests.fuzz.subjects build/fuzz/subjects
	build/fuzz/fuzz_artifact $(FUZZ) -max_len=163840 build/fuzz/corpus/artifact tests/fuzz/corpus/artifact build/fuzz/subjects
	LD_LIBRARY_PATH=build/fuzz/fake_gpu:build/fuzz build/fuzz/fuzz_calls $(FUZZ) build/fuzz/corpus/calls tests/fuzz/corpus/calls
	build/fuzz/fuzz_lm $(FUZZ) build/fuzz/corpus/lm tests/fuzz/corpus/lm

# With the virtual environment if there is one; NumPy and nvcc are enough for the kernels. GPU_CHECK: its options, such as --model DIR
gpu-check: ## what needs a GPU, in at most four minutes; without one it says so and passes
	$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m tests.gpu.check $(GPU_CHECK)

tensorrt-plugins: $(VENV)/.with-dev ## compile the custom operators for TensorRT, where TENSORRT_ROOT names its headers
	$(BIN)/python -m infc.plugins.tensorrt.ops.build

wheel: $(VENV)/.with-dev ## a wheel in dist/
	$(BIN)/pip wheel --quiet --no-deps -w dist .

clean: ## remove what was built, not the virtual environment
	rm -rf build dist .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
