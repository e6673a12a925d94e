"""gpu4fs device add: a full mounted pool gets room; the format reader, fsck and the next mount agree with it."""

import errno
import json
import os
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
from mounted_pool import PROGRAM, MountedPool, in_own_namespace  # noqa: E402

READER = os.path.join(HERE, "..", "format_reader", "gpu4fs_reader.py")
MIB = 1 << 20


def gpu4fs(*words):
    return subprocess.run([PROGRAM, *words], capture_output=True, text=True)


def fill(path):
    """Writes until the pool is full; returns how many MiB fit."""
    count = 0
    with open(path, "wb", buffering=0) as file:
        try:
            while file.write(bytes([count % 251]) * MIB) == MIB:
                count += 1
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
    return count


class DeviceAdd(unittest.TestCase):
    def add(self, profile, device_count, added):
        pool = MountedPool(device_mib=40, device_count=device_count, mkfs=("-d", profile, "-m", profile))
        with pool:
            first = fill(os.path.join(pool.mountpoint, "first"))
            new = [os.path.join(pool.folder, f"device{device_count + i}") for i in range(added)]
            for path in new:
                with open(path, "wb") as file:
                    file.truncate(40 * MIB)
            before = os.statvfs(pool.mountpoint)
            done = gpu4fs("device", "add", "--json", pool.mountpoint, *new)
            self.assertEqual(done.returncode, 0, done.stderr)
            answer = json.loads(done.stdout)
            self.assertEqual(answer["devices"], list(range(device_count, device_count + added)))
            self.assertGreaterEqual(answer["chunks"], 4)
            self.assertGreater(os.statvfs(pool.mountpoint).f_blocks, before.f_blocks)
            second = fill(os.path.join(pool.mountpoint, "second"))
            self.assertGreater(second, first * added / device_count * 0.6)
            # Again, and with a path that is not a file.
            self.assertEqual(gpu4fs("device", "add", pool.mountpoint, new[0]).returncode, 8)
            self.assertEqual(gpu4fs("device", "add", pool.mountpoint, "/nonexistent/device").returncode, 8)
            status = json.loads(gpu4fs("status", "--json", pool.mountpoint).stdout)
            self.assertEqual(len(status["devices"]), device_count + added)
            pool.devices += new
            pool.umount()
            read = subprocess.run([sys.executable, READER, "verify", *pool.devices], capture_output=True, text=True)
            self.assertEqual(read.returncode, 0, read.stdout + read.stderr)
            info = json.loads(gpu4fs("info", "--json", *pool.devices).stdout)
            self.assertTrue(all("unallocated_bytes" in device for device in info["devices"]))
            pool.mount()
            for name, count in (("first", first), ("second", second)):
                with open(os.path.join(pool.mountpoint, name), "rb") as file:
                    for i in range(count):
                        self.assertEqual(file.read(MIB), bytes([i % 251]) * MIB, (name, i))

    def test_single(self):
        self.add("single", 1, 1)

    def test_raid1(self):
        self.add("raid1", 2, 2)

    def test_raid5(self):
        self.add("raid5", 3, 3)


if __name__ == "__main__":
    in_own_namespace()
    unittest.main(verbosity=2)
