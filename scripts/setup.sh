#!/usr/bin/env bash
# Create a virtual environment and install triforge and its pinned packages into it. Nothing outside it is upgraded.
#
#   scripts/setup.sh demo|test|sglang|vllm [VENV]
#
# demo installs what `make demo` needs (requirements-demo.txt), test what the tests and tools need beside that (requirements-test.txt):
# pip refuses every file whose hash does not stand there. torch is pinned by its version: its files differ by build. sglang and
# vllm install an engine for `triforge train --gpus`, with pins of its own in .venv-sglang or .venv-vllm; VENV has triforge.
#
# Options:
#   PYTHON           the interpreter to use (default: the first Python 3.11 or newer on PATH)
#   TORCH_INDEX_URL  a further package index for torch, to choose its build: https://download.pytorch.org/whl/cpu (small, no
#                    CUDA) or .../whl/cu130; empty for none, and the Python Package Index has a build with CUDA
#                    (default: .../whl/cpu where there is no NVIDIA card and the address is reached, else empty)
set -euo pipefail
cd "$(dirname "$0")/.."

SET="${1:-}"
VENV="${2:-.venv}"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

die() {
  printf 'setup: %s\n' "$*" >&2
  exit 1
}

is_new_enough() { # runs the interpreter: a name on PATH may be a shim with nothing behind it
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
  local name
  if [[ -n "${PYTHON:-}" ]]; then
    is_new_enough "$PYTHON" || die "PYTHON=$PYTHON does not run or is older than 3.11; name another one."
    echo "$PYTHON"
    return
  fi
  for name in python3 python3.11 python3.12 python3.13; do
    if is_new_enough "$name"; then
      echo "$name"
      return
    fi
  done
  die "no Python 3.11 or newer on PATH (python3 is $(python3 --version 2>&1 || true)).
Install one (Debian 12 or newer: apt-get install python3 python3-venv) or name it: make setup PYTHON=/path/to/python3.12"
}

install_venv_module() { # Debian ships Python without ensurepip
  local version sudo=""
  version="$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
  command -v apt-get >/dev/null || die "$1 has no venv or ensurepip module; install it with your package manager."
  [[ "$(id -u)" == 0 ]] || sudo="sudo"
  [[ -z "$sudo" ]] || command -v sudo >/dev/null || die "$1 has no ensurepip module; as root: apt-get install python3-venv"
  echo "setup: $1 has no ensurepip module: installing python${version}-venv with ${sudo:+$sudo }apt-get"
  $sudo apt-get update -q </dev/null
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -q -y "python${version}-venv" </dev/null
}

create_venv() {
  local python
  python="$(find_python)"
  "$python" -c 'import venv, ensurepip' 2>/dev/null || install_venv_module "$python"
  echo "setup: creating $PWD/$VENV with $("$python" --version) ($(command -v "$python"))"
  "$python" -m venv --clear "$VENV"
}

CPU_BUILDS=https://download.pytorch.org/whl/cpu

has_card() {
  [[ -e /dev/nvidiactl || -e /dev/dxg ]] || command -v nvidia-smi >/dev/null
}

is_reached() {
  "$VENV/bin/python" -c 'import sys, urllib.request as r; r.urlopen(sys.argv[1], timeout=10)' "$1" >/dev/null 2>&1
}

choose_torch() { # sets TORCH_INDEX_URL, and says which build it brings
  local build="the index of pip; a build from the Python Package Index brings CUDA (2.6 GB)" why="as TORCH_INDEX_URL says"
  if [[ -z "${TORCH_INDEX_URL+given}" ]]; then
    TORCH_INDEX_URL=""
    if has_card; then
      why="there is an NVIDIA card; for a CPU build: TORCH_INDEX_URL=$CPU_BUILDS"
    elif is_reached "$CPU_BUILDS/torch/"; then
      TORCH_INDEX_URL="$CPU_BUILDS"
      why="there is no NVIDIA card; for CUDA: TORCH_INDEX_URL=${CPU_BUILDS%cpu}cu130"
    else
      why="$CPU_BUILDS, which has CPU builds, is not reached; TORCH_INDEX_URL names a mirror"
    fi
  fi
  echo "setup: installing $(grep '^torch==' constraints.txt) from ${TORCH_INDEX_URL:-$build} ($why)"
}

if [[ "$SET" == sglang || "$SET" == vllm ]]; then
  [[ -x "$VENV/bin/triforge" ]] || die "$VENV has no triforge; first: scripts/setup.sh demo"
  choose_torch
  export TORCH_INDEX_URL
  [[ "$SET" == sglang ]] && module=install || module=server
  exec "$VENV/bin/python" -c "from scripts.real_$SET.$module import ensure; print(ensure().python)"
fi

[[ "$SET" == demo || "$SET" == test ]] || die "given '$SET', expected demo, test, sglang or vllm: scripts/setup.sh test"

if ! { is_new_enough "$VENV/bin/python" && "$VENV/bin/python" -m pip --version >/dev/null 2>&1; }; then
  create_venv
fi

OPTIONS="--no-compile" # pip compiles on one core
[[ -t 1 ]] || OPTIONS+=" -q" # a person sees pip's progress, a log stays short

echo "setup: installing requirements-$SET.txt, by hash, into $PWD/$VENV"
"$VENV/bin/python" -m pip install $OPTIONS --no-deps --require-hashes -r "requirements-$SET.txt"
choose_torch
"$VENV/bin/python" -m pip install $OPTIONS -c constraints.txt \
  ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} torch
"$VENV/bin/python" -m pip install $OPTIONS --no-deps -e .
"$VENV/bin/python" -m pip check
if [[ "$SET" == test ]]; then # 300 MB of bytecode, most of it of modules that the demo never imports
  "$VENV/bin/python" -m compileall -q -j 0 "$VENV/lib" >/dev/null || true # templates are not Python
fi
touch "$VENV/.stamp-demo" "$VENV/.stamp-$SET"
command -v bwrap >/dev/null \
  || echo "setup: programs of a model need bubblewrap, which is not installed; as root: apt-get install bubblewrap (their tests are skipped until then)"
echo "setup: $("$VENV/bin/python" -m pip list --format=freeze | wc -l) packages in $PWD/$VENV (remove that folder to undo everything)"
