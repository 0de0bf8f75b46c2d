# Verbs of the house. `make` alone prints them. Longer logic lives in scripts/.
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
unexport PYTHONDONTWRITEBYTECODE # many processes import the same modules

.PHONY: help setup check test test-tools test-numbers properties docs-run compose-test container-test k8s-test chart conformance test-sglang test-vllm test-alfworld demo demo-smollm2 demo-agent experiment-table1 experiment-votes experiment-outgrown experiment-sparse experiment-opd gpu bench soak chaos env docs fmt lint type arch lock wheels clean

help: ## print this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-14s %s\n", $$1, $$2}'

setup: $(VENV)/.stamp-test ## create .venv and install the pinned packages (does nothing when up to date)

$(VENV)/.stamp-%: pyproject.toml constraints.txt requirements-demo.txt requirements-test.txt
	@scripts/setup.sh $* $(VENV)

check: lint arch type ## all of lint, arch and type (changes nothing)

test: setup ## the whole test suite; the last line is pytest's
	@scripts/test.sh

properties: setup ## the property tests of streams and turn borders at full width, some minutes
	@PROPERTY_EXAMPLES=3000 scripts/test.sh --timeout 3600 tests/unit/policy/test_streams_join.py
	@PROPERTY_EXAMPLES=200 scripts/test.sh --timeout 3600 tests/unit/test_turn_borders.py

docs-run: setup ## documented trainings that promise a gain, on two seeds each (half an hour)
	@$(BIN)/python -m scripts.docs_run

test-tools: setup ## the tests of chaos, bench, compose-test and the Kubernetes files
	@scripts/test.sh tests/tools

test-numbers: setup ## the tests that compare numbers, as CPUs of two other kinds compute them
	@scripts/test_numbers.sh

test-sglang: setup ## the engine contract and two steps of the loop on real SGLang (its own .venv-sglang)
	@$(BIN)/python -m scripts.real_sglang

test-vllm: setup ## the engine contract and two steps of the loop on real vLLM (its own .venv-vllm)
	@$(BIN)/python -m scripts.real_vllm

test-alfworld: setup ## 61 games side by side in our household and in the real ALFWorld (its own .venv-alfworld)
	@$(BIN)/python -m scripts.real_alfworld

conformance: setup ## only what we are held to by others: the engine contract, the environments, the published formulas; TRL, openenv, verifiers, Harbor and agents (each in a .venv-* of its own)
	@scripts/test.sh tests/contract/engine tests/contract/test_sglang_recordings.py tests/contract/test_vllm_recordings.py tests/contract/test_environments.py tests/contract/test_suites.py tests/service/test_openenv.py tests/unit/algorithms tests/contract/test_trl_losses.py tests/contract/sglang_logprobs.py
	@$(BIN)/python -m scripts.trl_equality
	@$(BIN)/python -m scripts.openenv_conformance
	@$(BIN)/python -m scripts.agent_conformance
	@$(BIN)/python -m scripts.sidecar_conformance

demo: $(VENV)/.stamp-demo ## the closed loop with tiny models, ends with a report
	@$(BIN)/python -m demo

demo-smollm2: $(VENV)/.stamp-demo ## the same loop with SmolLM2-135M-Instruct, three steps
	@$(BIN)/python -m demo --smollm2

demo-agent: $(VENV)/.stamp-demo ## an agent of ten lines is trained through a session's URL; AGENT=in_langgraph: one of LangGraph, in .venv-langgraph
	@$(BIN)/python -m demo.agent $(AGENT)

experiment-table1: setup ## the paper's order: outcome only, step scores, trained reward model, adapted tasks; goes on where it stopped
	@$(BIN)/python -m experiments table1

experiment-votes: setup ## credit rules with planted votes, three learning rates, five seeds (hours); goes on where it stopped
	@$(BIN)/python -m experiments votes

experiment-outgrown: setup ## a pool that the policy soon solves, with and without rewrites, six seeds (an hour); goes on where it stopped
	@$(BIN)/python -m experiments outgrown

experiment-sparse: setup ## votes, a taught judge and rewrites where almost no rollout succeeds, twelve seeds (hours); goes on where it stopped
	@$(BIN)/python -m experiments sparse

experiment-opd: setup ## rollouts until a policy that lost a skill plays as well as its teacher, by distillation and by GRPO, ten seeds; goes on where it stopped
	@$(BIN)/python -m experiments opd

gpu: ## every figure that needs a GPU, with the python3 that holds its torch if there is no .venv (docs/operate.md#sglang-and-gpus); REHEARSE=1: on a CPU, small
	@$(if $(wildcard $(BIN)/python),$(BIN)/python,python3) -m bench.gpu $(if $(REHEARSE),--rehearse --total 0 --seconds 1800) $(ARGS)

bench: setup ## speed and correctness figures, as ratios from one run
	@$(BIN)/python -m bench

chaos: setup ## hurt a whole deployment of real processes at random moments, half an hour; prints a table
	@OMP_NUM_THREADS=1 $(BIN)/python -m chaos

env: ## write .env with fresh secrets for docker compose (keeps one that exists)
	@scripts/write_env.sh

wheels: setup ## download into deploy/wheels what the images install, to build them where no package index is reached
	@$(BIN)/python -m scripts.wheels

compose-test: setup ## the stack in real containers, killed, cut off and restarted part by part (needs Docker, or root and dockerd)
	@$(BIN)/python -m scripts.compose_test

container-test: setup ## tasks of the family harbor in real containers (needs Docker, or root, dockerd and debootstrap)
	@$(BIN)/python -m scripts.container_test

k8s-test: setup ## every Kubernetes overlay and component on a real API server and scheduler, on described nodes (KUBEBUILDER_ASSETS)
	@$(BIN)/python -m scripts.k8s_test

chart: setup ## write the templates of the Helm chart in k8s/helm from the overlays and components
	@$(BIN)/python -m scripts.helm_chart

soak: setup ## 4,096 rollouts at once through one policy service; about half a minute on two quiet cores
	@$(BIN)/python -m bench.gateway --soak

docs: setup ## write docs/reference/ and the table of families in docs/environments.md
	@$(BIN)/python -m scripts.gen_docs

fmt: setup ## format and apply the safe fixes
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .
	@git ls-files -z | xargs -0 $(BIN)/python scripts/check_files.py --fix

lint: setup ## ruff, the checks of plain files, plain words
	$(BIN)/ruff format --check . && $(BIN)/ruff check .
	@git ls-files -z | xargs -0 $(BIN)/python scripts/check_files.py
	@git ls-files -z '*.py' '*.md' ':!tests' ':!CHANGELOG.md' ':!scripts/check_words.py' \
	  | xargs -0 $(BIN)/python scripts/check_words.py

type: setup ## mypy --strict
	$(BIN)/mypy

arch: setup ## import contracts between the services and inside the library
	$(BIN)/lint-imports

lock: setup ## write constraints.txt from what is installed in .venv, and requirements-*.txt with hashes from that (needs uv)
	@$(BIN)/python scripts/lock.py

clean: ## remove caches and build output (keeps .venv and your runs)
	@rm -rf build dist htmlcov .coverage .coverage.* *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
