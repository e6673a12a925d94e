#!/bin/sh
# Makes a pool of four memory devices, mounts it, copies a real tree of this machine into it, compares
# every byte, name, mode, time and link, unmounts, checks the pool, mounts it again and compares again.
# With a GPU it does so with both engines. Exits non-zero at the first difference.
#
# GPU4FS: the program (default: build/cuda/gpu4fs where there is a GPU, else build/release/gpu4fs)
# GPU4FS_DEMO_BYTES, GPU4FS_DEMO_FILES: least size of the tree (default 200000000 and 5000)
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
bytes_min=${GPU4FS_DEMO_BYTES:-200000000}
files_min=${GPU4FS_DEMO_FILES:-5000}
bytes_max=$((bytes_min * 4))

gpu4fs=${GPU4FS:-}
builds="release cuda"
[ ! -e /dev/nvidiactl ] || builds="cuda release"
for build in $builds; do
    if [ -z "$gpu4fs" ] && [ -x "$root/build/$build/gpu4fs" ]; then gpu4fs=$root/build/$build/gpu4fs; fi
done
[ -n "$gpu4fs" ] || { echo "demo: no gpu4fs program; run make first" >&2; exit 1; }

work=
mounted=
cleanup() {
    status=$?
    trap - EXIT INT TERM
    if [ -n "$mounted" ]; then
        "$gpu4fs" umount "$mounted" 2>/dev/null || fusermount3 -uz "$mounted" 2>/dev/null || true
    fi
    [ -z "$work" ] || rm -rf "$work"
    [ "$status" -eq 0 ] || echo "demo: FAILED" >&2
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# step TEXT: prints the current step, and the number of steps.
step_number=0
step_count=7
step() {
    step_number=$((step_number + 1))
    echo "demo: [$step_number/$step_count] $1"
}

now() { date +%s.%N; }
seconds() { echo "$1 $2" | awk '{ printf "%.2f", $2 - $1 }'; }
rate() { echo "$1 $2" | awk '{ printf "%.0f", $1 / 1e6 / ($2 > 0.001 ? $2 : 0.001) }'; }

step "choosing folders of this machine with $bytes_min bytes and $files_min files or more"
# Folders of this machine until both minima are reached, as lines of names without blanks.
sources=
bytes=0
files=0
for folder in /usr/include /usr/lib/python3* /usr/lib/gcc /usr/share/perl /usr/share/doc /usr/share/man \
    /usr/share/* /usr/lib/* "$root"; do
    [ "$bytes" -lt "$bytes_min" ] || [ "$files" -lt "$files_min" ] || break
    [ -d "$folder" ] && [ -r "$folder" ] && [ ! -L "$folder" ] || continue
    case " $sources " in *" $folder "*) continue ;; esac
    size=$(timeout 60 du -sxB1 --apparent-size "$folder" 2>/dev/null | cut -f1) || continue
    [ "$size" -gt 100000 ] && [ $((bytes + size)) -le "$bytes_max" ] || continue
    count=$(timeout 60 find "$folder" -xdev 2>/dev/null | wc -l)
    sources="$sources $folder"
    bytes=$((bytes + size))
    files=$((files + count))
done
if [ "$bytes" -lt "$bytes_min" ] || [ "$files" -lt "$files_min" ]; then
    echo "demo: found only $files files with $bytes bytes on this machine" >&2
    exit 1
fi

device_bytes=$(((bytes * 3 / 2 + files * 6144) / 4 / 4194304 * 4194304 + 67108864))
shm_free=$(df -B1 --output=avail /dev/shm 2>/dev/null | tail -1)
place=/dev/shm
[ "${shm_free:-0}" -gt $((device_bytes * 4 + 67108864)) ] || place=${TMPDIR:-/tmp}
work=$(mktemp -d "$place/gpu4fs-demo.XXXXXX")

engines=cpu
if "$gpu4fs" doctor --json >"$work/doctor.json" 2>/dev/null && [ "$place" = /dev/shm ] &&
    grep -q '"gpu_engine_usable": true' "$work/doctor.json"; then
    engines="cpu cuda"
else
    why=$(python3 - "$work/doctor.json" "$place" <<'PYTHON'
import json, sys
try:
    conditions = json.load(open(sys.argv[1]))["conditions"]
    missing = [c for c in conditions if c["need"] != "advice" and not c["holds"]]
    reasons = [f"{c['name']}: {c['found']}" for c in missing]
except (OSError, ValueError, KeyError):
    reasons = ["gpu4fs doctor failed"]
print("; ".join(reasons) or f"{sys.argv[2]} is no memory that a GPU can reach")
PYTHON
)
    echo "demo: only the CPU engine is used: $why"
fi

[ "$engines" = cpu ] || step_count=13

# Links, odd names and modes, which a folder of the system may lack.
extra=$work/extra
mkdir -p "$extra/sub/deep" "$extra/empty"
echo content >"$extra/one-file"
ln "$extra/one-file" "$extra/sub/same-file"
ln -s ../one-file "$extra/sub/symlink"
ln -s "$(printf '%0200d' 0)" "$extra/sub/long-symlink"
printf 'x' >"$extra/sub/deep/$(printf '%0255d' 0)"
printf 'y' >"$extra/a name with blanks and \"quotes\""
dd if=/dev/zero of="$extra/sparse" bs=1 count=1 seek=10000000 2>/dev/null
chmod 4711 "$extra/sparse"
mkfifo "$extra/fifo"
touch -d '2001-02-03 04:05:06.789012345' "$extra/one-file"

compare_all() {
    for folder in $sources "$extra"; do
        name=$(echo "$folder" | tr / _)
        python3 "$root/scripts/compare_trees.py" "$folder" "$mountpoint/$name" >"$work/compare.log" || {
            echo "demo: $folder differs from its copy:" >&2
            cat "$work/compare.log" >&2
            return 1
        }
    done
}

run_engine() {
    engine=$1
    devices=$work/device0:$work/device1:$work/device2:$work/device3
    mountpoint=$work/mount
    mkdir -p "$mountpoint"
    step "engine $engine: making a pool of four devices and mounting it"
    "$gpu4fs" mkfs -q -f --size "$device_bytes" --label demo "$devices"
    "$gpu4fs" mount -o "engine=$engine" "$devices" "$mountpoint"
    mounted=$mountpoint
    step "engine $engine: copying $files files with $bytes bytes into it:$sources"
    began=$(now)
    for folder in $sources "$extra"; do
        cp -a "$folder" "$mountpoint/$(echo "$folder" | tr / _)"
    done
    sync -f "$mountpoint"
    copied=$(now)
    step "engine $engine: comparing every byte, name, mode, time and link"
    compare_all
    compared=$(now)
    step "engine $engine: unmounting and checking the pool"
    "$gpu4fs" umount "$mountpoint"
    mounted=
    "$gpu4fs" fsck "$devices"
    step "engine $engine: mounting it again"
    "$gpu4fs" mount -o "engine=$engine" "$devices" "$mountpoint"
    mounted=$mountpoint
    step "engine $engine: comparing again"
    remounted=$(now)
    compare_all
    ended=$(now)
    "$gpu4fs" umount "$mountpoint"
    mounted=
    copy_s=$(seconds "$began" "$copied")
    echo "demo: engine $engine: $files files, $bytes bytes copied in $copy_s s ($(rate "$bytes" "$copy_s") MB/s);" \
        "compared in $(seconds "$copied" "$compared") s, checked, mounted again," \
        "compared in $(seconds "$remounted" "$ended") s: equal"
    rm -f "$work"/device?
}

for engine in $engines; do run_engine "$engine"; done
echo "demo: passed"
