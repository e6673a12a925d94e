# For the checks of a guest. Each check is a line "ok NAME" or "FAILED NAME".

# check NAME COMMAND...: the command succeeds.
check() {
    name=$1
    shift
    if "$@" >/tmp/output 2>&1; then
        echo "ok $name"
    else
        echo "FAILED $name: $*"
        tail -n 60 /tmp/output
    fi
}

# refuses TEXT COMMAND...: the command fails, and its message has the text.
refuses() {
    text=$1
    shift
    if "$@" >/tmp/refusal 2>&1; then
        echo "not refused: $*"
        return 1
    fi
    grep -qF -- "$text" /tmp/refusal || {
        cat /tmp/refusal
        return 1
    }
}

# says TEXT COMMAND...: the command succeeds, and its output has the text.
says() {
    text=$1
    shift
    "$@" >/tmp/said 2>&1 && grep -qF -- "$text" /tmp/said && return 0
    cat /tmp/said
    return 1
}

# until_true COMMAND...: within a minute.
until_true() {
    tries=600
    until "$@" >/dev/null 2>&1; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || return 1
        sleep 0.1
    done
}

driver_of() { basename "$(readlink "/sys/bus/pci/devices/$1/driver")"; }
has_driver() { [ "$(driver_of "$1")" = "$2" ]; }
override_is() { [ "$(cat "/sys/bus/pci/devices/$1/driver_override")" = "$2" ]; }
# The bit of the PCI command register that lets the device read and write memory.
is_bus_master() { [ $((0x$(od -An -tx1 -j4 -N1 "/sys/bus/pci/devices/$1/config" | tr -d ' ') & 4)) != 0 ]; }
is_quiet() { ! is_bus_master "$1"; }
# The names of a drive's block devices, each in /dev.
disks_of() { ls "/sys/bus/pci/devices/$1/nvme/"*/ 2>/dev/null | grep -E '^nvme[0-9]+n[0-9]+$'; }
has_disks() { [ "$(disks_of "$1" | wc -l)" = "$2" ]; }
nvme() { /gpu4fs nvme "$@"; }
