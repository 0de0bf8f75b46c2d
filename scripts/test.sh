#!/usr/bin/env bash
# Run the whole test suite in one pytest call; its closing line is the last line printed.
#
#   scripts/test.sh [PYTEST ARGUMENTS]
#
# Tests of one file stay on one worker; all of tests/e2e share one (tests/conftest.py says so). There is one worker more
# than cores, as tests wait for servers and processes half of their time. One thread a process unless OMP_NUM_THREADS
# says more.
set -euo pipefail
cd "$(dirname "$0")/.."

unset PYTHONDONTWRITEBYTECODE # hundreds of processes import our modules
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" TOKENIZERS_PARALLELISM=false
exec .venv/bin/python -m pytest -n "${TEST_WORKERS:-$(($(getconf _NPROCESSORS_ONLN) + 1))}" --dist loadfile --no-loadscope-reorder "$@"
