# The commands of this repository: `make` lists them.
.DEFAULT_GOAL := help
.PHONY: help setup demo destroy-demo serve deploy destroy synth test image image-test screenshot lint bench load coherence fuzz lock audit clean

ENV ?= local
PORT ?= 4566
QUICK ?=
REQUESTS ?= 5000
SEED ?= 1
DURATION ?= 60
CALLERS ?= 64
DEADLINE ?= 55
MODEL ?= .cache/models/SmolLM2-135M-Instruct.Q4_1.gguf

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv, .venv-emulator, node_modules and .cache (done by every command that needs it)
	@python3 -m tools.setup $(NEEDS)

demo: setup ## deploy the local environment onto the embedded AWS emulator and ask it for a decision [PORT=4566]
	@.venv/bin/python -m tools.demo up --port $(PORT)

destroy-demo: setup ## destroy it, check that nothing is left, stop the emulator [PORT=4566]
	@.venv/bin/python -m tools.demo down --port $(PORT)

serve: PORT = 8080
serve: setup ## run the adapter alone on loopback, with the embedded model or another [MODEL=file.gguf PORT=8080]
	@echo "http://127.0.0.1:$(PORT) is a page to try it, and the server itself, once the model is loaded; Ctrl-C ends it"
	@PYTHONPATH=container SEMIF_HOST=127.0.0.1 SEMIF_PORT=$(PORT) SEMIF_GGUF_PATH="$(MODEL)" SEMIF_PLAYGROUND=1 \
		exec .venv/bin/python -m adapter serve

deploy: setup ## deploy an environment to your AWS account: needs credentials and a bootstrapped region [ENV=local]
	@.venv/bin/python -m tools.deploy up "$(ENV)"

destroy: setup ## take it away again, and say what stays [ENV=local]
	@.venv/bin/python -m tools.deploy down "$(ENV)"

synth: setup ## write the CloudFormation templates of an environment to cdk.out/ [ENV=local]
	@.venv/bin/python -m tools.synth $(ENV)

test screenshot: NEEDS = --browser
test: setup lint ## check and test everything
	@.venv/bin/python -m pytest

lint: setup
	@.venv/bin/ruff check --quiet .
	@.venv/bin/ruff format --check --quiet .
	@.venv/bin/mypy

image: setup ## build the container image with podman, on a stand-in for the base image (10 min the first time)
	@.venv/bin/python -m tools.image.build

image-test: image ## run the image as SageMaker does, and see what it answers and refuses
	@.venv/bin/python -m pytest -m image tests/image

screenshot: setup ## take the README's pictures of the playground anew
	@.venv/bin/python -m tools.screenshot

bench: setup ## measure the scoring engine against the plain path; QUICK=1 for a short run [QUICK=]
	@QUICK=$(QUICK) .venv/bin/python -m bench

load: setup ## more callers than the machine can serve, and what becomes of them [DURATION=60 CALLERS=64 DEADLINE=55 MODEL=file.gguf]
	@.venv/bin/python -m bench.load --duration $(DURATION) --callers $(CALLERS) --deadline $(DEADLINE) --model "$(MODEL)"

coherence: setup ## how well answers agree with one another: JevBench's mini suite, printed as a table [MODEL=file.gguf]
	@.venv/bin/python -m tools.coherence "$(MODEL)"

fuzz: setup ## 5,000 requests made from the OpenAPI document; fails where one is answered wrongly [REQUESTS=5000 SEED=1]
	@PYTHONPATH=container .venv/bin/python -m tests.container.fuzzing --requests $(REQUESTS) --seed $(SEED)

lock: setup ## write requirements/*.txt anew from requirements/*.in
	@sh tools/lock.sh

audit: setup ## look up every locked Python package in PyPI's advisories; fails where it cannot be looked up
	@for lock in requirements/*.txt stacks/*/*.txt; do \
		echo "$$lock"; \
		.venv/bin/uv tool run --quiet pip-audit@2.10.1 --strict --disable-pip --require-hashes \
			--progress-spinner off --requirement "$$lock" || exit 1; \
	done

clean: ## remove everything that the commands made
	rm -rf .venv .venv-emulator .cache .emulator node_modules cdk.out
