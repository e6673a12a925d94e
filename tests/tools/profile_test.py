"""Profiles of data, metadata, files and directories through the programs: mkfs -d -m, df, info, set-profile, the
extended attributes, copies of trees, and a device that fails under data without copies."""

import errno
import json
import os
import shutil
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
from mounted_pool import PROGRAM, MountedPool, in_own_namespace  # noqa: E402

READER = os.path.join(HERE, "..", "format_reader", "gpu4fs_reader.py")
OWN = "user.gpu4fs.raid"
EFFECTIVE = "user.gpu4fs.raid.effective"
HEADER_BYTES = 131072  # of a chunk of 8 MiB
PLAIN_BYTES = 4 << 20  # so that files are on all devices


def gpu4fs(*words):
    return subprocess.run([PROGRAM, *words], capture_output=True, text=True)


def write(path, length, seed=1):
    with open(path, "wb") as file:
        file.write(content(length, seed))


def content(length, seed=1):
    return bytes((seed * 251 + i * 7 + (i >> 8)) & 255 for i in range(256)) * (length // 256)


def read(path):
    with open(path, "rb") as file:
        return file.read()


class ProfileTest(unittest.TestCase):
    def make(self, *mkfs, devices=4, device_mib=64):
        pool = MountedPool(device_mib=device_mib, device_count=devices, check=False, mkfs=mkfs)
        self.addCleanup(pool.remove)
        pool.mount()
        return pool

    def classes(self, *place):
        done = gpu4fs("df", "--json", *place)
        self.assertEqual(done.returncode, 0, done.stderr)
        return {row["profile"]: row for row in json.loads(done.stdout)["classes"]}

    def expect_sound(self, pool):
        pool.umount()
        done = gpu4fs("fsck", *pool.devices)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        done = subprocess.run([sys.executable, READER, "verify", *pool.devices], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn(" 0 problems", done.stdout)

    def expect_error(self, number, action, *words):
        with self.assertRaises(OSError) as caught:
            action(*words)
        self.assertEqual(caught.exception.errno, number)

    def test_attributes(self):
        pool = self.make("-d", "raid5", "-m", "raid1c3", "--profile", "raid0=20%")
        file = pool.path("file")
        write(file, 65536)
        self.assertEqual(os.getxattr(file, EFFECTIVE), b"raid5")
        self.expect_error(errno.ENODATA, os.getxattr, file, OWN)
        self.expect_error(errno.EINVAL, os.setxattr, file, OWN, b"raid9")
        self.expect_error(errno.ENOTSUP, os.setxattr, file, OWN, b"raid7")
        self.expect_error(errno.ENOTSUP, os.setxattr, file, OWN, b"raid1c3")
        self.expect_error(errno.EPERM, os.setxattr, file, EFFECTIVE, b"raid0")
        os.setxattr(file, OWN, b"raid0")
        self.assertEqual(os.getxattr(file, OWN), b"raid0")
        self.assertEqual(os.getxattr(file, EFFECTIVE), b"raid0")
        self.assertEqual(os.listxattr(file), [OWN])
        pool.remount()
        self.assertEqual(os.getxattr(file, OWN), b"raid0")
        os.removexattr(file, OWN)
        self.assertEqual(os.listxattr(file), [])
        self.expect_sound(pool)

    def test_set_profile_and_copies(self):
        pool = self.make("-d", "raid5", "-m", "raid1c3", "--profile", "raid1=30%")
        tree = pool.path("tree")
        os.makedirs(os.path.join(tree, "a", "b"))
        for name in ("one", "a/two", "a/b/three"):
            write(os.path.join(tree, name), 20480)
        os.symlink("one", os.path.join(tree, "link"))
        done = gpu4fs("set-profile", "raid1", "-r", tree)
        self.assertEqual(done.returncode, 0, done.stderr)
        paths = [tree] + [os.path.join(at, name) for at, folders, files in os.walk(tree) for name in folders + files]
        paths = [path for path in paths if not os.path.islink(path)]
        self.assertEqual(len(paths), 6)
        self.assertEqual({os.getxattr(path, OWN) for path in paths}, {b"raid1"})
        write(os.path.join(tree, "a", "four"), 4096)
        self.assertEqual(os.getxattr(os.path.join(tree, "a", "four"), OWN), b"raid1")
        subprocess.run(["cp", "-a", tree, pool.path("copied")], check=True)
        self.assertEqual(os.getxattr(pool.path("copied", "a", "b", "three"), OWN), b"raid1")
        self.assertEqual(os.getxattr(pool.path("copied", "a"), OWN), b"raid1")
        if shutil.which("rsync"):
            subprocess.run(["rsync", "-aX", tree + "/", pool.path("synced")], check=True)
            self.assertEqual(os.getxattr(pool.path("synced", "a", "two"), OWN), b"raid1")
        done = gpu4fs("set-profile", "default", os.path.join(tree, "one"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.expect_error(errno.ENODATA, os.getxattr, os.path.join(tree, "one"), OWN)
        for profile, text in (("raid6", "no chunks"), ("bread", "no profile of this name")):
            done = gpu4fs("set-profile", profile, tree)
            self.assertEqual(done.returncode, 1)
            self.assertIn(text, done.stderr)
        self.expect_sound(pool)

    def test_df_and_statfs_count_what_can_be_stored(self):
        pool = self.make("-d", "raid5", "-m", "raid1c3", "--profile", "raid0=20%", "--metadata-share", "15%")
        before = self.classes(pool.mountpoint)
        self.assertEqual(set(before), {"raid5", "raid1c3", "raid0"})
        self.assertTrue(before["raid5"]["data"] and before["raid1c3"]["metadata"] and before["raid0"]["takes_data"])
        self.assertFalse(before["raid1c3"]["takes_data"])
        info = json.loads(gpu4fs("info", "--json", "--chunks", pool.devices[0]).stdout)
        self.assertEqual((info["data_profile"], info["metadata_profile"]), ("raid5", "raid1c3"))
        for profile, row in before.items():
            chunks = [chunk["size_bytes"] for chunk in info["chunks"] if chunk["profile"] == profile]
            self.assertEqual(row["total_bytes"], sum(chunks))
        seen = os.statvfs(pool.mountpoint)
        self.assertEqual(seen.f_blocks * seen.f_frsize, before["raid5"]["total_bytes"])
        length = 4 << 20
        write(pool.path("file"), length)
        os.sync()
        after = self.classes(pool.mountpoint)
        self.assertEqual(after["raid5"]["used_bytes"] - before["raid5"]["used_bytes"], length)
        self.assertEqual(after["raid0"], before["raid0"])
        now = os.statvfs(pool.mountpoint)
        self.assertGreaterEqual((seen.f_bavail - now.f_bavail) * seen.f_frsize, length)
        self.assertLess((seen.f_bavail - now.f_bavail) * seen.f_frsize, length + (1 << 20))
        mounted = self.classes(pool.mountpoint)
        pool.umount()
        self.assertEqual(self.classes(*pool.devices)["raid5"]["used_bytes"], length)
        for profile, row in self.classes(*pool.devices).items():
            self.assertEqual(row["total_bytes"], mounted[profile]["total_bytes"])
            # The mount has reserved pages for its next checkpoint.
            self.assertGreaterEqual(row["available_bytes"], mounted[profile]["available_bytes"], profile)
            self.assertLess(row["available_bytes"], mounted[profile]["available_bytes"] + (256 << 10), profile)
        self.assertIn("raid1c3", gpu4fs("df", *pool.devices).stdout)
        pool.mount()
        # The space that statfs reports as available can be used, and little more.
        available = os.statvfs(pool.mountpoint).f_bavail * seen.f_frsize
        stored = 0
        with open(pool.path("big"), "wb", buffering=0) as file:
            try:
                while stored < 2 * available:
                    stored += file.write(content(1 << 20))
            except OSError as error:
                self.assertEqual(error.errno, errno.ENOSPC)
        self.assertGreater(stored, available * 0.9)
        self.assertLess(stored, available * 1.1)
        os.unlink(pool.path("big"))
        self.expect_sound(pool)

    def test_df_counts_space_that_is_in_no_chunk_yet(self):
        pool = self.make("-d", "raid1", "-m", "raid1c3", "--initial-share", "30")
        mounted = self.classes(pool.mountpoint)
        seen = os.statvfs(pool.mountpoint)
        self.assertEqual(seen.f_blocks * seen.f_frsize, mounted["raid1"]["total_bytes"])
        pool.umount()
        for profile, row in self.classes(*pool.devices).items():
            self.assertEqual(row["total_bytes"], mounted[profile]["total_bytes"])
            self.assertGreaterEqual(row["available_bytes"], mounted[profile]["available_bytes"])
            self.assertLess(row["available_bytes"], mounted[profile]["available_bytes"] + (256 << 10))
        info = json.loads(gpu4fs("info", "--json", pool.devices[0]).stdout)
        chunks = {row["profile"]: row["total_bytes"] for row in info["classes"]}
        self.assertGreater(mounted["raid1"]["total_bytes"], chunks["raid1"])

    def test_files_of_a_device_lie_there(self):
        pool = self.make("-d", "raid1", "-m", "raid1c3", "--profile", "physical:2=10%")
        done = gpu4fs("set-profile", "physical:2", pool.mountpoint)
        self.assertEqual(done.returncode, 0, done.stderr)
        mark = b"on the third device only".ljust(4096, b".")
        with open(pool.path("file"), "wb") as file:
            file.write(mark * 16)
        self.assertEqual(os.getxattr(pool.path("file"), EFFECTIVE), b"physical:2")
        os.sync()
        self.assertEqual(self.classes(pool.mountpoint)["physical:2"]["used_bytes"], 65536)
        self.assertEqual(gpu4fs("set-profile", "physical:1", pool.path("file")).returncode, 1)
        self.expect_sound(pool)
        self.assertEqual([read(device).count(mark) for device in pool.devices], [0, 0, 16, 0])
        row = self.classes(*pool.devices)["physical:2"]
        self.assertTrue(row["takes_data"] and not row["data"] and not row["metadata"])
        refused = gpu4fs("mkfs", "-f", "-d", "physical:0", *pool.devices)
        self.assertEqual(refused.returncode, 8)
        self.assertIn("for files that ask for it", refused.stderr)

    def test_full_data_leaves_names_and_other_profiles_alone(self):
        pool = self.make("-d", "raid1", "-m", "raid1c3", "--profile", "raid0=20%")
        with open(pool.path("big"), "wb", buffering=0) as file:
            with self.assertRaises(OSError) as caught:
                while True:
                    file.write(content(1 << 20))
        self.assertEqual(caught.exception.errno, errno.ENOSPC)
        os.makedirs(pool.path("directory", "below"))
        for i in range(100):
            write(pool.path("directory", f"small{i}"), 0)
        os.setxattr(pool.path("directory"), OWN, b"raid0")
        write(pool.path("directory", "striped"), 1 << 20, seed=5)
        os.rename(pool.path("directory", "striped"), pool.path("striped"))
        os.unlink(pool.path("big"))
        os.sync()
        write(pool.path("again"), 1 << 20)
        self.assertEqual(read(pool.path("striped")), content(1 << 20, 5))
        self.expect_sound(pool)

    def test_failing_device_takes_what_has_no_copy_and_only_that(self):
        pool = self.make("-d", "single", "-m", "raid1", "--profile", "raid5=30%", devices=3)
        os.mkdir(pool.path("safe"))
        os.setxattr(pool.path("safe"), OWN, b"raid5")
        for i in range(12):
            write(pool.path(f"plain{i}"), PLAIN_BYTES, seed=i)
            write(pool.path("safe", f"file{i}"), 262144, seed=i)
        self.expect_sound(pool)
        # Data pages of device 1: the header areas of chunks without copies are needed for mounting.
        info = json.loads(gpu4fs("info", "--json", "--chunks", pool.devices[0]).stdout)
        self.assertEqual(info["chunk_size_bytes"], 8 << 20)
        begins = sorted(column["device_offset"] + HEADER_BYTES
                        for chunk in info["chunks"] for column in chunk["columns"]
                        if column["device"] == 1)
        rules = ",".join(f"read-error@{begin}+{8 << 20}" for begin in begins)
        devices = list(pool.devices)
        devices[1] = f"fault={rules}:{devices[1]}"
        done = gpu4fs("mount", "-o", "engine=cpu,ro", ":".join(devices), pool.mountpoint)
        self.assertEqual(done.returncode, 0, done.stderr)
        pool.is_mounted = True
        self.assertEqual(len(os.listdir(pool.mountpoint)), 13)
        lost = 0
        for i in range(12):
            self.assertEqual(read(pool.path("safe", f"file{i}")), content(262144, i))
            plain = content(PLAIN_BYTES, i)
            with open(pool.path(f"plain{i}"), "rb", buffering=0) as file:
                for offset in range(0, PLAIN_BYTES, 65536):
                    try:
                        self.assertEqual(os.pread(file.fileno(), 65536, offset),
                                         plain[offset:offset + 65536])
                    except OSError as error:
                        self.assertEqual(error.errno, errno.EIO)
                        lost += 1
        self.assertGreater(lost, 0)
        self.assertLess(lost, 12 * PLAIN_BYTES // 65536)
        pool.umount()


if __name__ == "__main__":
    in_own_namespace()
    unittest.main()
