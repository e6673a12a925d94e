"""Devices leave a mounted pool, balances run, and a spare takes a lost device's place, through the programs."""

import json
import os
import shutil
import subprocess
import sys
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
from mounted_pool import MountedPool, gpu4fs, in_own_namespace, same_tree  # noqa: E402

READER = os.path.join(HERE, "..", "format_reader", "gpu4fs_reader.py")
SOURCE = os.path.join(HERE, "..", "..", "src", "fs")
DEVICE_MIB = 48


class Reshape(unittest.TestCase):
    def make(self, profile, devices, options="engine=cpu", mkfs=()):
        pool = MountedPool(device_mib=DEVICE_MIB, device_count=devices, check=False, mkfs=("-d", profile, *mkfs))
        self.addCleanup(pool.remove)
        pool.mount(options)
        shutil.copytree(SOURCE, pool.path("tree"))
        return pool

    def empty_device(self, pool, name):
        path = os.path.join(pool.folder, name)
        with open(path, "wb") as file:
            file.truncate(DEVICE_MIB << 20)
        return path

    def status(self, pool):
        return json.loads(gpu4fs("status", "--json", pool.mountpoint).stdout)

    def expect_sound(self, pool, *devices):
        for words in (("fsck", *devices),):
            done = gpu4fs(*words)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        done = subprocess.run([sys.executable, READER, "verify", *devices], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_device_comes_and_goes(self):
        pool = self.make("raid1", 3, mkfs=("--initial-share", "30"))
        new = self.empty_device(pool, "new")
        self.assertEqual(gpu4fs("device", "add", pool.mountpoint, new).returncode, 0)
        refused = gpu4fs("device", "remove", pool.mountpoint, "0")
        self.assertEqual(refused.returncode, 8)
        self.assertIn("device replace", refused.stderr)
        self.assertEqual(gpu4fs("device", "remove", pool.mountpoint, "17").returncode, 8)
        done = gpu4fs("device", "remove", "--wait", "--json", pool.mountpoint, new)
        reshape = json.loads(done.stdout)["reshape"]
        self.assertEqual((done.returncode, reshape["state"], reshape["device"]), (0, "finished", 3), reshape)
        self.assertEqual(len(self.status(pool)["devices"]), 3)
        self.assertIn("finished", gpu4fs("device", "remove", "--status", pool.mountpoint).stdout)
        self.assertTrue(same_tree(SOURCE, pool.path("tree")))
        pool.umount()
        self.expect_sound(pool, *pool.devices)
        # A removed device does not belong to the pool.
        self.assertNotEqual(gpu4fs("info", new).returncode, 0)
        pool.mount("engine=cpu")
        self.assertEqual(gpu4fs("device", "add", pool.mountpoint, new).returncode, 0)
        self.assertEqual([device["index"] for device in self.status(pool)["devices"]], [0, 1, 2, 3])
        done = gpu4fs("balance", "--wait", "--json", pool.mountpoint)
        self.assertIn(json.loads(done.stdout)["reshape"]["state"], ("finished", "failed"), done.stdout)
        self.assertTrue(same_tree(SOURCE, pool.path("tree")))
        pool.umount()
        self.expect_sound(pool, *pool.devices, new)

    def test_spares(self):
        pool = self.make("raid1", 2)
        spare, other = self.empty_device(pool, "spare"), self.empty_device(pool, "other")
        for path in (spare, other):
            self.assertEqual(gpu4fs("device", "spare", "add", pool.mountpoint, path).returncode, 0)
        self.assertEqual(gpu4fs("device", "spare", "remove", pool.mountpoint, other).returncode, 0)
        listed = json.loads(gpu4fs("device", "spare", "list", "--json", pool.mountpoint).stdout)["spares"]
        self.assertEqual([(one["path"], one["state"]) for one in listed], [(spare, "waiting")])
        self.assertIn(spare, gpu4fs("status", pool.mountpoint).stdout)
        pool.umount()
        os.unlink(pool.devices[1])
        pool.devices.pop()
        pool.mount(f"engine=cpu,degraded,spare={spare}")
        deadline = time.monotonic() + 60
        while self.status(pool)["degraded"]:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)  # another process fills the spare; only its status tells
        self.assertTrue(same_tree(SOURCE, pool.path("tree")))
        pool.umount()
        self.expect_sound(pool, pool.devices[0], spare)


if __name__ == "__main__":
    in_own_namespace()
    unittest.main(verbosity=2)
