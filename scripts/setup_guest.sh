#!/bin/sh
# The kernel, modules and busybox of the guest in which tests/nvme/vfio_test.py runs, from Debian packages, into
# build/guest. Nothing is installed. Without anything missing it uses no network. Only for Debian on x86-64: elsewhere
# it says so, and the test is skipped.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
guest=$root/build/guest
# What build/guest has to have; another number makes it anew.
version=2
kernel=linux-image-cloud-amd64
# In the order in which they are loaded. nvme, ext4 and the IOMMU are parts of this kernel.
modules="irqbypass vfio vfio_virqfd vfio_iommu_type1 vfio-pci-core vfio-pci loop dm-mod fuse"

if [ "$(cat "$guest/version" 2>/dev/null)" = "$version" ]; then
    exit 0
fi
if [ "$(dpkg --print-architecture 2>/dev/null)" != amd64 ] || ! grep -qx 'ID=debian' /etc/os-release; then
    echo "setup: no guest for the test nvme.vfio: its kernel is a package of Debian for amd64" >&2
    exit 0
fi
fetch() {
    rm -rf "$guest"
    mkdir -p "$guest/packages" "$guest/modules"
    cd "$guest/packages"
    package=$(apt-cache depends "$kernel" 2>/dev/null | awk '/Depends: linux-image/ {print $2; exit}')
    [ -n "$package" ] || return 1
    echo "setup: fetching the guest's kernel $package"
    # It warns that its own user cannot write here.
    apt-get download -qq "$package" busybox-static 2>"$guest/download.log"
}
if ! fetch; then
    # The lists of packages are missing or too old.
    sudo=
    [ "$(id -u)" -eq 0 ] || sudo=sudo
    $sudo apt-get update -qq
    fetch || {
        echo "setup: the packages $kernel and busybox-static cannot be fetched" >&2
        cat "$guest/download.log" >&2
        exit 1
    }
fi
dpkg-deb -x linux-image-*.deb kernel
dpkg-deb -x busybox-static_*.deb busybox
cp kernel/boot/vmlinuz-* "$guest/vmlinuz"
cp busybox/bin/busybox "$guest/busybox"
for module in $modules; do
    path=$(find kernel/lib/modules -name "$module.ko")
    # Some are parts of other ones in newer kernels.
    [ -z "$path" ] || cp "$path" "$guest/modules/"
done
echo "$modules" >"$guest/modules/order"
cd "$guest"
rm -rf packages download.log
echo "$version" >version
