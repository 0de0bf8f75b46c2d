#!/usr/bin/env bash
# Run the tests that compare numbers as CPUs of other kinds would: without vector instructions and with AVX2 only, with
# two threads and with four. `make test` runs them as this CPU does, with one. The two that start whole processes again and
# again run in one setting each.
#
#   scripts/test_numbers.sh [PYTEST ARGUMENTS]
set -euo pipefail
cd "$(dirname "$0")/.."

for kind in "default SSE4_2 SSE41 2 exact_resume" "avx2 AVX2 AVX2 4 ranks"; do
  read -r aten mkl onednn threads processes <<<"$kind"
  echo "torch $aten, MKL $mkl, oneDNN $onednn, $threads threads"
  ATEN_CPU_CAPABILITY=$aten MKL_ENABLE_INSTRUCTIONS=$mkl ONEDNN_MAX_CPU_ISA=$onednn OMP_NUM_THREADS=$threads \
    scripts/test.sh -q "$@" tests/contract/test_trl_losses.py tests/service/test_learner.py \
    "tests/service/test_$processes.py"
done
