# Two commands on a fresh machine: `make verify` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
SAMPLE ?= $(shell git rev-parse --short HEAD 2>/dev/null || echo none)
SIDE_BY_SIDE := -n 3 --dist loadfile --no-loadscope-reorder

# A checkout starts as fast as an installed wheel, also where Python may not write its own bytecode.
COMPILE := $(BIN)/python -m compileall -q -j 2 src models symbolic

.PHONY: verify test suite exhaustive check site screenshots installed matrix soundness origin bench throughput sweep mutation mutation-matrix lemmas rounding tokens compiled gpu clean

verify: $(READY)
	$(COMPILE)
	$(BIN)/gradproof verify

# The linters need one core, so that the tests run beside them. The gate is that of the installed wheel.
test: $(READY)
	$(MAKE) --jobs 2 check suite
	$(MAKE) installed

# The wheel in an environment of its own and in empty folders: doctor, a cold verify, the tutorial, check of a script.
installed: $(READY)
	$(BIN)/python -m tests.installed

# Every Python that is installed, with the oldest and the newest torch, each in an environment of its own: gigabytes from
# the package index, most of an hour. Writes docs/support.md.
matrix: $(READY)
	$(BIN)/python -m tests.matrix --out docs/support.md

# Of slow tests, the rows that the commit draws. The same rows again: make suite SAMPLE=<what it printed>.
suite: $(READY)
	$(COMPILE)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) --sample=$(SAMPLE)

# Every row of every test, which takes most of an hour; before a release. Writes what each took, for the samples.
exhaustive: $(READY)
	$(COMPILE)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) --write-durations

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache
	$(MAKE) site

# The documentation as a site, in build/site. Every link, heading and page has to be there.
site: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

# Pictures of terminal, page, notebook and site, each of a real run, in docs/shots. Minutes; needs Chromium.
screenshots: $(READY)
	$(BIN)/python -m tests.screenshots

# Half an hour. The last writes docs/bench.md; without its longest row: python -m tests.bench_whole --without 405B.
bench: $(READY)
	$(BIN)/python -m tests.bench
	$(BIN)/python -m tests.bench_shadow
	$(BIN)/python -m tests.bench_speed
	$(BIN)/python -m tests.bench_whole --out docs/bench.md

# Each law of whole tensors: tried on the real kernels, proved at small shapes, its mutants refuted. Writes docs/laws.md.
# Two minutes.
laws: $(READY)
	$(BIN)/python -m tests.laws --out docs/laws.md

# Steps that are right or wrong on purpose, by hand and drawn by the commit, with an oracle; writes docs/soundness.md.
soundness: $(READY)
	$(COMPILE)
	$(BIN)/python -m tests.soundness --seed $(SAMPLE) --out docs/soundness.md

# Loops whose verdict is known, and the bars that they have to meet; writes docs/origin.md. The second: what decides what.
origin: $(READY)
	$(BIN)/python -m tests.origin --out docs/origin.md
	$(BIN)/python -m tests.obligations --out docs/obligations.md

# Every mutant of every example loop, through the verifier of real steps; writes docs/mutants.md.
sweep: $(READY)
	$(BIN)/python -m tests.loops.sweep --jobs 2 --out docs/mutants.md

# Every mutant of the six models through their checks, most of an hour; writes docs/mutation.md. What was answered is kept.
MUTATION := $(BIN)/python -m tests.mutation --jobs 2
mutation: $(READY)
	mkdir -p build
	$(MUTATION) --json build/mutation.jsonl --document reports/mutation.json --out docs/mutation.md

# The same, with second killers: which checks no mutant needs, one at a time; writes docs/mutation-matrix.md. Hours.
mutation-matrix: $(READY)
	mkdir -p build
	$(MUTATION) --json build/mutation.jsonl --matrix docs/mutation-matrix.md

# Every step contract from nothing: exhaustion for 16 bits, two solvers for fp32. Minutes. On a cluster:
# make lemmas ENGINE="--engine dask --scheduler tcp://host:8786"
lemmas: $(READY)
	$(BIN)/python -P -m gradproof.extras.lemmas $(ENGINE)

# What accumulation in floating point can lose, for the report: reports/rounding.json, which is committed. Minutes.
rounding: $(READY)
	$(BIN)/python -P -m gradproof.extras.studies.rounding --out reports/rounding.json

# Windows on token counts and a missing 1/K: tables and drawings, docs/tokens.md. Seconds.
tokens: $(READY)
	$(BIN)/python -m symbolic.tokens.study --out reports/tokens.json --plots docs

# Throughput and gradient variance over the effective batch, linear scaling, and what fewer optimizer steps save. Minutes.
throughput: $(READY)
	$(BIN)/gradproof sweep --net mlp --micro-batch 4 --accum-steps 1,2,4,8,16,32 --num-steps 200 \
		--out reports/sweep.json --plot docs/sweep.svg --plot-variance docs/variance.svg
	$(BIN)/python -P -m gradproof.extras.studies.scaling --out reports/scaling.json --plot docs/scaling.svg
	$(BIN)/python -P -m gradproof.extras.studies.speedup --out reports/speedup.json

# Accumulation under torch.compile's default backend, which needs a C++ compiler and half a minute.
compiled: $(READY)
	$(BIN)/python -m symbolic.systems.falsify_compiled

# On a machine with a GPU; the evidence it writes is committed.
gpu: $(READY)
	$(BIN)/gradproof run --device cuda

# Packages are compiled once, by two processes: many tests start Python, and torch takes three times as long uncompiled.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[test,loops,docs]'
	-$(BIN)/python -m compileall -q -j 2 $(VENV)/lib >/dev/null
	touch $(READY)

clean:
	rm -rf $(VENV) build dist reports/evidence .mypy_cache .ruff_cache .pytest_cache .hypothesis
