"""Pools with redundancy through the programs: a whole device's worth of damage under a mounted tree, and what info,
scrub, fsck and the independent reader say."""

import json
import os
import shutil
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
from mounted_pool import MountedPool, gpu4fs, in_own_namespace, same_tree  # noqa: E402

READER = os.path.join(HERE, "..", "format_reader", "gpu4fs_reader.py")
SOURCE = os.path.join(HERE, "..", "..", "src")
# Before it there are superblocks, chunk tree, chunk map and operation log.
FIRST_CHUNK = 2 << 20


def damage_everywhere(path, first):
    """A byte of every page from `first` on."""
    with open(path, "r+b") as file:
        for offset in range(first + 77, os.path.getsize(path), 4096):
            file.seek(offset)
            byte = file.read(1)
            file.seek(offset)
            file.write(bytes([byte[0] ^ 0x81]))


class Profiles(unittest.TestCase):
    def make(self, profile, devices, *more):
        pool = MountedPool(device_mib=48, device_count=devices, check=False, mkfs=("-d", profile, *more))
        self.addCleanup(pool.remove)
        pool.mount()
        shutil.copytree(SOURCE, pool.path("tree"))
        pool.umount()
        return pool

    def fsck(self, pool):
        done = gpu4fs("fsck", "--json", *pool.devices)
        return done.returncode, json.loads(done.stdout)

    def test_reader_agrees_on_every_profile(self):
        for profile, devices, more in (
            ("raid0", 2, ("--stripe-length", "4K")),
            ("raid0", 3, ()),
            ("raid1", 3, ()),
            ("raid1c3", 3, ()),
            ("raid1c4", 4, ()),
            ("raid5", 2, ()),
            ("raid5", 4, ("--stripe-length", "64K")),
            ("raid6", 5, ()),
            ("raid7", 6, ("--stripe-length", "8K")),
        ):
            with self.subTest(profile=profile, devices=devices):
                pool = self.make(profile, devices, *more)
                done = subprocess.run([sys.executable, READER, "verify", *pool.devices], capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertIn(" 0 problems", done.stdout)
                self.assertEqual(self.fsck(pool)[0], 0)
                info = json.loads(gpu4fs("info", "--json", "--chunks", pool.devices[0]).stdout)
                self.assertEqual({chunk["profile"] for chunk in info["chunks"]}, {info["data_profile"]})
                for chunk in info["chunks"]:
                    members = [column["device"] for column in chunk["columns"]]
                    self.assertEqual(len(set(members)), len(members))
                pool.mount()
                self.assertTrue(same_tree(SOURCE, pool.path("tree")))
                pool.umount()

    def test_what_is_redundant_outlives_devices_full_of_damage(self):
        for profile, devices, damaged in (
            ("raid1", 2, (1,)),
            ("raid1", 2, (0,)),
            ("raid1c3", 3, (0, 2)),
            ("raid5", 4, (1,)),
            ("raid5", 3, (0,)),
            ("raid6", 5, (0, 3)),
            ("raid7", 6, (1, 2, 5)),
        ):
            with self.subTest(profile=profile, damaged=damaged):
                pool = self.make(profile, devices)
                for index in damaged:
                    damage_everywhere(pool.devices[index], FIRST_CHUNK)
                status, report = self.fsck(pool)
                self.assertEqual(status, 4)
                self.assertIn("copy-damaged", {finding["id"] for finding in report["findings"]})
                pool.mount()
                self.assertTrue(same_tree(SOURCE, pool.path("tree")))
                scrub = json.loads(gpu4fs("scrub", "start", pool.mountpoint, "--wait", "--json").stdout)["scrub"]
                self.assertEqual((scrub["state"], scrub["pages_damaged"]), ("finished", 0))
                pool.umount()
                # The mount restored the header areas, the scrub everything else.
                status, report = self.fsck(pool)
                found = {finding["id"] for finding in report["findings"]}
                self.assertLessEqual(found, {"bitmap-slot-stale"}, json.dumps(report)[:2000])
                done = subprocess.run([sys.executable, READER, "verify", *pool.devices], capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                pool.mount()
                self.assertTrue(same_tree(SOURCE, pool.path("tree")))
                pool.umount()

    def test_each_copy_alone_is_enough_for_a_repair(self):
        """fsck --repair of another fault does not change files whose first or second copies are bad."""
        for index in (0, 1):
            with self.subTest(damaged=index):
                pool = self.make("raid1", 2)
                damage_everywhere(pool.devices[index], FIRST_CHUNK)
                pool.mount()  # replaces the header areas
                pool.umount()
                done = gpu4fs("fsck", "--repair", *pool.devices)
                self.assertIn(done.returncode, (0, 1, 4), done.stdout + done.stderr)
                pool.mount()
                self.assertTrue(same_tree(SOURCE, pool.path("tree")))
                pool.umount()

    def test_what_is_redundant_outlives_devices_that_cannot_be_read(self):
        for profile, count, losses in (("raid1", 2, ((0,), (1,))), ("raid6", 5, ((0, 1), (2, 4)))):
            pool = self.make(profile, count)
            for failing in losses:
                with self.subTest(profile=profile, failing=failing):
                    devices = list(pool.devices)
                    for index in failing:
                        devices[index] = f"fault=read-error@{FIRST_CHUNK}+{1 << 30}:{devices[index]}"
                    done = gpu4fs("mount", "-o", "engine=cpu", ":".join(devices), pool.mountpoint)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    pool.is_mounted = True
                    self.assertTrue(same_tree(SOURCE, pool.path("tree")))
                    pool.umount()
            self.assertEqual(self.fsck(pool)[0], 0)

    def test_damage_of_all_copies_is_an_error_and_never_data(self):
        pool = self.make("raid1", 2)
        name = "tree/engine/engine_cpu.cpp"
        with open(os.path.join(SOURCE, "engine/engine_cpu.cpp"), "rb") as file:
            content = file.read()
        for path in pool.devices:
            with open(path, "r+b") as file:
                at = file.read().find(content[:4096])
                self.assertGreater(at, 0)
                file.seek(at + 5)
                file.write(b"\x00")
        pool.mount()
        with self.assertRaises(OSError):
            with open(pool.path(name), "rb") as file:
                file.read()
        status = json.loads(gpu4fs("status", "--json", pool.mountpoint).stdout)
        self.assertIn("engine_cpu.cpp", json.dumps(status))
        os.unlink(pool.path(name))
        pool.umount()
        self.assertEqual(self.fsck(pool)[0], 0)

    def test_profiles_that_cannot_be_are_refused(self):
        folder = self.make("single", 2).folder
        paths = [os.path.join(folder, name) for name in ("a", "b")]
        for words, text in (
            (("-d", "raid9"), "not supported"),
            (("-d", "raid6"), "needs 3 devices"),
            (("-d", "raid1c3"), "needs 3 devices"),
            (("-d", "raid1", "-m", "single", "--metadata-share", "100"), "a share of 100 %"),
            (("--profile", "raid0"), "NAME=SHARE"),
            (("--profile", "raid1=120%"), "no share"),
            (("--profile", "raid1=20%", "--profile", "raid1=20%"), "named twice"),
            (("-d", "raid1", "--stripe-length", "64K"), "has no stripes"),
            (("-d", "raid0", "--stripe-length", "96K"), "power of two"),
        ):
            done = gpu4fs("mkfs", "-s", "32M", *words, *paths)
            self.assertNotEqual(done.returncode, 0, words)
            self.assertIn(text, done.stderr)
            self.assertFalse(os.path.exists(paths[0]))


if __name__ == "__main__":
    in_own_namespace()
    unittest.main()
