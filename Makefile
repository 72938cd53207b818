# make help    these lines
# make setup   the environment, in .venv
# make sweep   the main job: the sweep notebook, its rows and its charts, under runs/sweep/
# make test    make lint, and beside it unit and property tests and the nine notebooks
# make lint    ruff, mypy, and the cap on lines of code
# make test-all   make test and what is slow, in one go: a browser, Slurm, Inductor, papermill, the other notebooks
# make bench   the figures that the README quotes, measured here
# make record  a way of masking against the last of docs/records.md: NEW=its name, OPTIONS="--import its_file.py"
# make docs    guides, notebooks and API reference as pages, into site/
# make texts   every kind of sentence that tclab prints, with example values, to be read on a few pages
# make pictures   the small pictures that notebooks show without a kernel, from real runs (NOTEBOOKS="…" for some)
# make gpu     on a machine with CUDA: all that needs it, in ten parts, into runs/gpu and data_samples/recordings/; it
#              resumes where it stopped, needs no `make setup`, and says which package is missing (DEVICE=cpu SCALE=0.02 rehearses it)
# make attack  damaged files, many examples, pauses and kills at random moments: an hour, each part's figures as it ends
# make paused  the tests without notebooks, TIMES=20 times, while their processes pause at random for up to two seconds
# make versions   the net of tests with each Python, torch and PyG that can be had, as a table (CUDA=yes takes builds for
#              CUDA, of gigabytes, where there is none for CPUs)
# make lock    renew requirements.lock from pyproject.toml

PYTHON ?= python3
BIN := .venv/bin
RUN := runs/sweep
# parameters of the sweep notebook, for example: make sweep PARAMETERS="-p graph ../shared/data"
PARAMETERS ?= -p budget_seconds 120
# tests run in so many processes, of one thread each; which goes to which: tests/conftest.py
JOBS ?= 3
# some seventy processes import tclab and the tests: each would compile them anew where bytecode is not written
PYTEST = TCLAB_RUNS=$$(mktemp -d) OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(JOBS) \
	--durations=40
NBVAL = --nbval --nbval-current-env --nbval-cell-timeout=900
TIMES ?= 20
NOTEBOOKS ?= notebooks/*.ipynb notebooks/case_study/*.ipynb notebooks/ports/*.ipynb
# of make gpu: a letter for each part
PARTS ?= abjcdefghi
DEVICE ?= cuda
SCALE ?= 1.0
OUT ?= runs/gpu$(if $(filter cpu,$(DEVICE)),_rehearsal)
# where torch alone is to come from: a CPU build, say
TORCH_INDEX ?=

.PHONY: help setup sweep test tests test-all all-tests lint bench record attack paused versions gpu pictures docs texts lock clean

setup: .venv/ready

help:
	@sed -n '/^# make /,/^$$/s/^# //p' $(firstword $(MAKEFILE_LIST))

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
	$(BIN)/python tools/notebook_pictures.py $(RUN)/sweep.ipynb $(RUN)
	@echo "executed notebook: $(RUN)/sweep.ipynb; rows: $(RUN)/rows; charts: $(RUN)/*.png"
	@echo "if the time budget ran out, run make sweep again: it resumes"

test: setup
	$(MAKE) --no-print-directory -j 2 lint tests

tests: setup
	$(PYTEST) tests notebooks/*.ipynb -m "not slow and not nightly" $(NBVAL)

test-all: setup
	$(MAKE) --no-print-directory -j 2 lint all-tests

# by their defaults, and not by their `test_parameters`
all-tests: setup
	TCLAB_NOTEBOOKS=defaults $(PYTEST) tests $(NOTEBOOKS) -m "not nightly" $(NBVAL)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/code_lines.py
	$(BIN)/mypy

# without setup: a machine with a GPU may have torch of its own, and no registry
gpu:
	$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) benchmarks/gpu.py --device $(DEVICE) --scale $(SCALE) \
		--parts $(PARTS) --out $(OUT)

bench: setup
	$(BIN)/python benchmarks/steps.py

record: setup
	$(BIN)/tclab race delta $(NEW) --batch-size 2 --allocator keep_pages --workers 0 --budget-seconds 300 $(OPTIONS)

attack: setup
	$(BIN)/python benchmarks/fuzz_readers.py --inputs 3500
	$(BIN)/python benchmarks/silent_errors.py
	$(PYTEST) tests -m hypothesis --hypothesis-profile wide
	$(PYTEST) tests -m nightly
	$(BIN)/python tools/paused.py $(BIN)/python -m pytest -n 2 tests -m clock
	$(BIN)/python benchmarks/kill_matrix.py

paused: setup
	$(BIN)/python tools/paused.py --times $(TIMES) $(BIN)/python -m pytest -q -n $(JOBS) tests -m "not slow and not nightly"

versions:
	$(PYTHON) tools/versions.py $(if $(TORCH_INDEX),--torch-index $(TORCH_INDEX)) $(if $(CUDA),--cuda)

pictures: setup
	$(BIN)/python tools/notebook_pictures.py --run $(NOTEBOOKS)

docs: .venv-docs/ready
	PYTHONPATH=. .venv-docs/bin/mkdocs build --strict

texts: setup
	OMP_NUM_THREADS=1 $(BIN)/python tools/texts.py

# by itself, without torch: the API reference is read from the source, and no notebook is run
.venv-docs/ready: pyproject.toml
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -c "import tomllib; \
		print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['docs'], sep='\n')" \
		> .venv-docs/requirements.txt
	.venv-docs/bin/python -m pip install --quiet -r .venv-docs/requirements.txt
	touch $@

lock:
	rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet torch==2.13.0
	# later ones of jsonschema have rfc3987-syntax, whose import is 2 s of every notebook that altair is in
	# torch 2.13.0 for CUDA takes this triton and no other
	.venv-lock/bin/python -m pip install --quiet '.[lab,lightning,slurm,dev]' 'jsonschema<4.25' triton==3.7.1
	(echo "# every version exactly; made by: make lock"; \
		.venv-lock/bin/python -m pip freeze --exclude tclab | sed 's/^\(torch==[0-9.]*\)+cpu$$/\1/') > requirements.lock
	rm -rf .venv-lock

clean:
	rm -rf .venv .venv-docs site .cache runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
