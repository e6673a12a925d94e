"""Pools without one of their devices, used through the programs: missing at the mount, lost while mounted, back
again."""

import json
import os
import re
import shutil
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
from mounted_pool import MountedPool, gpu4fs, in_own_namespace, same_tree  # noqa: E402

READER = os.path.join(HERE, "..", "format_reader", "gpu4fs_reader.py")
SOURCE = os.path.join(HERE, "..", "..", "src")


class Degraded(unittest.TestCase):
    def make(self, profile, devices):
        pool = MountedPool(device_mib=48, device_count=devices, check=False, mkfs=("-d", profile))
        self.addCleanup(pool.remove)
        pool.mount("engine=cpu")
        shutil.copytree(os.path.join(SOURCE, "fs"), pool.path("before"))
        pool.umount()
        return pool

    def take_away(self, pool, indices):
        """Moves the files of these devices to where the mount does not find them."""
        away = os.path.join(pool.folder, "away")
        os.makedirs(away, exist_ok=True)
        for index in indices:
            os.rename(pool.devices[index], os.path.join(away, f"device{index}"))

    def bring_back(self, pool, indices):
        for index in indices:
            os.rename(os.path.join(pool.folder, "away", f"device{index}"), pool.devices[index])

    def mount(self, pool, options, devices=None):
        paths = ":".join(devices or pool.devices)
        done = gpu4fs("mount", "-o", options, paths, pool.mountpoint)
        pool.is_mounted = done.returncode == 0
        return done

    def here(self, pool):
        return [path for path in pool.devices if os.path.exists(path)]

    def states(self, pool):
        done = gpu4fs("status", "--json", pool.mountpoint)
        status = json.loads(done.stdout)
        return done.returncode, status["degraded"], [device["state"] for device in status["devices"]]

    def check(self, pool, devices):
        done = gpu4fs("fsck", "--json", *devices)
        report = json.loads(done.stdout)
        return done.returncode, {finding["id"] for finding in report["findings"]}

    def read_with_reader(self, pool, devices):
        done = subprocess.run([sys.executable, READER, "verify", *devices], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn(" 0 problems", done.stdout)

    def check_device_lines(self, verb, place, missing):
        """A missing device is named once, as missing; the others have their paths."""
        lines = [line for line in gpu4fs(verb, place).stdout.splitlines() if line.startswith("device ")]
        for index in missing:
            found = [line for line in lines if re.match(rf"device {index}\b", line)]
            self.assertEqual(len(found), 1, lines)
            self.assertEqual(found[0].count("device"), 1, found)
            self.assertEqual(found[0].count("missing"), 1, found)

    def test_missing_then_stale(self):
        for profile, devices, missing in (
            ("raid1", 2, (0,)),
            ("raid1", 2, (1,)),
            ("raid1", 3, (2,)),
            ("raid1c3", 3, (0, 1)),
            ("raid1c4", 4, (0, 1, 3)),
            ("raid5", 4, (1,)),
            ("raid6", 5, (0, 4)),
        ):
            with self.subTest(profile=profile, missing=missing):
                pool = self.make(profile, devices)
                uuids = [d["uuid"] for d in json.loads(gpu4fs("info", "--json", pool.devices[0]).stdout)["devices"]]
                self.take_away(pool, missing)
                here = self.here(pool)
                refused = self.mount(pool, "engine=cpu", here)
                self.assertNotEqual(refused.returncode, 0)
                for text in (f"device {missing[0]} of {devices} is missing", uuids[missing[0]], "degraded"):
                    self.assertIn(text, refused.stderr)
                # A mount that names all of them fails with the same message.
                self.assertIn(f"device {missing[0]} of {devices} is missing", self.mount(pool, "engine=cpu").stderr)

                done = self.mount(pool, "engine=cpu,degraded")
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertTrue(same_tree(os.path.join(SOURCE, "fs"), pool.path("before")))
                shutil.copytree(os.path.join(SOURCE, "fs"), pool.path("after"))
                os.unlink(pool.path("before", "fs_types.hpp"))
                expected = ["missing" if index in missing else "ok" for index in range(devices)]
                self.assertEqual(self.states(pool), (4, True, expected))
                self.check_device_lines("status", pool.mountpoint, missing)
                pool.umount()
                self.check_device_lines("status", here[0], missing)
                self.check_device_lines("info", here[0], missing)
                self.read_with_reader(pool, here)
                status, found = self.check(pool, here)
                self.assertEqual((status, found), (4, {"device-missing"}))
                info = json.loads(gpu4fs("info", "--json", here[0]).stdout)
                self.assertEqual([d["state"] for d in info["devices"]], expected)

                # The old files return: refused, and with the option skipped.
                self.bring_back(pool, missing)
                refused = self.mount(pool, "engine=cpu")
                self.assertNotEqual(refused.returncode, 0)
                self.assertIn(f"device {missing[0]} is stale since epoch", refused.stderr)
                self.assertIn("needs a rebuild", refused.stderr)
                self.assertEqual(self.mount(pool, "engine=cpu,degraded").returncode, 0)
                self.assertTrue(same_tree(os.path.join(SOURCE, "fs"), pool.path("after")))
                self.assertFalse(os.path.exists(pool.path("before", "fs_types.hpp")))
                expected = ["stale" if index in missing else "ok" for index in range(devices)]
                self.assertEqual(self.states(pool)[2], expected)
                pool.umount()
                self.assertEqual(self.check(pool, pool.devices), (4, {"device-missing"}))

    def test_too_many_missing_is_refused(self):
        for profile, devices, missing, text in (
            ("raid1", 2, (0, 1), "No such file"),
            ("raid1", 3, (1, 2), "level raid1"),
            ("raid1c3", 4, (1, 2, 3), "level raid1"),
            ("raid0", 2, (1,), "level raid0"),
            ("single", 2, (1,), "level single"),
        ):
            with self.subTest(profile=profile, missing=missing):
                pool = self.make(profile, devices)
                self.take_away(pool, missing)
                refused = self.mount(pool, "engine=cpu,degraded")
                self.assertNotEqual(refused.returncode, 0)
                self.assertIn(text, refused.stderr)
                self.bring_back(pool, missing)
                self.assertEqual(self.mount(pool, "engine=cpu").returncode, 0)
                self.assertTrue(same_tree(os.path.join(SOURCE, "fs"), pool.path("before")))
                pool.umount()

    def test_halves_that_were_written_apart_are_refused(self):
        pool = self.make("raid1", 2)
        for index in (0, 1):
            self.take_away(pool, (1 - index,))
            self.assertEqual(self.mount(pool, "engine=cpu,degraded").returncode, 0)
            with open(pool.path(f"half{index}"), "w") as file:
                file.write("x" * 100000 * (index + 1))
            if index == 0:
                pool.remount("engine=cpu,degraded")
            pool.umount()
            self.bring_back(pool, (1 - index,))
        refused = self.mount(pool, "engine=cpu,degraded")
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("written without the other", refused.stderr)

    def test_a_device_disappears_under_a_workload(self):
        for profile, devices, gone in (("raid1", 2, 0), ("raid1", 2, 1), ("raid1c3", 3, 1), ("raid5", 3, 2)):
            for access in (1, 40, 400):
                with self.subTest(profile=profile, gone=gone, access=access):
                    pool = self.make(profile, devices)
                    paths = list(pool.devices)
                    # Its superblocks and log are not affected: the accesses of the mount itself would be counted.
                    paths[gone] = f"fault=gone@{2 << 20}+{1 << 30}#{access + 60}:{paths[gone]}"
                    done = self.mount(pool, "engine=cpu", paths)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    shutil.copytree(SOURCE, pool.path("during"))
                    self.assertTrue(same_tree(SOURCE, pool.path("during")))
                    self.assertTrue(same_tree(os.path.join(SOURCE, "fs"), pool.path("before")))
                    with open(pool.path("synced"), "w") as file:
                        file.write("durable")
                        file.flush()
                        os.fsync(file.fileno())
                    expected = ["failed" if index == gone else "ok" for index in range(devices)]
                    self.assertEqual(self.states(pool), (4, True, expected))
                    pool.kill_server()
                    # Without layers it is back, with its old content.
                    refused = self.mount(pool, "engine=cpu")
                    self.assertIn(f"device {gone} is stale", refused.stderr)
                    self.assertEqual(self.mount(pool, "engine=cpu,degraded").returncode, 0)
                    with open(pool.path("synced")) as file:
                        self.assertEqual(file.read(), "durable")
                    self.assertTrue(same_tree(os.path.join(SOURCE, "fs"), pool.path("before")))
                    pool.umount()
                    self.assertEqual(self.check(pool, pool.devices), (4, {"device-missing"}))


if __name__ == "__main__":
    in_own_namespace()
    unittest.main()
