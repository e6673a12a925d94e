# What runs in the guest, sourced by guest_init.sh.
#
# Drives (tests/nvme/vfio_test.py): $pair has two namespaces; $used has one, which the guest itself uses; $first and
# $second are functions of one device, which the IOMMU cannot tell apart.
pair=0000:00:04.0
used=0000:00:05.0
first=0000:00:06.0
second=0000:00:06.1

# program FILTER [NAME=VALUE...]: tests of gpu4fs_nvme_vfio, of which at least one runs.
program() {
    filter=$1
    shift
    env GPU4FS_VFIO_ADDRESS=$pair "$@" /gpu4fs_nvme_vfio --gtest_filter="$filter" >/tmp/program 2>&1 &&
        grep -q 'PASSED  . [1-9]' /tmp/program && return 0
    cat /tmp/program
    return 1
}
with_kernel() { program "$1" GPU4FS_KERNEL_DEVICES="$(disks_of $pair | sed 's,^,/dev/,' | tr '\n' ' ')"; }

until_true has_disks $pair 2
until_true has_disks $used 1
until_true has_disks $first 1
until_true has_disks $second 1
disk=/dev/$(disks_of $used)

# What is shown.
check "list names the drive" says "$pair  kernel  driver nvme" nvme list
check "list names model and serial" says "QEMU NVMe Ctrl, serial pair" nvme list
check "list as JSON" says '"holder": "kernel"' nvme list --json
check "a drive without a user" says "not in use" nvme list

# Drives in use are refused, and the message names the user.
printf 'n\np\n1\n\n\nw\n' | fdisk "$disk" >/tmp/fdisk 2>&1
until_true test -b "${disk}p1"
check "make a file system" mke2fs "${disk}p1"
mkdir -p /mnt
check "mount" mount -t ext4 "${disk}p1" /mnt
echo content >/mnt/file
check "a mounted drive is refused" refuses "${disk}p1 is mounted on /mnt" nvme take $used
check "the mounted drive stays" has_driver $used nvme
check "the mounted drive has no override" override_is $used "(null)"
check "list shows the mount" says "mounted on /mnt" nvme list
check "a mount elsewhere is refused" unshare -m sh -c "
    mount --make-rprivate / && umount /mnt && /gpu4fs nvme take $used 2>&1 | grep -F 'somebody has claimed $disk'"
check "the mount works" grep -q content /mnt/file
umount /mnt
check "make swap space" mkswap "${disk}p1"
check "swap on" swapon "${disk}p1"
check "swap space is refused" refuses "${disk}p1 is swap space" nvme take $used
swapoff "${disk}p1"
losetup /dev/loop0 "${disk}p1"
check "a loop device is refused" refuses "${disk}p1 is behind loop0" nvme take $used
losetup -d /dev/loop0
sleep 1000 <"$disk" &
reader=$!
check "an open drive is refused" refuses "process $reader (sleep) has $disk open" nvme take $used
kill $reader
wait $reader
check "not an address" refuses "is not a PCI address" nvme take nvme0
check "no device there" refuses "no such PCI device" nvme take 0000:00:1e.0
check "not a drive" refuses "not an NVMe drive" nvme take 0000:00:00.0

# A group is taken as a whole.
check "a group with others is refused" refuses "cannot tell it from $second, which the driver nvme has" nvme take $first
check "the group's drive stays" has_driver $first nvme
echo $second >/sys/bus/pci/drivers/nvme/unbind
check "a group with nobody else is taken" nvme take $first
check "its other drive too" nvme take $second
check "both are given back" nvme give-back $first $second
check "the first has its driver" has_driver $first nvme
check "the second has its driver" has_driver $second nvme

# A drive is taken, used and given back.
check "VFIO needs the drive" program Vfio.NotTaken
check "the kernel writes" with_kernel Kernel.Writes
check "take" says "taken" nvme take $pair
check "take changes the driver" has_driver $pair vfio-pci
check "take again" says "was taken before" nvme take $pair
check "list says so" says "$pair  gpu4fs  driver vfio-pci" nvme list
check "its disks are gone" has_disks $pair 0
check "locked memory is limited" program Vfio.LockedMemoryIsLimited
check "bring-up" program Vfio.BringUpAndEnd
check "the drive is quiet" is_quiet $pair
check "what the kernel wrote" program Vfio.ReadsWhatTheKernelWrote
check "random operations" program Vfio.RandomOperations
check "resets" program Vfio.DataSurvivesAReset
check "writes for the kernel" program Vfio.Writes
check "the drive is quiet again" is_quiet $pair

# One process at a time.
program Vfio.Holds >/tmp/holder 2>&1 &
until_true test -e /tmp/held
check "a used drive may reach memory" is_bus_master $pair
check "a used drive is not given back" refuses "(gpu4fs_nvme_vfi) uses its IOMMU group" nvme give-back $pair
check "a used drive stays" has_driver $pair vfio-pci
check "nobody else opens it" program Vfio.IsInUse
touch /tmp/release
wait
check "the holder has ended well" grep -q 'PASSED  . 1' /tmp/program

check "give back" says "given back" nvme give-back $pair
check "give-back changes the driver" has_driver $pair nvme
check "give-back leaves no override" override_is $pair "(null)"
check "give back again" says "has it already" nvme give-back $pair
check "its disks are back" until_true has_disks $pair 2
check "the kernel reads what VFIO wrote" with_kernel Kernel.ReadsWhatVfioWrote

# A process that dies leaves the drive quiet and whole.
check "take once more" nvme take $pair
GPU4FS_VFIO_ADDRESS=$pair /gpu4fs_nvme_vfio --gtest_filter=Vfio.DiesWhileItWrites >/tmp/program 2>&1
check "the process was killed" test $? = 137
check "the drive of a dead process is quiet" is_quiet $pair
check "and works" program Vfio.RandomOperations
check "and is given back" nvme give-back $pair
check "and its disks are back" until_true has_disks $pair 2
check "and has its data" with_kernel Kernel.ReadsWhatVfioWrote
check "no faults of the IOMMU" sh -c "! dmesg | grep -i 'DMAR:.*fault'"
