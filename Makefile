PYTHON ?= python3
TORCH ?= 2.13.0
DEEPSPEED ?= deepspeed>=0.19
VENV := .venv
BIN := $(VENV)/bin
export PYTHON

.PHONY: demo test check prove matrix bench clean

demo: $(VENV)/ready  ## a private Slurm, a train over several tasks, a summary
	@$(BIN)/python examples/demo.py

check: $(VENV)/ready  ## before every commit
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q -n 2 tests/unit tests/rules tests/property

test: check  ## all that CI runs
	@.ci/packages tests
	$(BIN)/pytest -n 2 --dist loadfile tests/golden tests/shell tests/alerts tests/browser tests/sandbox
	$(BIN)/pytest tests/trainer  # its ranks want both cores

prove: $(VENV)/ready  ## matrices, soaks and long proofs, whose figures stand in docs/
	$(BIN)/pytest --timeout 1800 tests/prove

matrix: $(VENV)/ready  ## as root: the tests on every Slurm of the archive, each in a root of its own
	$(BIN)/python -m tests.matrix

bench: $(VENV)/ready  ## ratios within one run
	$(BIN)/python benchmarks/verbs.py
	$(BIN)/python -P benchmarks/watch.py
	$(BIN)/python benchmarks/simulate.py
	$(BIN)/python -P benchmarks/report.py
	$(BIN)/python benchmarks/trainer.py

# The CPU build of torch where the index has one: it is a tenth of the size.
$(VENV)/ready: pyproject.toml .ci/packages
	@.ci/packages
	$(PYTHON) -m venv $(VENV) || $(PYTHON) -m venv --clear $(VENV)  # of another Python: anew
	$(BIN)/pip install -q "torch==$(TORCH)+cpu" || $(BIN)/pip install -q "torch==$(TORCH)"
	$(BIN)/pip install -q "$(DEEPSPEED)"
	$(BIN)/pip install -q -e '.[trainer,export,dev]'
	@touch $@

clean:  ## everything that make made, the sandbox of the demo too
	-[ -x $(BIN)/opsctl ] && $(BIN)/opsctl sandbox down --name demo
	rm -rf build dist $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
