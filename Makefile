# make setup   the environment, in .venv
# make sweep   the main job: the sweep notebook, its rows and its charts, under runs/sweep/
# make test    lint, types, unit and property tests, every notebook
# make bench   the figures that the README quotes, measured here
# make pictures   the small pictures that notebooks show without a kernel, from real runs (NOTEBOOKS="…" for some)
# make record  the full-size sweeps of this machine's GPU, into data_samples/recordings/
# make lock    renew requirements.lock from pyproject.toml

PYTHON ?= python3
BIN := .venv/bin
RUN := runs/sweep
# parameters of the sweep notebook, for example: make sweep PARAMETERS="-p graph ../shared/data"
PARAMETERS ?= -p scale 0.2 -p budget_seconds 240
# tests run in so many processes, of one thread each; a file, or a notebook, is one's alone, the longest first
# (tests/conftest.py)
BESIDE ?= -n 2 --dist loadfile
NOTEBOOKS ?= notebooks/*.ipynb
# where torch alone is to come from: a CPU build, say
TORCH_INDEX ?=

.PHONY: setup sweep test lint types bench record pictures lock clean

setup: .venv/ready

.venv/ready: requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	@echo "installing the packages of requirements.lock into .venv: some minutes"
	$(if $(TORCH_INDEX),$(BIN)/python -m pip install --quiet --no-deps --index-url $(TORCH_INDEX) \
		$(shell grep ^torch== requirements.lock))
	$(BIN)/python -m pip install --quiet -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	touch $@

sweep: setup
	mkdir -p $(RUN)
	$(BIN)/papermill notebooks/sweep.ipynb $(RUN)/sweep.ipynb --log-output --no-progress-bar \
		-p results $(RUN)/rows $(PARAMETERS)
	$(BIN)/python -m tclab.lab.pictures $(RUN)/sweep.ipynb $(RUN)
	@echo "executed notebook: $(RUN)/sweep.ipynb; rows: $(RUN)/rows; charts: $(RUN)/*.png"
	@echo "what a budget left out: the same command goes on with it"

test: lint types
	$(BIN)/python -m pytest tests $(BESIDE) --no-loadscope-reorder --durations=15
	TCLAB_RUNS=$$(mktemp -d) OMP_NUM_THREADS=1 $(BIN)/python -m pytest --nbval --nbval-current-env --nbval-cell-timeout=900 \
		-W ignore notebooks $(BESIDE)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

bench: setup
	$(BIN)/python benchmarks/step_of_two_strategies.py

pictures: setup
	$(BIN)/python -m tclab.lab.pictures --run $(NOTEBOOKS)

record: setup
	$(BIN)/python benchmarks/record_gpu.py $(RECORD)

lock:
	rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet torch==2.13.0
	# later ones of jsonschema have rfc3987-syntax, whose import is 2 s of every notebook that altair is in
	.venv-lock/bin/python -m pip install --quiet '.[notebook,data,lightning,slurm,dev]' 'jsonschema<4.25'
	(echo "# every version exactly; made by: make lock"; \
		.venv-lock/bin/python -m pip freeze --exclude tclab | sed 's/^\(torch==[0-9.]*\)+cpu$$/\1/') > requirements.lock
	rm -rf .venv-lock

clean:
	rm -rf .venv runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
