#!/bin/sh
# Builds everything, with the GPU engine compiled, and runs all tests as one ctest run: the release
# build in full, the AddressSanitizer and ThreadSanitizer builds with shortened random tests.
# The last lines are ctest's summary; the exit status is ctest's.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
jobs=${GPU4FS_JOBS:-$(nproc)}
began=$(date +%s)

for preset in cuda asan tsan; do
    echo "== build $preset"
    mkdir -p "build/$preset"
    cmake --preset "$preset" >"build/$preset/configure.log" || {
        cat "build/$preset/configure.log"
        exit 1
    }
    # The sanitizers run compiled tests only; the programs are the cuda build's.
    target=all
    [ "$preset" = cuda ] || target=gpu4fs_tests
    cmake --build --preset "$preset" -j "$jobs" --target "$target"
done
echo "== headers compile alone"
cmake --build --preset cuda -j "$jobs" --target gpu4fs_header_check
echo "== built in $(($(date +%s) - began)) s"

mkdir -p build/test
for preset in cuda asan tsan; do
    echo "subdirs(\"$root/build/$preset\")"
done >build/test/CTestTestfile.cmake
exec ctest --test-dir build/test --output-on-failure --no-label-summary -j "$jobs" "$@"
