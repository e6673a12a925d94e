#!/bin/sh
# Installs what is missing: the packages of packages.txt (and those named as arguments) and a CUDA
# compiler. Without arguments missing it uses no network. GPU4FS_SETUP_CUDA=0 leaves CUDA out.
set -eu
scripts=$(cd "$(dirname "$0")" && pwd)

wanted="$(sed 's/#.*//' "$scripts/packages.txt" | tr '\n' ' ') $*"
if command -v dpkg-query >/dev/null 2>&1; then
    # shellcheck disable=SC2086
    installed=$(dpkg-query -W -f='${db:Status-Abbrev} ${Package}\n' $wanted 2>/dev/null |
        sed -n 's/^ii *//p' || true)
    missing=
    for package in $wanted; do
        printf '%s\n' "$installed" | grep -qxF "$package" || missing="$missing $package"
    done
    if [ -n "$missing" ]; then
        sudo=
        if [ "$(id -u)" -ne 0 ]; then
            if ! command -v sudo >/dev/null 2>&1; then
                echo "setup: needs root or sudo to install:$missing" >&2
                exit 1
            fi
            sudo=sudo
        fi
        echo "setup: installing$missing"
        $sudo apt-get update -qq
        # shellcheck disable=SC2086
        $sudo env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends $missing >/dev/null
    fi
else
    echo "setup: no dpkg here; install the equivalents of scripts/packages.txt by hand" >&2
fi

if [ "${GPU4FS_SETUP_CUDA:-1}" = 1 ]; then
    nvcc=$("$scripts/find_nvcc.sh" || true)
    case $nvcc in
        "") is_complete= ;;
        */build/cuda-venv/*) is_complete=$(find "$(dirname "$nvcc")" -name cuobjdump) ;;
        *) is_complete=yes ;;
    esac
    if [ -z "$is_complete" ]; then
        echo "setup: no complete CUDA compiler found; installing its wheels into build/cuda-venv"
        "$scripts/setup_cuda.sh" >/dev/null
    fi
fi
