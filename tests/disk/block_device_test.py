"""Pools on block devices: loop devices over files in memory."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from mounted_pool import SKIPPED, MountedPool, gpu4fs, in_own_namespace, memory_folder, require_fuse  # noqa: E402

MIB = 1 << 20


class Disks:
    """Loop devices over files of one folder."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="gpu4fs-disks-", dir=memory_folder(256 * MIB))
        self.paths = []

    def add(self, size_bytes, *options):
        file = os.path.join(self.folder, f"disk{len(self.paths)}")
        with open(file, "wb") as image:
            image.truncate(size_bytes)
        done = subprocess.run(["losetup", "--find", "--show", *options, file], capture_output=True, text=True)
        if done.returncode != 0:
            raise OSError(done.stderr.strip())
        self.paths.append(done.stdout.strip())
        return self.paths[-1]

    def detach(self, path):
        subprocess.run(["losetup", "--detach", path], check=True)
        self.paths.remove(path)

    def remove(self):
        for path in list(self.paths):
            self.detach(path)
        shutil.rmtree(self.folder)


def require_loop_devices():
    disks = Disks()
    try:
        disks.add(MIB)
    except OSError as error:
        print(f"skipped: no loop device can be had here: {error}")
        sys.exit(SKIPPED)
    finally:
        disks.remove()


class BlockDevices(unittest.TestCase):
    def setUp(self):
        self.disks = Disks()
        self.addCleanup(self.disks.remove)

    def make(self, devices, *mkfs):
        pool = MountedPool(device_mib=48, devices=devices, mkfs=mkfs)
        self.addCleanup(pool.remove)
        return pool

    def refuse(self, *words, status, says):
        done = gpu4fs(*words)
        self.assertEqual(done.returncode, status, done)
        self.assertIn(says, done.stderr)

    def write(self, pool, name, size_bytes=3 * MIB + 17):
        content = os.urandom(size_bytes)
        with open(pool.path(name), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return content

    def expect(self, pool, name, content):
        with open(pool.path(name), "rb") as file:
            self.assertTrue(file.read() == content, name)

    def test_files_are_there_after_an_unmount_and_after_a_kill(self):
        # The last part of a page is not used.
        pool = self.make([self.disks.add(48 * MIB + 512)])
        pool.mount()
        first = self.write(pool, "first")
        pool.remount()
        self.expect(pool, "first", first)
        second = self.write(pool, "second")
        pool.kill_server()
        pool.mount()
        self.expect(pool, "first", first)
        self.expect(pool, "second", second)
        pool.umount()
        pool.fsck()
        # What the kernel has cached of the device is not what counts.
        subprocess.run(["blockdev", "--flushbufs", pool.devices[0]], check=True)
        pool.fsck()

    def test_a_device_in_use_is_refused(self):
        pool = self.make([self.disks.add(48 * MIB)])
        disk = pool.devices[0]
        pool.mount()
        content = self.write(pool, "file")
        elsewhere = os.path.join(pool.folder, "elsewhere")
        os.mkdir(elsewhere)
        in_use = disk + ": in use: mounted or being made by another process"
        self.refuse("mount", disk, elsewhere, status=32, says=in_use)
        self.refuse("mkfs", disk, status=8, says=in_use)
        self.refuse("mkfs", "--force", disk, status=8, says=in_use)
        self.refuse("fsck", "--repair", disk, status=8, says=in_use)
        for command in (["mkfs.ext4", "-q", "-F", disk], ["mount", "-t", "ext4", disk, elsewhere]):
            self.assertNotEqual(subprocess.run(command, capture_output=True).returncode, 0, command)
        self.assertEqual(gpu4fs("dump", "superblock", disk).returncode, 0)
        self.expect(pool, "file", content)
        pool.umount()
        pool.fsck()

    def test_a_disk_and_its_partitions_exclude_each_other(self):
        disk = self.disks.add(64 * MIB, "--partscan")
        # From sector 2,048 on.
        made = subprocess.run(["addpart", disk, "1", "2048", str(48 * MIB // 512)], capture_output=True, text=True)
        if made.returncode != 0:
            self.skipTest("the system has no partitions of loop devices: " + made.stderr)
        partition = disk + "p1"
        if not os.path.exists(partition):
            self.skipTest("nothing makes nodes of partitions here")
        pool = self.make([partition])
        pool.mount()
        content = self.write(pool, "file")
        self.refuse("mkfs", "--force", disk, status=8, says=f"{disk}: in use: it is mounted on {pool.mountpoint}")
        self.expect(pool, "file", content)
        pool.umount()
        # The cache of the partition, which a writer to the disk does not change.
        with open(partition, "rb") as old_cache:
            old_cache.read(MIB)
            with open(disk, "r+b") as whole:
                whole.seek(MIB)
                whole.write(bytes(MIB // 4))
                whole.flush()
                os.fsync(whole.fileno())
            self.assertIn(b"!GPU4FS1", os.pread(old_cache.fileno(), MIB // 4, 0))
            self.refuse("mount", partition, pool.mountpoint, status=32, says="holds no gpu4fs pool")
        self.assertEqual(gpu4fs("mkfs", "--force", disk).returncode, 0)

    def test_other_file_systems_are_kept(self):
        disk = self.disks.add(48 * MIB)
        if subprocess.run(["mkfs.ext4", "-q", disk], capture_output=True).returncode != 0:
            self.skipTest("no ext4 can be made here")
        self.refuse("mkfs", disk, status=8, says="holds an ext2/3/4 file system")
        directory = os.path.join(self.disks.folder, "ext4")
        os.mkdir(directory)
        subprocess.run(["mount", disk, directory], check=True)
        try:
            mounted = f"{disk}: in use: it is mounted on {directory}"
            self.refuse("mkfs", "--force", disk, status=8, says=mounted)
            pool = self.make([self.disks.add(48 * MIB)])
            pool.mount()
            self.refuse("device", "add", "--force", pool.mountpoint, disk, status=8, says=mounted)
            pool.umount()
        finally:
            subprocess.run(["umount", directory], check=True)
        subprocess.run(["e2fsck", "-f", "-n", disk], check=True, capture_output=True)
        self.make([disk], "--force").fsck()

    def test_a_mirror_goes_on_without_one_disk_and_gets_another(self):
        pool = self.make([self.disks.add(48 * MIB), self.disks.add(48 * MIB)], "-d", "raid1")
        lost = pool.devices[1]
        # One of them finds the other.
        pool.devices = pool.devices[:1]
        pool.mount()
        content = self.write(pool, "file")
        pool.umount()
        self.disks.detach(lost)
        pool.mount("degraded")
        self.expect(pool, "file", content)
        more = self.write(pool, "more")
        self.refuse("device", "replace", pool.mountpoint, "1", self.disks.add(8 * MIB), status=8, says="too small")
        done = gpu4fs("device", "replace", "--wait", pool.mountpoint, "1", self.disks.add(48 * MIB))
        self.assertEqual(done.returncode, 0, done)
        spare = self.disks.add(48 * MIB)
        self.assertEqual(gpu4fs("device", "spare", "add", pool.mountpoint, spare).returncode, 0)
        self.refuse("mkfs", "--force", spare, status=8, says=spare + ": in use")
        self.assertEqual(gpu4fs("device", "spare", "remove", pool.mountpoint, spare).returncode, 0)
        self.assertEqual(gpu4fs("mkfs", spare).returncode, 0)
        pool.remount("")
        self.expect(pool, "file", content)
        self.expect(pool, "more", more)
        pool.umount()
        pool.fsck()

    def test_disks_and_files_form_a_pool_and_it_grows(self):
        disk = self.disks.add(48 * MIB)
        file = os.path.join(tempfile.mkdtemp(dir=self.disks.folder), "file")
        pool = self.make([disk, file])
        pool.mount()
        self.refuse("device", "add", pool.mountpoint, disk, status=8, says="is a member of the pool")
        added = self.disks.add(48 * MIB)
        before = os.statvfs(pool.mountpoint).f_blocks
        self.assertEqual(gpu4fs("device", "add", pool.mountpoint, added).returncode, 0)
        self.assertGreater(os.statvfs(pool.mountpoint).f_blocks, before)
        content = self.write(pool, "file", 96 * MIB)
        pool.remount()
        self.expect(pool, "file", content)
        pool.umount()
        pool.fsck()


if __name__ == "__main__":
    in_own_namespace(is_needed=True)
    require_fuse()
    require_loop_devices()
    unittest.main()
