#!/usr/bin/env bash
# Run the tests that compare numbers as CPUs of other kinds would: without vector instructions and with AVX2 only, with
# two threads and with four, side by side. `make test` runs them as this CPU does, with one. The two that start whole processes
# again and again run in one setting each.
#
#   scripts/test_numbers.sh [PYTEST ARGUMENTS]
set -euo pipefail
cd "$(dirname "$0")/.."

as_cpu() { # name in ATen, MKL and oneDNN, threads, and which of the tests of whole processes
  ATEN_CPU_CAPABILITY=$1 MKL_ENABLE_INSTRUCTIONS=$2 ONEDNN_MAX_CPU_ISA=$3 OMP_NUM_THREADS=$4 TEST_WORKERS=0 \
    scripts/test.sh -q "${@:6}" tests/contract/test_trl_losses.py tests/service/test_learner.py "tests/service/test_$5.py" 2>&1 \
    | sed "s/^/torch $1, $4 threads: /"
}

failed=0
as_cpu default SSE4_2 SSE41 2 exact_resume "$@" &
as_cpu avx2 AVX2 AVX2 4 ranks "$@" || failed=1
wait $! || failed=1
exit $failed
