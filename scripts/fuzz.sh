#!/bin/sh
# Fuzzes each target in turn with libFuzzer: fuzz.sh [SECONDS each] [TARGET...]. Needs clang. New inputs stay in
# build/fuzz/corpus/<target>; a failing input is stored in build/fuzz/failures and ends the run. The last line of each
# target says how many inputs ran.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
seconds=${1:-60}
[ $# -eq 0 ] || shift
compiler=
for candidate in clang++ clang++-19 clang++-18 clang++-17 clang++-16 clang++-15 clang++-14; do
    if command -v "$candidate" >/dev/null; then
        compiler=$candidate
        break
    fi
done
[ -n "$compiler" ] || {
    echo "fuzz.sh: no clang++ found; the package 'clang' has it" >&2
    exit 1
}
mkdir -p build/fuzz/failures
cmake --preset fuzz -DCMAKE_CXX_COMPILER="$compiler" >build/fuzz/configure.log || {
    cat build/fuzz/configure.log
    exit 1
}
cmake --build --preset fuzz -j "${GPU4FS_JOBS:-$(nproc)}" --target gpu4fs_fuzz_programs
[ $# -ne 0 ] || set -- $(cd tests/fuzz && for file in *_fuzz.cpp; do echo "${file%_fuzz.cpp}"; done)
for target in "$@"; do
    echo "== $target, $seconds s"
    mkdir -p "build/fuzz/corpus/$target" "tests/fuzz/corpus/$target"
    "build/fuzz/gpu4fs_fuzz_$target" -max_total_time="$seconds" -timeout=60 -max_len=1024 -len_control=0 \
        -print_final_stats=0 -verbosity=0 -artifact_prefix="build/fuzz/failures/$target-" \
        "build/fuzz/corpus/$target" "tests/fuzz/corpus/$target"
done
