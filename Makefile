# The commands of this project. Each sets up what it needs: see setup.sh.
#   make paper          from claims to paper/paper.pdf; SCALE=smoke is quick, SCALE=full is what is published
#   make test           every test that needs no cluster
#   make cluster-test   the same pipeline as Slurm jobs, on a cluster in a box
#   make bench          ours against each peer
#   make loc            code lines of each room beside published sizes
#   make lint           what CI lints
#   make clean          remove everything that was built, finished runs included; .venv stays

SCALE ?= laptop
PYTEST_WORKERS ?= 2
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export OMP_NUM_THREADS ?= 1
unexport PYTHONDONTWRITEBYTECODE # pip compiles nothing: what is imported is compiled once, and kept

# An environment made in a folder of another name names that folder in its scripts: set up again after a move or a copy.
MOVED := $(shell [ "$$(cat .venv/folder 2> /dev/null)" = "$$PWD" ] || echo moved)

.PHONY: paper test cluster-test bench loc lint clean moved

paper: .venv/ready-paper
	snakemake --config scale=$(SCALE)
	fivedim claims --scale $(SCALE)
	@echo "The paper: paper/paper.pdf"

test: .venv/ready-paper
	python -m pytest -n $(PYTEST_WORKERS) --dist loadfile --no-loadscope-reorder --durations 20

cluster-test: .venv/ready-cluster
	python -m pytest tests/slurm

bench: .venv/ready-python
	python -m fivedim.bench --scale $(SCALE)

loc: .venv/ready-python
	python -m fivedim.lab.loc

lint: .venv/ready-python
	ruff check
	ruff format --check
	snakefmt --check Snakefile
	snakemake --lint

clean:
	rm -rf runs results paper/generated paper/build paper/paper.pdf figures/*.pdf figures/*.png report.html .snakemake

.venv/ready-%: setup.sh requirements.lock pyproject.toml $(MOVED)
	@./setup.sh $*
