"""Mounting and unmounting: options, messages, exit statuses, read-only, ending by signal."""

import errno
import os
import select
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from mounted_pool import PROGRAM, MountedPool, in_own_namespace, wait_for_exit  # noqa: E402


def gpu4fs(*words):
    return subprocess.run([PROGRAM, *words], capture_output=True, text=True)


def close_dead(file):
    """Closes a file whose server is gone; this may be an error."""
    try:
        os.close(file)
    except OSError:
        pass


def read_file(path):
    with open(path, "rb") as file:
        return file.read()


class Mounting(unittest.TestCase):
    def setUp(self):
        self.pool = MountedPool(device_mib=32)
        self.addCleanup(self.pool.remove)

    def refuse(self, status, expected, *words):
        done = gpu4fs("mount", *words)
        self.assertEqual(done.returncode, status, done.stderr)
        for word in expected:
            self.assertIn(word, done.stderr)
        self.assertFalse(os.path.ismount(self.pool.mountpoint))

    def test_unknown_and_malformed_options_are_named(self):
        devices = ":".join(self.pool.devices)
        place = self.pool.mountpoint
        self.refuse(1, ["'frobnicate'"], "-o", "ro,frobnicate", devices, place)
        self.refuse(1, ["'commit'"], "-o", "commit", devices, place)
        self.refuse(1, ["'commit'", "'soon'"], "-o", "commit=soon", devices, place)
        self.refuse(1, ["'ro'"], "-o", "ro=1", devices, place)
        self.refuse(1, ["'engine'", "'abacus'"], "-o", "engine=abacus", devices, place)
        self.refuse(1, ["'cache'"], "-o", "cache=much", devices, place)
        self.refuse(1, [], devices)

    def test_wrong_devices_and_directories_are_named(self):
        place = self.pool.mountpoint
        self.refuse(32, ["/nonexistent/device"], "/nonexistent/device", place)
        self.refuse(32, ["/nonexistent/dir"], self.pool.devices[0], "/nonexistent/dir")
        other = os.path.join(self.pool.folder, "other")
        with open(other, "wb") as file:
            file.truncate(32 << 20)
        self.refuse(32, [other], other, place)
        os.unlink(self.pool.devices[1])
        self.refuse(32, ["missing"], self.pool.devices[0], place)

    def test_one_device_finds_the_others(self):
        done = gpu4fs("mount", self.pool.devices[1], self.pool.mountpoint)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.pool.is_mounted = True
        self.assertIn("engine: ", done.stderr)
        self.pool.umount()

    def test_second_mount_is_refused(self):
        self.pool.mount()
        second = os.path.join(self.pool.folder, "second")
        os.mkdir(second)
        done = gpu4fs("mount", ":".join(self.pool.devices), second)
        self.assertEqual(done.returncode, 32)
        self.assertIn("in use", done.stderr)
        self.assertFalse(os.path.ismount(second))
        self.pool.umount()

    def test_fake_mount_does_nothing(self):
        done = gpu4fs("mount", "-f", ":".join(self.pool.devices), self.pool.mountpoint)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertFalse(os.path.ismount(self.pool.mountpoint))

    def test_as_mount_helper(self):
        """The words that mount(8) passes to a helper."""
        helper = os.path.join(os.path.dirname(PROGRAM), "mount.gpu4fs")
        if not os.path.exists(helper):
            helper = os.path.join(self.pool.folder, "mount.gpu4fs")
            os.symlink(os.path.abspath(PROGRAM), helper)
        done = subprocess.run([helper, ":".join(self.pool.devices), self.pool.mountpoint, "-n", "-o",
                               "rw,noatime,nosuid,nodev"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.pool.is_mounted = True
        with open("/proc/self/mounts") as mounts:
            line = [text for text in mounts if self.pool.mountpoint in text][0]
        self.assertIn(" fuse.gpu4fs ", line)
        self.assertIn("nosuid", line)
        self.assertIn("nodev", line)
        self.pool.umount()

    def test_read_only(self):
        self.pool.mount()
        with open(self.pool.path("f"), "w") as file:
            file.write("content")
        self.pool.umount()
        before = [read_file(path) for path in self.pool.devices]
        self.pool.mount("ro")
        with open(self.pool.path("f")) as file:
            self.assertEqual(file.read(), "content")
        for operation in (lambda: os.unlink(self.pool.path("f")), lambda: os.mkdir(self.pool.path("d")),
                          lambda: os.chmod(self.pool.path("f"), 0),
                          lambda: open(self.pool.path("g"), "w")):
            with self.assertRaises(OSError) as context:
                operation()
            self.assertEqual(context.exception.errno, errno.EROFS)
        self.pool.umount()
        self.assertEqual(before, [read_file(path) for path in self.pool.devices])

    def test_signal_unmounts_cleanly(self):
        self.pool.mount()
        with open(self.pool.path("f"), "w") as file:
            file.write("written before the signal")
        handle = os.pidfd_open(self.pool.server_pid())
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        wait_for_exit(handle)
        os.close(handle)
        self.assertFalse(os.path.ismount(self.pool.mountpoint))
        self.pool.is_mounted = False
        self.pool.fsck()
        self.pool.mount()
        with open(self.pool.path("f")) as file:
            self.assertEqual(file.read(), "written before the signal")
        self.pool.umount()

    def test_signal_while_files_are_open(self):
        self.pool.mount()
        file = os.open(self.pool.path("f"), os.O_WRONLY | os.O_CREAT)
        os.write(file, b"kept")
        os.unlink(self.pool.path("f"))
        handle = os.pidfd_open(self.pool.server_pid())
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        wait_for_exit(handle)
        os.close(handle)
        self.pool.is_mounted = False
        with self.assertRaises(OSError):
            os.write(file, b"nobody there")
        close_dead(file)
        self.pool.fsck()

    def test_foreground_prints_and_ends(self):
        server = subprocess.Popen([PROGRAM, "mount", "--foreground", "-o", "engine=cpu",
                                   ":".join(self.pool.devices), self.pool.mountpoint],
                                  stderr=subprocess.PIPE, text=True)
        self.addCleanup(server.stderr.close)
        self.assertIn("engine: CPU", server.stderr.readline())
        self.assertTrue(os.path.ismount(self.pool.mountpoint))
        self.pool.is_mounted = True
        self.pool.umount()
        self.assertEqual(server.wait(), 0)

    def test_umount_of_a_busy_directory(self):
        self.pool.mount()
        with open(self.pool.path("f"), "w"):
            done = gpu4fs("umount", self.pool.mountpoint)
            self.assertEqual(done.returncode, 32)
            self.assertIn("busy", done.stderr)
            self.assertTrue(os.path.ismount(self.pool.mountpoint))
        self.pool.umount()
        self.assertEqual(gpu4fs("umount", self.pool.mountpoint).returncode, 32)

    def test_umount_by_device(self):
        self.pool.mount()
        done = gpu4fs("umount", self.pool.devices[1])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.pool.is_mounted = False
        self.assertFalse(os.path.ismount(self.pool.mountpoint))

    def test_deleted_open_files_are_freed_by_the_next_mount(self):
        self.pool.mount("commit=0")
        free = os.statvfs(self.pool.mountpoint).f_bfree
        file = os.open(self.pool.path("f"), os.O_WRONLY | os.O_CREAT)
        os.write(file, os.urandom(4 << 20))
        os.unlink(self.pool.path("f"))
        os.fsync(file)
        self.pool.kill_server()
        close_dead(file)
        self.pool.mount()
        self.assertLess(free - os.statvfs(self.pool.mountpoint).f_bfree, 64)
        self.pool.umount()
        self.pool.fsck()

    def test_access_times(self):
        self.pool.mount("noatime")
        path = self.pool.path("f")
        with open(path, "w") as file:
            file.write("x" * 10000)
        os.utime(path, ns=(10**18, 10**18))
        self.pool.remount()  # so that reads reach the file system, not the page cache
        self.pool.remount("noatime")
        read_file(path)
        self.assertEqual(os.stat(path).st_atime_ns, 10**18)
        self.pool.remount("relatime")
        read_file(path)
        self.assertGreater(os.stat(path).st_atime_ns, 10**18)
        self.pool.umount()

    def test_every_direct_read_is_an_access(self):
        """Without the page cache strictatime means each read, as the manual says."""
        self.pool.mount("strictatime,direct_io")
        path = self.pool.path("f")
        with open(path, "w") as file:
            file.write("x" * 10000)
        for _ in range(3):
            os.utime(path, ns=(10**18, 10**18))
            read_file(path)
            self.assertGreater(os.stat(path).st_atime_ns, 10**18)
        self.pool.umount()

    def test_emulated_drives(self):
        """Content stays, status says how the devices are reached, and unknown drives are refused."""
        place = self.pool.mountpoint
        self.refuse(1, ["'drive'", "'floppy'"], "-o", "access=emulated,drive=floppy", *self.pool.devices, place)
        for access in ("", ",access=direct", ",access=emulated,access=mapped"):
            self.refuse(1, ["'drive'", "access=emulated"], "-o", "drive=10us" + access, *self.pool.devices, place)
        self.pool.mount("drive=100us,access=emulated")
        content = os.urandom(300000)
        with open(self.pool.path("f"), "wb") as file:
            file.write(content)
            os.fsync(file.fileno())
        status = gpu4fs("status", self.pool.mountpoint)
        self.assertEqual(status.returncode, 0, status.stderr)
        self.assertIn("emulated NVMe drives (100us)", status.stdout)
        self.pool.remount("access=emulated")
        self.assertEqual(read_file(self.pool.path("f")), content)
        self.pool.remount()
        self.assertEqual(read_file(self.pool.path("f")), content)
        self.pool.umount()

    def test_idle_mount_uses_no_processor(self):
        """All threads of an idle server sleep; counted by the kernel, not timed."""
        self.pool.mount()
        with open(self.pool.path("f"), "w") as file:
            file.write("x")
        pid = self.pool.server_pid()
        os.sync()

        def switches():
            total = 0
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/status") as status:
                    total += sum(int(line.split()[1]) for line in status if "ctxt_switches" in line)
            return total

        select.select([], [], [], 1.0)
        before = switches()
        select.select([], [], [], 1.0)
        self.assertLess(switches() - before, 50)
        self.pool.umount()


if __name__ == "__main__":
    in_own_namespace()
    unittest.main(verbosity=1)
