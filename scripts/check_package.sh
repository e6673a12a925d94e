#!/bin/sh
# Installs a Debian package of gpu4fs in a fresh root of the running distribution and uses it there as an administrator
# would: a pool, an entry in fstab, mount and umount, fsck, a systemd unit, completions, man pages, removal.
# Needs root and the network. The root is a temporary directory.
#
# usage: check_package.sh PACKAGE.deb
set -eu
[ $# -eq 1 ] || { echo "usage: check_package.sh PACKAGE.deb" >&2; exit 2; }
package=$(readlink -f "$1")
[ "$(id -u)" -eq 0 ] || { echo "check-package: needs root" >&2; exit 1; }

# Mounts made here are in a namespace of their own and go with it.
if [ -z "${GPU4FS_PACKAGE_NAMESPACE:-}" ]; then
    exec env GPU4FS_PACKAGE_NAMESPACE=1 unshare --mount --propagation private "$0" "$package"
fi

root=$(mktemp -d)
trap 'umount -R "$root/proc" "$root/dev" 2>/dev/null; rm -rf --one-file-system "$root"' EXIT
. /etc/os-release
echo "check-package: making a root of $VERSION_CODENAME"
# Without documentation filters, so that man pages are installed.
mmdebstrap --quiet --variant=minbase --include=man-db,systemd,bash-completion,zsh "$VERSION_CODENAME" "$root"
cp "$package" "$root/tmp/gpu4fs.deb"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"

in_root() {
    chroot "$root" env DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root "$@"
}
in_root apt-get update -qq
in_root apt-get install -y -qq --no-install-recommends /tmp/gpu4fs.deb >"$root/tmp/install.log" 2>&1 || {
    cat "$root/tmp/install.log" >&2
    exit 1
}
in_root dpkg -s gpu4fs | grep -E '^(Version|Depends|Installed-Size)'

cat >"$root/tmp/use.sh" <<'USE'
set -eux
mkdir -p /pool /mnt/pool
gpu4fs mkfs -q --size 64M -d raid1 /pool/a /pool/b
echo '/pool/a:/pool/b /mnt/pool gpu4fs defaults,noauto,engine=cpu 0 0' >>/etc/fstab
mount /mnt/pool
cp -a /usr/share/doc /mnt/pool/
diff -r /usr/share/doc /mnt/pool/doc
umount.gpu4fs /mnt/pool
fsck -t gpu4fs /pool/a
mkfs -t gpu4fs -f -q /pool/a /pool/b
mkdir -p /etc/gpu4fs
printf 'DEVICES=/pool/a /pool/b\nMOUNTPOINT=/mnt/pool\n' >/etc/gpu4fs/pool.conf
systemd-analyze verify gpu4fs@pool.service
bash -c '. /usr/share/bash-completion/bash_completion; _completion_loader mount.gpu4fs; complete -p mount.gpu4fs'
zsh -fc 'autoload -U compinit; compinit -u
    whence -w _gpu4fs | grep -q function && [[ $_comps[mkfs.gpu4fs] == _gpu4fs ]]'
man -w mkfs.gpu4fs mount.gpu4fs gpu4fs
USE
in_root sh /tmp/use.sh
in_root apt-get remove -y -qq gpu4fs >/dev/null
left=$(in_root find /usr /lib/systemd -path '*gpu4fs*' ! -path '/usr/share/doc/*')
[ -z "$left" ] || { echo "check-package: removal leaves: $left" >&2; exit 1; }
echo "check-package: passed"
