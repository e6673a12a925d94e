#!/bin/busybox sh
# The first process of the guest: makes a small system of busybox, loads modules, runs the checks and powers off.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /tmp
echo 1 >/proc/sys/kernel/printk
for module in $(cat /modules/order); do
    [ ! -f "/modules/$module.ko" ] || insmod "/modules/$module.ko"
done
. /functions.sh
. /checks.sh
echo "guest: end"
poweroff -f
