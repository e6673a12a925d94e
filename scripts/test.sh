#!/bin/sh
# Builds everything, with the GPU engine compiled, and runs all tests as one ctest run: the release
# build in full, the AddressSanitizer and ThreadSanitizer builds with shortened random tests.
# The last lines are ctest's summary; the exit status is ctest's.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
jobs=${GPU4FS_JOBS:-$(nproc)}
began=$(date +%s)
# ccache asks the compiler what a source includes, in place of preprocessing it before it is compiled: up to a fifth of
# the time of those that nobody has compiled yet.
export CCACHE_DEPEND=1

for preset in cuda asan tsan; do
    mkdir -p "build/$preset"
    cmake --preset "$preset" >"build/$preset/configure.log" || {
        cat "build/$preset/configure.log"
        exit 1
    }
done

# build PRESET TARGET
build() {
    echo "== build $1 ($2)"
    cmake --build --preset "$1" -j "$jobs" --target "$2"
}

# The sanitizers run compiled tests only; the programs are the cuda build's.
build cuda all
build cuda gpu4fs_header_check
build asan gpu4fs_tests
build tsan gpu4fs_tests
echo "== built in $(($(date +%s) - began)) s"

mkdir -p build/test
for preset in cuda asan tsan; do
    echo "subdirs(\"$root/build/$preset\")"
done >build/test/CTestTestfile.cmake
# Different crashes in every run. A failure's id repeats it; the seed repeats the run.
GPU4FS_CRASH_SEED=${GPU4FS_CRASH_SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
export GPU4FS_CRASH_SEED
echo "== crash explorer: random histories from GPU4FS_CRASH_SEED=$GPU4FS_CRASH_SEED on"
# Of a test program that fails the failures are shown, not what passed before them.
export GTEST_BRIEF=1
exec ctest --test-dir build/test --output-on-failure --no-label-summary -j "$jobs" "$@"
