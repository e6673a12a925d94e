"""Devices of a mounted pool are replaced and rebuilt through the programs; then others are taken away."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
from mounted_pool import PROGRAM, MountedPool, gpu4fs, in_own_namespace, same_tree  # noqa: E402

READER = os.path.join(HERE, "..", "format_reader", "gpu4fs_reader.py")
SOURCE = os.path.join(HERE, "..", "..", "src")
DEVICE_MIB = 48


class Rebuild(unittest.TestCase):
    def make(self, profile, devices):
        pool = MountedPool(device_mib=DEVICE_MIB, device_count=devices, check=False, mkfs=("-d", profile))
        self.addCleanup(pool.remove)
        pool.mount("engine=cpu")
        shutil.copytree(os.path.join(SOURCE, "fs"), pool.path("before"))
        return pool

    def mount(self, pool, options, devices=None):
        done = gpu4fs("mount", "-o", options, ":".join(devices or pool.devices), pool.mountpoint)
        pool.is_mounted = done.returncode == 0
        return done

    def status(self, pool):
        return json.loads(gpu4fs("status", "--json", pool.mountpoint).stdout)

    def states(self, pool):
        return [device["state"] for device in self.status(pool)["devices"]]

    def empty_device(self, pool, name, mib=DEVICE_MIB):
        path = os.path.join(pool.folder, name)
        with open(path, "wb") as file:
            file.truncate(mib << 20)
        return path

    def expect_redundant(self, pool, away):
        """Unmounts, and continues without other devices."""
        pool.umount()
        done = subprocess.run([PROGRAM, "fsck", *pool.devices], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        done = subprocess.run([sys.executable, READER, "verify", *pool.devices], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for index in away:
            os.unlink(pool.devices[index])
        here = [path for path in pool.devices if os.path.exists(path)]
        done = self.mount(pool, "engine=cpu,degraded", here)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(same_tree(os.path.join(SOURCE, "fs"), pool.path("before")))
        if os.path.exists(pool.path("during")):
            self.assertTrue(same_tree(os.path.join(SOURCE, "fs"), pool.path("during")))
        pool.umount()

    def test_a_copy_takes_the_place_of_a_device_without_redundancy(self):
        pool = self.make("raid0", 2)
        new = self.empty_device(pool, "new")
        self.assertIn("not mounted", gpu4fs("device", "replace", pool.mountpoint, "0", new).stderr)
        os.unlink(new)
        pool.umount()
        # Elsewhere, because a folder is searched for members.
        os.mkdir(os.path.join(pool.folder, "elsewhere"))
        copy = os.path.join(pool.folder, "elsewhere", "copy")
        shutil.copyfile(pool.devices[0], copy)
        done = self.mount(pool, "engine=cpu", [copy, pool.devices[1]])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(same_tree(os.path.join(SOURCE, "fs"), pool.path("before")))
        shutil.copytree(os.path.join(SOURCE, "fs"), pool.path("during"))
        pool.umount()
        done = self.mount(pool, "engine=cpu", pool.devices)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("device 0 is stale", done.stderr)
        done = self.mount(pool, "engine=cpu", [copy, pool.devices[1]])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(same_tree(os.path.join(SOURCE, "fs"), pool.path("during")))
        pool.umount()

    def test_a_refused_replacement_of_a_disk_changes_nothing(self):
        """Files on disk are accessed directly. The refused one must not have become the medium of the device."""
        pool = MountedPool(device_mib=DEVICE_MIB, device_count=2, check=False, mkfs=("-d", "raid0"),
                           parent=tempfile.gettempdir())
        self.addCleanup(pool.remove)
        pool.mount("engine=cpu")
        shutil.copytree(os.path.join(SOURCE, "fs"), pool.path("before"))
        new = self.empty_device(pool, "new")
        self.assertIn("cannot do without device 0", gpu4fs("device", "replace", pool.mountpoint, "0", new).stderr)
        shutil.copytree(os.path.join(SOURCE, "fs"), pool.path("during"))
        pool.umount()
        with open(new, "rb") as file:
            self.assertFalse(any(file.read()))
        os.unlink(new)
        pool.fsck()
        pool.mount("engine=cpu")
        for name in ("before", "during"):
            self.assertTrue(same_tree(os.path.join(SOURCE, "fs"), pool.path(name)))
        pool.umount()

    def test_replace_a_device_that_works(self):
        for profile, devices, old, away in (("raid1", 2, 1, (0,)), ("raid6", 5, 2, (0, 4)), ("raid5", 3, 0, (1,))):
            with self.subTest(profile=profile):
                pool = self.make(profile, devices)
                new = self.empty_device(pool, "new")
                # Unsuitable files are refused, and nothing changes.
                small = self.empty_device(pool, "small", 8)
                self.assertIn("too small", gpu4fs("device", "replace", pool.mountpoint, str(old), small).stderr)
                full = self.empty_device(pool, "full")
                with open(full, "r+b") as file:
                    file.seek(70000)
                    file.write(b"somebody's data")
                self.assertIn("force", gpu4fs("device", "replace", pool.mountpoint, str(old), full).stderr)
                self.assertIn("a device of the pool",
                              gpu4fs("device", "replace", pool.mountpoint, str(old), pool.devices[1 - old % 2]).stderr)
                self.assertIn("no device", gpu4fs("device", "replace", pool.mountpoint, "77", new).stderr)
                self.assertEqual(self.states(pool), ["ok"] * devices)

                done = gpu4fs("device", "replace", "--wait", "--json", pool.mountpoint, pool.devices[old], new)
                self.assertEqual(done.returncode, 0, done.stderr)
                rebuild = json.loads(done.stdout)["rebuild"]
                self.assertEqual(rebuild["state"], "finished")
                self.assertEqual(rebuild["device"], old)
                self.assertEqual(rebuild["pages_done"], rebuild["pages_total"])
                self.assertEqual(rebuild["pages_unverified"], 0)
                status = self.status(pool)
                self.assertEqual([d["state"] for d in status["devices"]], ["ok"] * devices)
                self.assertFalse(status["degraded"])
                self.assertEqual(status["devices"][old]["path"], new)
                shutil.copytree(os.path.join(SOURCE, "fs"), pool.path("during"))
                replaced = pool.devices[old]
                pool.devices[old] = new
                pool.umount()
                # The old one is not a member, whoever names it.
                refused = self.mount(pool, "engine=cpu", [replaced])
                self.assertIn("no longer a member", refused.stderr)
                # An unnamed file of it does not disturb a mount.
                os.rename(pool.devices[away[0]], new + "-away")
                here = [path for path in pool.devices if os.path.exists(path)]
                done = self.mount(pool, "engine=cpu,degraded,ro", here)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertTrue(same_tree(os.path.join(SOURCE, "fs"), pool.path("during")))
                pool.umount()
                os.rename(new + "-away", pool.devices[away[0]])
                os.unlink(replaced)
                self.assertEqual(self.mount(pool, "engine=cpu").returncode, 0)
                self.expect_redundant(pool, away)

    def test_replace_a_missing_device_and_rebuild_a_stale_one(self):
        for profile, devices, lost, away in (("raid1", 2, 0, (1,)), ("raid6", 4, 3, (0, 1))):
            with self.subTest(profile=profile):
                pool = self.make(profile, devices)
                pool.umount()
                kept = os.path.join(pool.folder, "away", "kept")
                os.mkdir(os.path.dirname(kept))
                os.rename(pool.devices[lost], kept)
                here = [path for path in pool.devices if os.path.exists(path)]
                self.assertEqual(self.mount(pool, "engine=cpu,degraded", here).returncode, 0)
                shutil.copytree(os.path.join(SOURCE, "fs"), pool.path("during"))
                self.assertIn("no device of the pool is stale", gpu4fs("device", "rebuild", pool.mountpoint).stderr)
                new = self.empty_device(pool, "new", 64)
                done = gpu4fs("device", "replace", "--wait", pool.mountpoint, str(lost), new)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertIn("finished", done.stdout)
                self.assertEqual(self.states(pool), ["ok"] * devices)
                pool.umount()
                pool.devices[lost] = new
                self.assertEqual(self.mount(pool, "engine=cpu").returncode, 0)
                self.assertTrue(same_tree(os.path.join(SOURCE, "fs"), pool.path("during")))

                # Then the new one becomes stale and returns.
                pool.umount()
                os.rename(new, kept)
                here = [path for path in pool.devices if os.path.exists(path)]
                self.assertEqual(self.mount(pool, "engine=cpu,degraded", here).returncode, 0)
                shutil.rmtree(pool.path("during"))
                shutil.copytree(os.path.join(SOURCE, "fs"), pool.path("during"))
                pool.umount()
                os.rename(kept, new)
                self.assertEqual(self.mount(pool, "engine=cpu,degraded").returncode, 0)
                self.assertEqual(self.states(pool)[lost], "stale")
                done = gpu4fs("device", "rebuild", "--wait", pool.mountpoint)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertEqual(self.states(pool), ["ok"] * devices)
                self.assertTrue(same_tree(os.path.join(SOURCE, "fs"), pool.path("during")))
                self.expect_redundant(pool, away)

    def test_it_can_be_paused_and_interrupted(self):
        pool = self.make("raid1", 2)
        with open(pool.path("large"), "wb") as file:
            file.write(os.urandom(16 << 20))
        new = self.empty_device(pool, "new")
        done = gpu4fs("device", "replace", "--rate", "1M", pool.mountpoint, "1", new)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.states(pool), ["ok", "rebuilding"])
        self.assertIn("running", gpu4fs("status", pool.mountpoint).stdout)
        self.assertIn("a rebuild is running", gpu4fs("device", "rebuild", pool.mountpoint).stderr)
        self.assertEqual(gpu4fs("device", "rebuild", "--pause", pool.mountpoint).returncode, 0)
        self.assertEqual(self.status(pool)["rebuild"]["state"], "paused")
        self.assertEqual(gpu4fs("device", "rebuild", "--resume", pool.mountpoint).returncode, 0)
        pool.kill_server()
        # The medium shows it as stale until it is complete; the new file is already a member.
        pool.devices[1] = new
        os.unlink(os.path.join(pool.folder, "device1"))
        self.assertIn("device 1 is stale", self.mount(pool, "engine=cpu").stderr)
        self.assertEqual(self.mount(pool, "engine=cpu,degraded").returncode, 0)
        done = gpu4fs("device", "rebuild", "--wait", "--json", pool.mountpoint)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["rebuild"]["state"], "finished")
        self.assertEqual(self.states(pool), ["ok", "ok"])
        self.expect_redundant(pool, (0,))

    def ask(self, pool, request):
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(os.getxattr(pool.mountpoint, "user.gpu4fs.server.socket"))
            control.sendall(json.dumps({"request": request}).encode() + b"\n")
            return json.loads(control.makefile().readline())

    def test_the_next_engine_knows_the_new_device(self):
        pool = self.make("raid1", 2)
        pool.remount("engine=cpu,allow_fault")
        new = self.empty_device(pool, "new")
        done = gpu4fs("device", "replace", "--wait", pool.mountpoint, "0", new)
        self.assertEqual(done.returncode, 0, done.stderr)
        shutil.copytree(os.path.join(SOURCE, "fs"), pool.path("during"))
        folder = os.open(pool.path("during"), os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        self.assertTrue(self.ask(pool, "end-engine")["ok"])
        deadline = time.monotonic() + 60
        status = {}
        while status.get("engine_restarts") != 1 and time.monotonic() < deadline:
            try:
                status = self.ask(pool, "status")
            except (OSError, ValueError):
                pass  # between two engines
        self.assertTrue(status["ok"], status)
        self.assertEqual([device["path"] for device in status["devices"]], [new, pool.devices[1]])
        self.assertEqual(self.states(pool), ["ok", "ok"])
        self.assertTrue(same_tree(os.path.join(SOURCE, "fs"), pool.path("during")))
        os.unlink(pool.devices[0])
        pool.devices[0] = new
        self.expect_redundant(pool, (1,))

    def test_a_target_without_room_is_refused(self):
        pool = self.make("raid1", 2)
        with open(pool.path("large"), "wb") as file:
            file.write(os.urandom(24 << 20))
        small = os.path.join(pool.folder, "small")
        os.mkdir(small)
        words = ["mount", "-t", "tmpfs", "-o", "size=16M", "none", small]
        if subprocess.run(words, capture_output=True).returncode != 0:
            self.skipTest("no permission to mount a tmpfs")
        self.addCleanup(subprocess.run, ["umount", "-l", small])
        sparse = self.empty_device(pool, "small/sparse")
        done = gpu4fs("device", "replace", "--wait", pool.mountpoint, "1", sparse)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("room", done.stdout + done.stderr)
        self.assertLess(os.stat(sparse).st_blocks * 512, 1 << 20)
        status = self.status(pool)
        self.assertFalse(status["degraded"])
        self.assertTrue(status["takes_changes"])
        self.assertEqual(self.states(pool), ["ok", "ok"])
        shutil.copytree(os.path.join(SOURCE, "fs"), pool.path("during"))
        new = self.empty_device(pool, "new")
        done = gpu4fs("device", "replace", "--wait", pool.mountpoint, "1", new)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.states(pool), ["ok", "ok"])
        os.unlink(pool.devices[1])
        pool.devices[1] = new
        self.expect_redundant(pool, (0,))


if __name__ == "__main__":
    in_own_namespace()
    unittest.main()
