#!/bin/sh
# Prints the path of a usable nvcc: PATH, $CUDA_HOME, /usr/local/cuda, then the one that
# scripts/setup_cuda.sh made. Fails silently where there is none.
root=$(cd "$(dirname "$0")/.." && pwd)

usable() {
    [ -x "$1" ] || return 1
    major=$("$1" --version 2>/dev/null | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
    [ -n "$major" ] && [ "$major" -ge 13 ]
}

for candidate in "$(command -v nvcc 2>/dev/null)" "${CUDA_HOME:+$CUDA_HOME/bin/nvcc}" \
    /usr/local/cuda/bin/nvcc "$root"/build/cuda-venv/lib/python3*/site-packages/nvidia/cu13/bin/nvcc; do
    if usable "$candidate"; then
        readlink -f "$candidate"
        exit 0
    fi
done
exit 1
