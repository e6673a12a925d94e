#!/bin/sh
# Checks the GPU engine on a machine with a GPU, within nine and a half minutes and without a network: the programs of
# tests/gpu, some of them under compute-sanitizer, tests of mounts, the demo with both engines, and the benchmark. Ends
# with "N passed, N failed"; non-zero if anything failed.
#
# usage: gpu_check.sh [--prebuilt DIR] [--quick]
#   --prebuilt DIR  folder with gpu4fs and gpu4fs_gpu_* (default: build/cuda if it runs here, else it is built)
#   --quick         no benchmark, no demo
# GPU4FS_RESULTS: where the benchmark's JSON goes (default bench/results)
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
prebuilt=
quick=
while [ $# -gt 0 ]; do
    case $1 in
        --prebuilt) prebuilt=$2; shift 2 ;;
        --quick) quick=1; shift ;;
        *) echo "usage: gpu_check.sh [--prebuilt DIR] [--quick]" >&2; exit 2 ;;
    esac
done
deadline=$(($(date +%s) + 560))
GPU4FS_COMMIT=${GPU4FS_COMMIT:-$(git -C "$root" rev-parse --short HEAD 2>/dev/null || true)}
export GPU4FS_COMMIT

if [ ! -e /dev/nvidiactl ]; then
    echo "gpu-check: there is no NVIDIA GPU here (/dev/nvidiactl)" >&2
    exit 1
fi
if [ -z "$prebuilt" ]; then
    prebuilt=$root/build/cuda
    if ! "$prebuilt/gpu4fs" --version >/dev/null 2>&1; then
        echo "gpu-check: building $prebuilt"
        (cd "$root" && cmake --preset cuda >/dev/null &&
            cmake --build --preset cuda -j "${GPU4FS_JOBS:-$(nproc)}" | tail -1)
        deadline=$(($(date +%s) + 560))
    fi
fi
prebuilt=$(cd "$prebuilt" && pwd)
results=${GPU4FS_RESULTS:-$root/bench/results}
mkdir -p "$results"
PATH=$PATH:/usr/local/cuda/bin
log=$(mktemp)
trap 'rm -f "$log"' EXIT

passed=0
failed=0
# check NAME LIMIT_S COMMAND...: runs it for at most LIMIT_S and not beyond the deadline.
check() {
    name=$1
    limit=$2
    shift 2
    left=$((deadline - $(date +%s)))
    [ "$limit" -le "$left" ] || limit=$left
    if [ "$limit" -lt 5 ]; then
        echo "FAIL $name: no time left"
        failed=$((failed + 1))
        return
    fi
    start=$(date +%s)
    status=0
    timeout -k 5 "$limit" "$@" >"$log" 2>&1 || status=$?
    if [ "$status" -eq 0 ]; then
        echo "PASS $name ($(($(date +%s) - start)) s)"
        passed=$((passed + 1))
    else
        echo "FAIL $name: exit status $status after $(($(date +%s) - start)) s"
        tail -40 "$log" | sed 's/^/    /'
        failed=$((failed + 1))
    fi
}

"$prebuilt/gpu4fs" doctor || true
programs=$(find "$prebuilt" -name 'gpu4fs_gpu_*' -type f -perm -u+x | sort)
if [ -z "$programs" ]; then
    echo "FAIL no program gpu4fs_gpu_* in $prebuilt"
    failed=$((failed + 1))
fi
for program in $programs; do
    case $program in
        *raid_matrix*) seconds=25 ;;
        *) seconds=60 ;;
    esac
    check "$(basename "$program")" 120 env GPU4FS_TEST_SECONDS=$seconds "$program"
    grep -E '(passed|us|GB/s|Mop/s|steps in|of [0-9]+ pools)' "$log" | tail -12 | sed 's/^/    /'
done

if command -v compute-sanitizer >/dev/null 2>&1; then
    for program in $programs; do
        case $program in
            *base_kernel*) tools="memcheck racecheck synccheck" ;;
            *model_walk*) tools=memcheck ;;
            # memcheck does not support memory that is registered while the kernel runs, which only a server does.
            *trim*) tools=synccheck ;;
            *handler_walk* | *raid_matrix* | *lost_devices* | *engine_death*)
                continue ;;  # what the model walk has; a deliberate trap
            *nvme_drive*) continue ;;  # two kernels that need each other
            *) tools="memcheck synccheck" ;;
        esac
        for tool in $tools; do
            check "$tool $(basename "$program")" 60 env GPU4FS_TEST_SCALE=5 GPU4FS_TEST_SECONDS=30 \
                GPU4FS_TEST_SANITIZER=1 compute-sanitizer --tool "$tool" --error-exitcode 9 "$program"
        done
    done
else
    echo "note: compute-sanitizer is not installed here"
fi

if [ -e /dev/fuse ] && command -v python3 >/dev/null 2>&1; then
    # Mounts use the GPU unless another engine is requested.
    for name in operations file_walk engine_death mount; do
        check "mount, $name" 60 env GPU4FS="$prebuilt/gpu4fs" python3 "$root/tests/frontend/${name}_test.py"
    done
fi

if [ -z "$quick" ]; then
    if [ -e /dev/fuse ]; then
        check "demo" 150 env GPU4FS="$prebuilt/gpu4fs" "$root/scripts/demo.sh"
        grep '^demo:' "$log" | sed 's/^/    /' || true
    else
        echo "note: no /dev/fuse here: the demo is left out"
    fi
    now=$(date -u +%Y%m%dT%H%M%S)
    # bench VERB NAME LIMIT_S [PART...]: all parts if none is named.
    bench() {
        verb=$1
        bench_name=$2
        limit=$3
        shift 3
        result=$results/$bench_name-cuda-$now.json
        # shellcheck disable=SC2046
        check "bench $verb, $bench_name" "$limit" "$prebuilt/gpu4fs" bench "$verb" --engine cuda --output "$result" \
            $([ $# -eq 0 ] || printf -- '--only %s ' "$@")
        [ ! -s "$result" ] || "$prebuilt/gpu4fs" bench report "$result"
    }
    bench run run 150 first files vram scrub latency rate sync recovery idle checkpoint tier checksums
    bench nvme nvme 150
    bench run raid 250 raid
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
