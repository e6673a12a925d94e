"""gpu4fs convert and defragment: a tree gets other profiles while it is in use, and its bytes, names, times and sizes
stay; df shows where they are; scattered files are joined."""

import functools
import json
import os
import subprocess
import sys
import threading
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
from mounted_pool import MountedPool, gpu4fs, in_own_namespace  # noqa: E402

EFFECTIVE = "user.gpu4fs.raid.effective"
PROFILES = ("single", "raid1", "raid5")


@functools.lru_cache(maxsize=None)
def content(length, seed):
    unit = bytes((seed * 251 + i * 7 + (i >> 8)) & 255 for i in range(4096))
    return (unit * (length // 4096 + 1))[:length]


class ConvertTest(unittest.TestCase):
    def make(self, *mkfs, devices=4, device_mib=96):
        pool = MountedPool(device_mib=device_mib, device_count=devices, check=False, mkfs=mkfs)
        self.addCleanup(pool.remove)
        pool.mount()
        return pool

    def used(self, pool):
        done = gpu4fs("df", "--json", pool.mountpoint)
        self.assertEqual(done.returncode, 0, done.stderr)
        return {row["profile"]: row["used_bytes"] for row in json.loads(done.stdout)["classes"]}

    def run_well(self, *words):
        done = gpu4fs(*words)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def expect_sound(self, pool):
        pool.umount()
        done = gpu4fs("fsck", *pool.devices)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def make_tree(self, pool):
        tree = pool.path("tree")
        os.makedirs(os.path.join(tree, "a", "b"))
        self.files = {"large": 9_000_000, "a/small": 5000, "a/b/tiny": 40, "a/b/pages": 131072, "a/b/empty": 0}
        for seed, (name, length) in enumerate(self.files.items()):
            with open(os.path.join(tree, name), "wb") as file:
                file.write(content(length, seed))
            os.utime(os.path.join(tree, name), ns=(10 ** 18, 10 ** 18 + seed))
        with open(os.path.join(tree, "holes"), "wb") as file:
            os.posix_fallocate(file.fileno(), 0, 300000)
            os.pwrite(file.fileno(), b"end", 1_000_000)
        os.symlink("large", os.path.join(tree, "link"))
        os.link(os.path.join(tree, "large"), os.path.join(tree, "a", "second name"))
        return tree

    def expect_tree(self, tree):
        for seed, (name, length) in enumerate(self.files.items()):
            path = os.path.join(tree, name)
            self.assertEqual(os.stat(path).st_mtime_ns, 10 ** 18 + seed, name)
            with open(path, "rb") as file:
                self.assertTrue(file.read() == content(length, seed), name)
        with open(os.path.join(tree, "holes"), "rb") as file:
            self.assertTrue(file.read() == bytes(1_000_000) + b"end")

    def test_a_tree_changes_its_profile(self):
        pool = self.make("-d", "single", "-m", "raid1c3", "--profile", "raid1=30%", "--profile", "raid5=30%")
        tree = self.make_tree(pool)
        moved = 9_000_000 + 131072
        self.assertGreater(self.used(pool)["single"], moved)
        for profile in ("raid1", "raid5", "single"):
            # Another thread reads and writes meanwhile.
            ends = threading.Event()
            failures = []

            def work():
                for i in range(10 ** 9):
                    if ends.is_set():
                        return
                    with open(os.path.join(tree, "large"), "rb") as file:
                        if file.read() != content(9_000_000, 0):
                            failures.append("other bytes")
                    with open(os.path.join(tree, "churn"), "wb") as file:
                        file.write(content(i % 8 * 61_000, 7))
            worker = threading.Thread(target=work)
            worker.start()
            try:
                answer = json.loads(self.run_well("convert", tree, profile, "-r", "--json"))
            finally:
                ends.set()
                worker.join()
            self.assertEqual(failures, [])
            self.assertEqual(answer["relocation"]["state"], "finished", answer)
            self.assertGreater(answer["relocation"]["pages_moved"] * 4096, moved)
            self.assertEqual(os.getxattr(os.path.join(tree, "a", "b", "pages"), EFFECTIVE), profile.encode())
            self.expect_tree(tree)
            used = self.used(pool)
            self.assertGreater(used[profile], moved)
            for other in PROFILES:
                if other != profile:
                    self.assertLess(used[other], 2_000_000, f"{other} after {profile}")
        pool.remount()
        self.expect_tree(tree)
        self.assertIn("none since the mount", self.run_well("convert", "--status", tree))
        self.expect_sound(pool)

    def test_scattered_files_are_put_together(self):
        pool = self.make()
        paths = [pool.path(name) for name in ("one", "two")]
        files = [os.open(path, os.O_CREAT | os.O_RDWR) for path in paths]
        for i in range(400):
            for seed, file in enumerate(files):
                os.pwrite(file, content(4096, seed + i), i * 4096)
        for file in files:
            os.close(file)
        out = self.run_well("defragment", pool.mountpoint, "-r")
        self.assertIn("finished", out)
        self.assertNotIn("moved       0 B", out)
        # Each move reduces the number of pieces, so this ends.
        moved = []
        while not moved or (moved[-1] != 0 and len(moved) < 10):
            answer = json.loads(self.run_well("defragment", pool.mountpoint, "-r", "--json", "--rate", "100M"))
            moved.append(answer["relocation"]["pages_moved"])
        self.assertEqual(moved[-1], 0, moved)
        for seed, path in enumerate(paths):
            with open(path, "rb") as file:
                self.assertTrue(file.read() == b"".join(content(4096, seed + i) for i in range(400)))
        self.assertIn("defragment", self.run_well("status", pool.mountpoint))
        self.expect_sound(pool)

    def test_refusals(self):
        pool = self.make("-d", "single", "-m", "raid1", "--profile", "raid0=20%", devices=2)
        path = pool.path("file")
        with open(path, "wb") as file:
            file.write(content(100_000, 1))
        self.assertEqual(gpu4fs("convert", path, "raid6").returncode, 8)
        self.assertEqual(gpu4fs("convert", path, "bread").returncode, 8)
        self.assertEqual(gpu4fs("convert", path).returncode, 16)
        self.assertEqual(gpu4fs("convert", "/proc/self/status", "raid0").returncode, 8)
        done = gpu4fs("convert", "--resume", path)
        self.assertEqual(done.returncode, 8)
        self.assertIn("nothing is paused", done.stderr)
        # More than the profile has room for.
        with open(path, "wb") as file:
            file.write(content(70_000_000, 1))
        done = gpu4fs("convert", path, "raid0")
        self.assertEqual(done.returncode, 8, done.stdout + done.stderr)
        with open(path, "rb") as file:
            self.assertTrue(file.read() == content(70_000_000, 1))
        self.expect_sound(pool)


if __name__ == "__main__":
    in_own_namespace()
    unittest.main()
