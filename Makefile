PYTHON ?= python3
TORCH ?= 2.13.0
DEEPSPEED ?= deepspeed>=0.19
VENV := .venv
BIN := $(VENV)/bin
export PYTHON

.PHONY: demo test check prove bench clean

demo: $(VENV)/ready  ## a private Slurm, a train over several tasks, a summary
	@$(BIN)/python examples/demo.py

check: $(VENV)/ready  ## before every commit
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q -n 2 tests/unit tests/rules tests/property

test: check  ## all that CI runs
	$(BIN)/pytest -n 2 --dist loadfile --ignore=tests/unit --ignore=tests/rules --ignore=tests/property tests

bench: $(VENV)/ready
	$(BIN)/python benchmarks/verbs.py

# The CPU build of torch where the index has one: it is a tenth of the size.
$(VENV)/ready: pyproject.toml .ci/packages
	@.ci/packages
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q "torch==$(TORCH)+cpu" || $(BIN)/pip install -q "torch==$(TORCH)"
	$(BIN)/pip install -q "$(DEEPSPEED)"
	$(BIN)/pip install -q -e '.[trainer,dev]'
	@touch $@

clean:  ## everything that make made, the sandbox of the demo too
	-[ -x $(BIN)/opsctl ] && $(BIN)/opsctl sandbox down --name demo
	rm -rf build dist $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
