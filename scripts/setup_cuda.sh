#!/bin/sh
# Installs the CUDA compiler, the static runtime and the disassembler from PyPI wheels into build/cuda-venv; no GPU and
# no driver is needed to compile. There is no disassembler of 13.0 there; later ones read its code.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
venv=$root/build/cuda-venv
mkdir -p "$root/build"
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-warn-script-location \
    'nvidia-cuda-nvcc==13.0.*' 'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-crt==13.0.*' \
    'nvidia-nvvm==13.0.*' 'nvidia-cuda-cccl==13.0.*' 'nvidia-cuda-cuobjdump==13.2.*' 'nvidia-cuda-nvdisasm==13.2.*'
"$root/scripts/find_nvcc.sh"
