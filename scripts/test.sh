#!/usr/bin/env bash
# Run the whole test suite in one pytest call; its closing line is the last line printed.
#
#   scripts/test.sh [PYTEST ARGUMENTS]
#
# Tests of one file stay on one worker; all of tests/e2e share one (tests/conftest.py says so). One thread a
# process unless OMP_NUM_THREADS says more: on two cores, the thread pools of two workers would only fight each other.
set -euo pipefail
cd "$(dirname "$0")/.."

unset PYTHONDONTWRITEBYTECODE # hundreds of processes import our modules
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" TOKENIZERS_PARALLELISM=false
exec .venv/bin/python -m pytest -n "${TEST_WORKERS:-2}" --dist loadfile --no-loadscope-reorder "$@"
