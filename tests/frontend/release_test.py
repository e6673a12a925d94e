"""The ends of mounts: devices that lie in their own pool, mounting again, the helpers of mount(8) and umount(8)."""

import ctypes
import fcntl
import os
import select
import signal
import subprocess
import sys
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from mounted_pool import PROGRAM, MountedPool, gpu4fs, in_own_namespace, wait_for_exit  # noqa: E402


class OwnDevices(unittest.TestCase):
    def setUp(self):
        self.pool = MountedPool(device_mib=32, mkfs=("-d", "raid1"))
        self.addCleanup(self.pool.remove)

    def refuse(self, *words):
        """If it were opened, the server would wait for itself until the time is up."""
        done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 8, done)
        self.assertIn(self.pool.mountpoint + ", where this pool itself is mounted", done.stderr)

    def test_a_device_in_its_own_pool_is_refused(self):
        self.pool.mount()
        inside = self.pool.path("device")
        with open(inside, "wb") as file:
            file.truncate(32 << 20)
        link = os.path.join(self.pool.folder, "link")
        os.symlink(inside, link)
        folder = os.path.join(self.pool.folder, "folder")
        os.symlink(self.pool.mountpoint, folder)
        for path in (inside, link, os.path.join(folder, "device")):
            self.refuse("device", "add", self.pool.mountpoint, path)
            self.refuse("device", "spare", "add", self.pool.mountpoint, path)
            self.refuse("device", "replace", self.pool.mountpoint, "0", path)
        with open(inside, "rb") as file:
            self.assertEqual(file.read(), bytes(32 << 20))
        self.pool.umount()
        self.pool.fsck()

    def test_so_is_one_on_a_loop_device_over_it(self):
        self.pool.mount()
        image = self.pool.path("image")
        folder = os.path.join(self.pool.folder, "loop")
        os.mkdir(folder)
        with open(image, "wb") as file:
            file.truncate(48 << 20)
        if subprocess.run(["mkfs.ext4", "-q", image], capture_output=True).returncode != 0:
            self.skipTest("no ext4 can be made here")
        if subprocess.run(["mount", "-o", "loop", image, folder], capture_output=True).returncode != 0:
            self.skipTest("no loop device can be had here")
        try:
            inside = os.path.join(folder, "device")
            with open(inside, "wb") as file:
                file.truncate(32 << 20)
            self.refuse("device", "add", self.pool.mountpoint, inside)
            self.refuse("device", "spare", "add", self.pool.mountpoint, os.path.join(folder, "spare"))
        finally:
            subprocess.run(["umount", folder], check=True)
        self.pool.umount()
        self.pool.fsck()

    def test_so_is_one_that_the_mount_would_cover(self):
        done = gpu4fs("mount", ":".join(self.pool.devices), self.pool.folder)
        self.assertEqual(done.returncode, 32, done.stderr)
        self.assertIn(self.pool.devices[0], done.stderr)
        self.assertIn("cover", done.stderr)
        self.assertFalse(os.path.ismount(self.pool.folder))


class MountingAgain(unittest.TestCase):
    def setUp(self):
        self.pool = MountedPool(device_mib=64)
        self.addCleanup(self.pool.remove)

    def test_directly_after_the_kernel_has_let_go(self):
        """Without a helper umount(8) returns while the server still writes its last checkpoint."""
        self.pool.mount()
        for number in range(8):
            with open(self.pool.path(f"file{number}"), "wb") as file:
                file.write(os.urandom(4 << 20))
            subprocess.run(["umount", "-i", self.pool.mountpoint], check=True)
            self.pool.is_mounted = False
            self.pool.mount()
        self.assertEqual(len(os.listdir(self.pool.mountpoint)), 8)
        self.pool.umount()

    def test_devices_that_are_locked_for_a_moment_are_waited_for(self):
        watch = Opens(self.pool.devices[0])
        with open(self.pool.devices[0], "rb") as device:
            fcntl.flock(device, fcntl.LOCK_EX)
            mount = subprocess.Popen([PROGRAM, "mount", ":".join(self.pool.devices), self.pool.mountpoint],
                                     stderr=subprocess.PIPE, text=True)
            # More attempts than one mount makes.
            for _ in range(12):
                while not watch.next() and mount.poll() is None:
                    pass
            self.assertIsNone(mount.poll())
        _, errors = mount.communicate()
        self.assertEqual(mount.returncode, 0, errors)
        self.pool.is_mounted = True
        watch.close()
        self.pool.umount()

    def test_a_mounted_pool_is_refused_under_any_of_its_names(self):
        self.pool.mount()
        second = os.path.join(self.pool.folder, "second")
        os.mkdir(second)
        link = os.path.join(self.pool.folder, "other name")
        os.symlink(self.pool.devices[1], link)
        for name in (":".join(self.pool.devices), self.pool.devices[1], link):
            done = gpu4fs("mount", name, second)
            self.assertEqual(done.returncode, 32, done.stderr)
            self.assertIn("in use", done.stderr)
        self.pool.umount()


class Opens:
    """Counts how often a file is opened."""

    def __init__(self, path):
        self.system = ctypes.CDLL(None, use_errno=True)
        self.file = self.system.inotify_init1(os.O_NONBLOCK)
        in_open = 0x20
        if self.system.inotify_add_watch(self.file, os.fsencode(path), in_open) < 0:
            raise OSError(ctypes.get_errno(), "inotify_add_watch")

    def next(self):
        """Whether another one arrives within a while."""
        if not select.select([self.file], [], [], 0.1)[0]:
            return False
        os.read(self.file, 16)
        return True

    def close(self):
        os.close(self.file)


def wait_until_stopped(process):
    """All its threads."""
    folder = f"/proc/{process}/task"
    while any(read(f"{folder}/{thread}/stat").rpartition(b")")[2].split()[0] != b"T" for thread in os.listdir(folder)):
        os.sched_yield()


def read(path):
    with open(path, "rb") as file:
        return file.read()


class Unmounting(unittest.TestCase):
    def setUp(self):
        self.pool = MountedPool(device_mib=32)
        self.addCleanup(self.pool.remove)
        self.pool.mount()

    def test_one_who_looks_at_the_directory_is_waited_for(self):
        server = self.pool.server_pid()
        handle = os.pidfd_open(server)
        signal.pidfd_send_signal(handle, signal.SIGSTOP)
        wait_until_stopped(server)
        looker = threading.Thread(target=os.statvfs, args=(self.pool.mountpoint,))
        looker.start()
        try:
            words, errors = self.umount_while_somebody_looks(handle)
        finally:
            signal.pidfd_send_signal(handle, signal.SIGCONT)
            looker.join()
        self.assertIn("in use", words)
        self.assertEqual(errors, "")
        self.pool.is_mounted = False
        wait_for_exit(handle)
        os.close(handle)

    def umount_while_somebody_looks(self, handle):
        # Waits until its request is in the kernel: before that there would be nothing to wait for.
        control = os.path.join(self.pool.folder, "control")
        os.mkdir(control)
        subprocess.run(["mount", "-t", "fusectl", "none", control], check=True)
        connection = os.minor(device_number_of(self.pool.mountpoint))
        while int(read(f"{control}/{connection}/waiting")) == 0:
            os.sched_yield()
        subprocess.run(["umount", control], check=True)
        umount = subprocess.Popen([PROGRAM, "umount", "-v", "--timeout", "0", self.pool.mountpoint],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        words = umount.stdout.readline()
        signal.pidfd_send_signal(handle, signal.SIGCONT)
        return words, umount.communicate()[1]

    def test_a_bind_mount_ends_alone(self):
        with open(self.pool.path("file"), "w"):
            pass
        places = [os.path.join(self.pool.folder, name) for name in ("directory", "file")]
        os.mkdir(places[0])
        with open(places[1], "w"):
            pass
        subprocess.run(["mount", "--bind", self.pool.mountpoint, places[0]], check=True)
        subprocess.run(["mount", "--bind", self.pool.path("file"), places[1]], check=True)
        for place in places:
            done = subprocess.run([PROGRAM, "umount", "-v", place], capture_output=True, text=True, timeout=60)
            self.assertEqual((done.returncode, done.stdout), (0, "mounted elsewhere too: the server goes on\n"), done)
        self.assertTrue(os.path.exists(self.pool.path("file")))
        self.pool.umount()

    def test_a_file_in_use_is_not(self):
        with open(self.pool.path("file"), "w"):
            done = gpu4fs("umount", self.pool.mountpoint)
            self.assertEqual(done.returncode, 32, done)
            self.assertIn("busy", done.stderr)
            done = gpu4fs("umount", "-r", self.pool.mountpoint)
            self.assertEqual(done.returncode, 32, done)
            self.assertIn("busy", done.stderr)
        self.pool.umount()

    def test_as_umount_helper_it_waits_for_the_server(self):
        helper = os.path.join(self.pool.folder, "umount.fuse.gpu4fs")
        os.symlink(os.path.abspath(PROGRAM), helper)
        for number in range(4):
            with open(self.pool.path("file"), "wb") as file:
                file.write(os.urandom(4 << 20))
            handle = os.pidfd_open(self.pool.server_pid())
            words = [helper, self.pool.mountpoint, "-n", "-t", "fuse.gpu4fs"]
            done = subprocess.run(words, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(select.select([handle], [], [], 0)[0], [handle], "it runs on")
            os.close(handle)
            self.pool.is_mounted = False
            if number < 3:
                self.pool.mount()


def device_number_of(directory):
    """st_dev of a mount, without asking its server."""
    with open("/proc/self/mountinfo", encoding="utf-8") as mounts:
        for line in mounts:
            words = line.split()
            if words[4] == directory:
                major, minor = words[2].split(":")
                return os.makedev(int(major), int(minor))
    raise AssertionError(f"{directory} is not mounted")


class Remounting(unittest.TestCase):
    def setUp(self):
        self.pool = MountedPool(device_mib=32)
        self.addCleanup(self.pool.remove)
        self.helper = os.path.join(self.pool.folder, "mount.fuse.gpu4fs")
        os.symlink(os.path.abspath(PROGRAM), self.helper)

    def remount(self, options):
        words = [self.helper, ":".join(self.pool.devices), self.pool.mountpoint, "-o", options]
        return subprocess.run(words, capture_output=True, text=True)

    def test_read_only_and_back(self):
        self.pool.mount("engine=cpu,nodev")
        done = self.remount("engine=cpu,remount,ro")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        with self.assertRaises(OSError):
            open(self.pool.path("file"), "w")
        done = self.remount("remount,rw,noexec")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        with open(self.pool.path("file"), "w"):
            pass
        flags = os.statvfs(self.pool.mountpoint).f_flag
        self.assertTrue(flags & os.ST_NODEV)
        self.assertTrue(flags & os.ST_NOEXEC)
        self.pool.umount()

    def test_a_pool_that_was_opened_read_only_stays_so(self):
        self.pool.mount("ro")
        done = self.remount("remount,rw")
        self.assertEqual(done.returncode, 32, done)
        self.assertIn("mount it again", done.stderr)
        self.pool.umount()

    def test_what_is_not_mounted_cannot_be_remounted(self):
        done = self.remount("remount,ro")
        self.assertEqual(done.returncode, 32, done)
        self.assertIn("no gpu4fs pool", done.stderr)


if __name__ == "__main__":
    # Servers are stopped here, and a program that looks at all mounts, like df(1), would wait for them.
    in_own_namespace(is_needed=True)
    unittest.main()
