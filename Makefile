PYTHON ?= python3
TORCH ?= 2.13.0
DEEPSPEED ?= 0.19.8
VENV := .venv
BIN := $(VENV)/bin
export PYTHON

.PHONY: demo test check docs release audit prove drill integrations matrix bench gpu race lock lowest clean

demo: $(VENV)/ready  ## a private Slurm, a train over several tasks, a summary
	@$(BIN)/python examples/demo.py

check: $(VENV)/ready  ## before every commit
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q -n 3 $(SELECTION) tests/unit tests/rules tests/property

# Library trainers take minutes each: see prove and integrations.
LIBRARY_TESTS := tests/integration/slurm/test_library_trainers.py

# More workers than cores: these tests wait for Slurm more than they compute. Files with long tests start first.
SUITE := tests/packaging tests/hostile tests/integration/shell tests/integration/alerts tests/integration/browser tests/integration/slurm
WORKERS := -n 4 --dist loadfile --no-loadscope-reorder --ignore $(LIBRARY_TESTS)
# Tests that need root run by sudo, where an ordinary user has it without a password.
SUDO = $(shell [ "$$(id -u)" -eq 0 ] || ! sudo -n true 2>/dev/null || echo sudo -n)
SELECTION_OF_USER = $(if $(SUDO),-m 'not root') --skips build/skips.json
AS_ROOT = $(SUDO) env PATH="$$PATH" HOME=/root HYPOTHESIS_STORAGE_DIRECTORY=/root/.hypothesis PYTHONDONTWRITEBYTECODE=1 $(CURDIR)/$(BIN)/pytest -m root -p no:cacheprovider --skips build/skips.json

test: $(VENV)/ready  ## all that CI runs
	@.ci/packages tests  # before the check, whose tests skip what is not installed
	@rm -f build/skips.json
	@$(MAKE) --no-print-directory check SELECTION="$(SELECTION_OF_USER)"
	$(BIN)/pytest --durations 20 $(WORKERS) $(SELECTION_OF_USER) $(SUITE)
	$(BIN)/pytest --durations 20 $(SELECTION_OF_USER) tests/integration/trainer  # its ranks want both cores
	$(if $(SUDO),$(AS_ROOT) $(WORKERS) tests/unit $(SUITE) tests/integration/trainer)

docs: build/docs/ready  ## the documentation site in build/site; a broken link fails the build
	NO_MKDOCS_2_WARNING=1 build/docs/bin/mkdocs build --strict

build/docs/ready: pyproject.toml
	$(PYTHON) -m venv --clear build/docs
	build/docs/bin/pip install -q '.[docs]'
	@touch $@

release:  ## sdist, wheel, one file for machines without pip, parts and licences in dist/, each tried in a sandbox
	@.ci/packages
	.ci/release

# pip-audit asks the index for advisories. Packages that the index does not know are listed as not audited: a
# mirror without advisories finds nothing. bandit works without network.
audit: build/audit/ready  ## known vulnerabilities of locked packages, unsafe code
	build/audit/bin/bandit -q -r opsctl trainer watchdogs -c pyproject.toml
	build/audit/bin/pip-audit --require-hashes --disable-pip -r requirements/dev.txt

build/audit/ready: Makefile
	$(PYTHON) -m venv --clear build/audit
	build/audit/bin/pip install -q 'bandit>=1.8' 'pip-audit>=2.7'
	@touch $@

prove: $(VENV)/ready integrations  ## matrices, soaks and long proofs, whose figures stand in docs/
	$(BIN)/pytest --timeout 1800 tests/endurance tests/integration/trainer/test_hugging_face.py
	$(BIN)/python -m pytest -q -p tests.hostile.attack_table tests/hostile

# Absolute, for tests that change the directory. dill, below datasets, takes modules outside of `site-packages` for code of
# the user and writes them out.
LIBRARIES := $(CURDIR)/build/integrations/site-packages
integrations: $(VENV)/ready $(LIBRARIES)/ready  ## trainers and trackers of real libraries, those too large for the lock as well
	PYTHONPATH=$(LIBRARIES) $(BIN)/pytest $(LIBRARY_TESTS) tests/integration/trainer/test_trackers.py tests/integration/trainer/test_lm_eval.py

$(LIBRARIES)/ready: requirements/dev.txt
	$(BIN)/pip freeze --exclude-editable >build/installed.txt
	@# without dependencies: torchtitan excludes the datasets that trl brings
	$(BIN)/pip install -q --upgrade --target $(LIBRARIES) --no-deps torchtitan==0.3.0 spmd_types==0.2.3 torchdata \
	    torch_checkpointing triton
	$(BIN)/pip install -q --upgrade --target $(LIBRARIES) --constraint build/installed.txt accelerate lightning trl wandb mlflow-skinny \
	    sqlalchemy alembic lm-eval tyro
	@touch $@

# A fault without the right action prevents no second card.
drill: $(VENV)/ready  ## every fault against two trainers on a sandbox; the score cards stand in docs/how-to/drill.md
	mkdir -p build/drill
	$(BIN)/python -m opsctl.trainer.prepare --input docs --suffix .md --output build/drill/corpus
	$(BIN)/opsctl drill --markdown; code=$$?; \
	$(BIN)/opsctl drill benchmarks/drill/embedded.toml --sandbox --markdown || code=1; exit $$code

matrix: $(VENV)/ready  ## as root: the tests on every Slurm of the archive, each in a root of its own
	$(BIN)/python -m tests.matrix

bench: $(VENV)/ready  ## ratios within one run
	$(BIN)/python benchmarks/commands.py
	$(BIN)/python -P benchmarks/task_gap.py
	$(BIN)/python -P benchmarks/watch.py
	$(BIN)/python benchmarks/simulate.py
	$(BIN)/python -P benchmarks/report.py
	$(BIN)/python benchmarks/trainer.py

# Of an environment whose torch was built for the GPU: .ci/torch prefers the CPU build.
GPU_PYTHON ?= $(BIN)/python
gpu: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),$(VENV)/ready)  ## proofs and speed of the trainer on one GPU, in ten minutes; without a GPU: the reason, and success
	PYTHONPATH=$(CURDIR) $(GPU_PYTHON) -P benchmarks/gpu_proof.py

race: $(VENV)/ready  ## opsctl with default settings against the plain recipe, three schedules, three runs: 100 minutes
	$(BIN)/python -P benchmarks/races.py

# requirements/README.md says why torch and deepspeed are outside the lock.
$(VENV)/ready: pyproject.toml requirements/dev.txt .ci/packages .ci/torch
	@.ci/packages
	$(PYTHON) -m venv $(VENV) || $(PYTHON) -m venv --clear $(VENV)  # of another Python: anew
	$(BIN)/pip install -q --require-hashes -r requirements/dev.txt
	@.ci/torch $(VENV) $(TORCH)
	$(BIN)/pip install -q --use-pep517 --no-build-isolation "deepspeed==$(DEEPSPEED)"
	$(BIN)/pip install -q --no-deps --no-build-isolation -e .
	@touch $@

UV := build/uv/bin/uv
$(UV):
	$(PYTHON) -m venv build/uv
	build/uv/bin/pip install -q uv

# What torch brings of CUDA is not locked, since the CPU build brings none of it.
CUDA := $(foreach name,cublas cuda-cccl cuda-cupti cuda-nvrtc cuda-runtime cudnn-cu13 cufft cufile curand cusolver \
	cusparse cusparselt-cu13 nccl-cu13 nvjitlink nvshmem-cu13 nvtx,nvidia-$(name)) triton cuda-bindings \
	cuda-pathfinder cuda-toolkit
lock: $(UV)  ## every package anew, as new as pyproject.toml allows
	@mkdir -p build
	@printf 'torch==%s\ndeepspeed==%s\n' '$(TORCH)' '$(DEEPSPEED)' >build/constraints.txt
	@$(UV) pip compile -q --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
	    $(foreach name,torch deepspeed $(CUDA),--no-emit-package $(name)) --constraint build/constraints.txt \
	    --extra all --extra dev --extra export --extra trainer pyproject.toml -o requirements/dev.txt

lowest: $(UV)  ## the unit tests with the lowest versions that pyproject.toml allows
	$(UV) venv -q --clear --python $(PYTHON) build/lowest
	$(UV) pip install -q --python build/lowest/bin/python --resolution lowest-direct '.[all,dev]'
	$(UV) pip install -q --python build/lowest/bin/python --no-deps --no-build-isolation -e .
	build/lowest/bin/python -P -m pytest -q -n 2 -m 'not torch' tests/unit

clean:  ## everything that make made, the sandbox of the demo too
	-[ -x $(BIN)/opsctl ] && $(BIN)/opsctl sandbox down --name demo
	rm -rf build dist $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
