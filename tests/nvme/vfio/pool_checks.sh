# Pools on drives that gpu4fs drives itself, sourced by guest_init.sh.
#
# Drives (tests/nvme/vfio_pool_test.py): $second can be unplugged.
first=0000:00:04.0
second=0000:01:00.0
third=0000:00:06.0
pool="nvme:$first nvme:$second"

tree() { (cd "$1" && find . -type f | sort | xargs md5sum); }
same_tree() { tree /source >/tmp/wanted && tree /mnt/tree >/tmp/found && cmp /tmp/wanted /tmp/found; }
mount_pool() { /gpu4fs mount -o engine=cpu"${1:+,$1}" $pool /mnt; }
server() { pidof gpu4fs | tr ' ' '\n' | sort -n | tail -n 1; }
record_of() { /gpu4fs status --json /mnt | grep -o "\"path\":\"nvme:$1\"[^}]*"; }
is_lost() { record_of "$1" | grep -q '"state":"failed"'; }
no_server() { [ -z "$(server)" ]; }
# as_user COMMAND: by the shell of a user without privileges.
as_user() { (ulimit -l unlimited && su user -c "$1"); }
exercise() {
    cp -a /source /mnt/tree && sync && same_tree && rm -r /mnt/tree && cp -a /source /mnt/tree && sync
}

mkdir -p /etc /run
echo "user:x:1000:1000::/tmp:/bin/sh" >/etc/passwd
mkdir -p /mnt /source/a/b
i=0
while [ $i -lt 40 ]; do
    head -c $((i * 7919 + 1)) /dev/urandom >"/source/a/$i"
    i=$((i + 1))
done
head -c 9000000 /dev/urandom >/source/a/b/large
until_true has_disks $first 1
until_true has_disks $second 1

# What cannot be used is refused before anything is written.
check "a drive that the kernel has" refuses "gpu4fs nvme take $first" /gpu4fs mkfs -d raid1 $pool
check "no such drive" refuses "0000:00:1e.0: there is no such PCI device" /gpu4fs mkfs nvme:0000:00:1e.0
check "not an address" refuses "an NVMe drive is named" /gpu4fs mkfs nvme:00:04
check "take" nvme take $first $second
check "no such namespace" refuses "no namespace of this number" /gpu4fs mkfs nvme:$first/2
check "too little locked memory" refuses "$first: 16 MiB of memory have to be locked" \
    as_user "ulimit -l 1024; /gpu4fs mkfs nvme:$first"
check "what helps against it" grep -q "ulimit -l" /tmp/refusal
check "no permission" refuses "Permission denied" as_user "/gpu4fs mkfs nvme:$first"

check "make a pool" /gpu4fs mkfs -d raid1 $pool
check "a pool is not overwritten" refuses "it is overwritten only by force" /gpu4fs mkfs -d raid1 $pool
check "dump" says "raid1" /gpu4fs dump superblock nvme:$first
check "mount" mount_pool
check "status" says "nvme:$first" /gpu4fs status /mnt
check "status names the access" says '"access":"nvme"' /gpu4fs status --json /mnt
check "copy a tree" exercise
check "the drive is in use" refuses "is in use: process" /gpu4fs fsck $pool
check "trim tells the drives" says "MiB" /gpu4fs trim /mnt
check "unmount" umount /mnt
check "the server ends" until_true no_server
check "the drive is quiet" is_quiet $first
check "check" /gpu4fs fsck $pool
check "mount again" mount_pool
check "the tree is the same" same_tree

# A killed server.
dd if=/dev/urandom of=/mnt/unsynced bs=1M count=8 2>/tmp/dd &
until_true test -s /mnt/unsynced
kill -9 "$(server)"
wait
umount -l /mnt
check "the killed server ends" until_true no_server
check "the drive of a killed server is quiet" is_quiet $second
check "mount after the kill" mount_pool
check "the tree survives the kill" same_tree
check "unmount after the kill" umount /mnt
check "the server ends again" until_true no_server
check "check after the kill" /gpu4fs fsck $pool

# The kernel's driver finds the same bytes, and gpu4fs what the kernel's driver wrote.
check "give back" nvme give-back $first $second
until_true has_disks $first 1
until_true has_disks $second 1
disks="/dev/$(disks_of $first) /dev/$(disks_of $second)"
check "the kernel sees the pool" /gpu4fs fsck $disks
check "the kernel's driver serves it" /gpu4fs mount -o engine=cpu $disks /mnt
check "the kernel reads the tree" same_tree
check "a change" cp /source/a/b/large /mnt/by_kernel
check "unmount from the kernel's driver" umount /mnt
check "the kernel's server ends" until_true no_server
check "take again" nvme take $first $second
check "mount what the kernel wrote" mount_pool
check "what the kernel wrote" cmp /source/a/b/large /mnt/by_kernel

# A drive that is reset by others has forgotten its queues.
echo 1 >/sys/bus/pci/devices/$first/reset
cp /source/a/b/large /mnt/after_reset
sync
check "a reset drive is lost" until_true is_lost $first
check "the tree without it" same_tree
check "new files without it" cmp /source/a/b/large /mnt/after_reset
check "unmount without it" umount /mnt
check "the server without it ends" until_true no_server
check "mount without what it missed" mount_pool degraded
check "the tree again" same_tree
check "rebuild" /gpu4fs device rebuild --wait /mnt
check "unmount after the rebuild" umount /mnt
check "the server ends after the rebuild" until_true no_server
check "check after the rebuild" /gpu4fs fsck $pool

# A drive that is unplugged.
check "mount for the unplugging" mount_pool
cp /source/a/b/large /mnt/before_unplugging
echo "monitor: device_del second"
check "an unplugged drive is lost" until_true is_lost $second
check "it has gone" until_true test ! -e /sys/bus/pci/devices/$second
check "the tree without the unplugged drive" same_tree
check "new files without the unplugged drive" cp /source/a/b/large /mnt/after_unplugging
sync
check "they are there" cmp /source/a/b/large /mnt/after_unplugging

# Another drive takes its place.
check "take the third" nvme take $third
check "replace" /gpu4fs device replace --wait /mnt 1 nvme:$third
check "the tree with the third" same_tree
check "unmount at the end" umount /mnt
check "the last server ends" until_true no_server
pool="nvme:$first nvme:$third"
check "check at the end" /gpu4fs fsck $pool
check "give back at the end" nvme give-back $first $third
check "no faults of the IOMMU" sh -c "! dmesg | grep -i 'DMAR:.*fault'"
