"""gpu4fs scrub and gpu4fs status of a mounted pool: their output and exit statuses."""

import json
import os
import socket
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from mounted_pool import PROGRAM, MountedPool, in_own_namespace  # noqa: E402


def gpu4fs(*words):
    return subprocess.run([PROGRAM, *words], capture_output=True, text=True)


def damage_content(devices, content):
    """Changes a byte of the only place on the devices that holds `content`."""
    for path in devices:
        with open(path, "r+b") as file:
            data = file.read()
            at = data.find(content)
            if at < 0:
                continue
            file.seek(at)
            file.write(bytes([content[0] ^ 1]))
            return
    raise AssertionError("the content is on no device")


class Scrubbing(unittest.TestCase):
    def setUp(self):
        self.pool = MountedPool(device_mib=48, check=False)
        self.addCleanup(self.pool.remove)
        self.pool.mount()

    def write(self, name, content):
        with open(self.pool.path(name), "wb") as file:
            file.write(content)
            os.fsync(file.fileno())

    def answer(self, *words, status=0):
        done = gpu4fs(*words, "--json")
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return json.loads(done.stdout)

    def test_damage_is_found_and_named_by_both(self):
        place = self.pool.mountpoint
        os.mkdir(self.pool.path("folder"))
        content = os.urandom(5 * 4096)
        self.write("folder/kept", os.urandom(100_000))
        self.write("folder/broken one", content)
        self.assertEqual(self.answer("scrub", "status", place)["scrub"]["state"], "never")
        scrub = self.answer("scrub", "start", place, "--wait")["scrub"]
        self.assertEqual((scrub["state"], scrub["pages_damaged"]), ("finished", 0))
        self.assertGreaterEqual(scrub["pages_verified"], 30)
        done = gpu4fs("status", place)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("none met", done.stdout)

        damage_content(self.pool.devices, content[4096:8192])
        scrub = self.answer("scrub", "start", place, "--wait", status=4)["scrub"]
        self.assertEqual(scrub["pages_damaged"], 1)
        self.assertEqual([(f["path"], f["pages"]) for f in scrub["damaged_files"]], [("/folder/broken one", 1)])
        status = self.answer("status", place, status=4)
        self.assertEqual([f["path"] for f in status["damaged_files"]], ["/folder/broken one"])
        self.assertTrue(status["takes_changes"])
        done = gpu4fs("status", self.pool.devices[1])
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn("/folder/broken one", done.stdout)
        self.assertIn("finished", done.stdout)
        # Progress is stored where the superuser can see it, also across a remount.
        self.assertIn(b"state=finished", os.getxattr(place, "trusted.gpu4fs.scrub"))
        self.pool.remount()
        self.assertEqual(self.answer("scrub", "status", place, status=4)["scrub"]["pages_damaged"], 1)

    def test_pause_resume_cancel(self):
        place = self.pool.mountpoint
        self.write("large", os.urandom(8 << 20))
        scrub = self.answer("scrub", "start", place, "--rate", "1M")["scrub"]
        self.assertEqual((scrub["state"], scrub["rate_limit"]), ("running", 1 << 20))
        self.assertEqual(self.answer("scrub", "pause", place)["scrub"]["state"], "paused")
        done = gpu4fs("scrub", "start", place)
        self.assertEqual(done.returncode, 8)
        self.assertIn("paused", done.stderr)
        self.pool.remount()
        self.assertEqual(self.answer("scrub", "resume", place)["scrub"]["state"], "running")
        self.assertEqual(self.answer("scrub", "cancel", place)["scrub"]["state"], "cancelled")
        self.assertEqual(gpu4fs("scrub", "resume", place).returncode, 8)

    def test_wrong_command_lines(self):
        place = self.pool.mountpoint
        self.assertEqual(gpu4fs("scrub", "begin", place).returncode, 16)
        self.assertEqual(gpu4fs("scrub", "pause", place, "--rate", "1M").returncode, 16)
        self.assertEqual(gpu4fs("scrub", "start", place, "--rate", "fast").returncode, 8)
        self.assertEqual(gpu4fs("scrub", "start", "/nonexistent").returncode, 8)

    def test_status_of_a_pool_that_is_not_mounted(self):
        self.pool.umount()
        done = gpu4fs("status", self.pool.devices[0])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("it was unmounted", done.stdout)
        self.assertFalse(self.answer("status", *self.pool.devices)["mounted"])
        self.assertEqual(gpu4fs("status", self.pool.mountpoint).returncode, 8)

    def test_the_socket_is_the_owners_alone(self):
        path = os.getxattr(self.pool.mountpoint, "user.gpu4fs.server.socket").decode()
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
        pid = os.fork()
        if pid == 0:
            try:
                os.setuid(65534)
                socket.socket(socket.AF_UNIX).connect(path)
                os._exit(1)
            except PermissionError:
                os._exit(0)
            except BaseException:
                os._exit(2)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
        self.pool.umount()
        self.assertFalse(os.path.exists(path))

    def test_metadata_damage_stops_changes_unless_told_otherwise(self):
        for options in ("", "errors=continue"):
            os.makedirs(self.pool.path("folder"), exist_ok=True)
            marker = os.urandom(20).hex()
            self.write("folder/" + marker, b"x")
            self.pool.umount()
            for path in self.pool.devices:
                with open(path, "r+b") as file:
                    data = file.read()
                    at = data.find(marker.encode())
                    while at >= 0:
                        file.seek(at)
                        file.write(b"?")
                        at = data.find(marker.encode(), at + 1)
            self.pool.mount(options)
            with self.assertRaises(OSError) as caught:
                os.listdir(self.pool.path("folder"))
            self.assertEqual(caught.exception.errno, 5)
            status = self.answer("status", self.pool.mountpoint, status=4)
            self.assertEqual(status["takes_changes"], options != "")
            self.assertIn("/folder", [f.get("path") for f in status["damaged_files"]])
            if options == "":
                with self.assertRaises(OSError) as caught:
                    self.write("new", b"x")
                self.assertEqual(caught.exception.errno, 30)
                with self.assertRaises(OSError) as caught:
                    os.rmdir(self.pool.path("folder"))
                self.assertEqual(caught.exception.errno, 30)
                os.listdir(self.pool.mountpoint)
                self.pool.remount("errors=continue")
                os.rename(self.pool.path("folder"), self.pool.path("damaged"))
            else:
                self.write("new", b"x")


if __name__ == "__main__":
    in_own_namespace()
    unittest.main()
