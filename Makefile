# Two commands do all the set-up: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-slow lint types layers unit faults schedules attacks fuzz soak bench flower clean

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(VENV)/.ready
	$(BIN)/dresfl demo --out runs/demo

test: lint types layers unit

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.ready
	$(BIN)/mypy

layers: $(VENV)/.ready
	$(BIN)/lint-imports

unit: $(VENV)/.ready
	$(BIN)/python -m pytest -n 2 -m "not slow and not attack"

# What takes too long for every change: tests marked slow, four fault schedules with real processes, and wider
# hypothesis sweeps over the arithmetic.
test-slow: $(VENV)/.ready
	$(BIN)/python -m pytest -n 2 -m slow
	SCHEDULES=100 $(BIN)/python -m pytest tests/runtimes/grpc_runtime/test_schedules_processes.py
	HYPOTHESIS_PROFILE=slow $(BIN)/python -m pytest -n 2 -m "not slow and not attack" \
		tests/kernels tests/field tests/coding tests/model tests/protocol tests/test_quantize.py

# Random schedules of the federation machine with a fake clock, from seeds 0 to SCHEDULES - 1; with SEED=17 that one.
schedules: SCHEDULES = 100000
schedules: $(VENV)/.ready
	SCHEDULES=$(SCHEDULES) SEED=$(SEED) $(BIN)/python -m pytest -n 2 --timeout 0 tests/federation/test_schedules.py

# Random faults over a real network on loopback, likewise.
faults: SCHEDULES = 100
faults: $(VENV)/.ready
	SCHEDULES=$(SCHEDULES) SEED=$(SEED) $(BIN)/python -m pytest -n 2 tests/runtimes/grpc_runtime/test_schedules*.py

# The attacks on both modes in full, twenty minutes. What each found is kept in results/attacks.jsonl. The page
# docs/results/attacks.md and the picture docs/open-and-hidden.png are made of it.
attacks: $(VENV)/.ready
	rm -f results/attacks.jsonl
	ATTACKS=$(CURDIR)/results/attacks.jsonl $(BIN)/python -m pytest -n 0 -m attack tests/attacks
	$(BIN)/python tools/attacks_table.py
	$(BIN)/python tools/attacks_picture.py

# A long run with real processes: memory, descriptors and the log must stay bounded.
soak: ROUNDS = 10000
soak: $(VENV)/.ready
	$(BIN)/python -m dresfl.experiments.bench.soak --rounds $(ROUNDS)

# A search for inputs that a decoder handles wrongly, so many seconds for each. What it finds stays in
# tests/fuzzing/regressions, and `make test` tries it.
fuzz: SECONDS = 30
fuzz: $(VENV)/.ready
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt atheris
	cd tests && ../$(BIN)/python -m fuzzing.search --seconds $(SECONDS) $(TARGET)

# Timings; they depend on the machine, so nothing in `make test` looks at them.
bench: $(VENV)/.ready
	$(BIN)/dresfl bench --quick

# The Flower runtime over real SuperLinks, SuperNodes and Ray; a quarter of an hour. Flower wants older versions of some
# packages than everything else here, hence its own environment.
.venv-flower/.ready: pyproject.toml constraints-flower.txt
	$(PYTHON) -m venv .venv-flower
	.venv-flower/bin/pip install --quiet --disable-pip-version-check -c constraints-flower.txt \
		-e '.[flower,fast]' 'flwr[simulation]' pytest pytest-timeout hypothesis
	@touch $@

flower: .venv-flower/.ready
	.venv-flower/bin/python -m pytest -W ignore::DeprecationWarning tests/runtimes/flower_runtime tests/cli/test_commands.py

clean:
	rm -rf $(VENV) .venv-flower runs build dist src/*.egg-info
