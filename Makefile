# `make run` serves the default pack, `make test` tests; `make help` lists the rest.
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help run test sanitize lint types bench quality report docs-check format clean

VENV := .venv
BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
BUILD_INPUTS := pyproject.toml CMakeLists.txt kernels/blas/forward.c \
  $(foreach folder,native native/src native/mlx_primitive,\
    $(wildcard $(addprefix kernels/$(folder)/,CMakeLists.txt *.cpp *.h *.inl)))
SANITIZED := build/sanitize/kernels/native/libmtrun_native.so

pack ?= smollm2
args ?=
# The words of the default run, unless `args` chooses a profile of its own.
words = $(if $(findstring profile=,$(args)),,profile=cascade-tokenv3 cascade.alpha=0.95) pack=$(pack) $(args)

help:
	@echo 'make run [pack=NAME] [args="WORDS"]  install, fetch the pack once, serve it to OpenAI clients'
	@echo 'make test [args="PYTEST FLAGS"]      install the tools, run every test'
	@echo 'make sanitize [args="PYTEST FLAGS"]  test the native library built with sanitizers (GCC)'
	@echo 'make lint, make types                ruff; pyright'
	@echo 'make format                          let ruff sort imports and lay out the code'
	@echo 'make bench [args="FLAGS"]            measure speed on both packs and report it (20 quiet minutes)'
	@echo 'make quality [args="FLAGS"]          measure answers under every law and report them'
	@echo 'make report                          the published report, made from its committed receipts'
	@echo 'make docs-check                      hold every figure of report, README and docs to its receipt'
	@echo 'make clean                           remove .venv and whatever was built (fetched packs stay)'

run: $(RUN_STAMP)
	@case '$(pack)' in */*|.*|~*) ;; *) $(BIN)/mtrun pack fetch $(pack) >/dev/null ;; esac
	@exec $(BIN)/mtrun $(words)

# The tests of the real pack skip where it cannot be fetched, so a failed fetch only warns.
test: $(DEV_STAMP)
	@$(BIN)/mtrun pack fetch smollm2 >/dev/null || echo 'make test: without the pack, its tests skip' >&2
	$(BIN)/python -m pytest $(args)

# The sanitizers' runtime has to be in the process before Python, and the C++ library that it intercepts with it. Python
# keeps memory until it exits, so leaks are not looked for.
sanitize: $(DEV_STAMP)
	$(BIN)/cmake -S . -B build/sanitize -DMTRUN_SANITIZE=ON -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=$(CXX)
	$(BIN)/cmake --build build/sanitize --parallel 2
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	  $(BIN)/python -m pytest tests/kernels/native --native-library $(abspath $(SANITIZED)) $(args)

lint: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(DEV_STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(DEV_STAMP) .dev/mtrun
	$(BIN)/pyright

bench: $(DEV_STAMP)
	@$(BIN)/mtrun pack fetch smollm2 >/dev/null
	$(BIN)/python -m benchmarks.battery --part speed $(args)

quality: $(DEV_STAMP)
	@$(BIN)/mtrun pack fetch smollm2 >/dev/null
	$(BIN)/python -m benchmarks.battery --part quality $(args)

report: $(DEV_STAMP)
	$(BIN)/python -m benchmarks.battery --part report --out docs/results/battery

docs-check: $(DEV_STAMP)
	$(BIN)/mtrun report --check docs/results/battery/report
	$(BIN)/mtrun report --check-text README.md docs/*.md

# The folders are imported as mtrun.runtime and so on; through this link the type checker sees them there.
.dev/mtrun:
	@mkdir -p .dev
	@ln -s .. $@

$(VENV)/bin/python:
	@for candidate in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
	  if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    exec $$candidate -m venv $(VENV); \
	  fi; \
	done; \
	echo 'make: mtrun needs Python 3.11 or newer, and none was found: install one, or name it with PYTHON=/path/to/python3.' >&2; \
	exit 1

$(RUN_STAMP): $(BUILD_INPUTS) | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(DEV_STAMP): $(BUILD_INPUTS) | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ $(RUN_STAMP)

clean:
	rm -rf $(VENV) .dev build dist .pytest_cache .ruff_cache .hypothesis
	find conf runtime lanes kernels tests -name __pycache__ -type d -prune -exec rm -rf {} +
