"""The engine dies under a mount: running commands fail, the pool is recovered, and the mount continues automatically.

The option allow_fault lets the control socket end the engine as by a fault of its own.
"""

import contextlib
import errno
import fcntl
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from mounted_pool import PROGRAM, MountedPool, in_own_namespace  # noqa: E402

RESTART_MAX = 5  # daemon/mount_restart.hpp


def ask(path, request):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(json.dumps({"request": request}).encode() + b"\n")
        return json.loads(connection.makefile().readline())


def comes_to_rest(pid):
    """Whether there is a moment in which no thread of a process is running or runnable."""
    for _ in range(1000):
        states = []
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                with open(f"/proc/{pid}/task/{thread}/stat") as file:
                    states.append(file.read().rpartition(")")[2].split()[0])
        if "R" not in states:
            return True
        time.sleep(0.01)
    return False


class EngineDeath(unittest.TestCase):
    options = "commit=0,engine=cpu,allow_fault"

    def setUp(self):
        self.pool = MountedPool(device_mib=48, device_count=2, options=self.options)
        self.pool.__enter__()
        self.addCleanup(self.pool.remove)
        self.control = os.getxattr(self.pool.mountpoint, "user.gpu4fs.server.socket").decode()
        self.restarts = 0

    def ask_status(self, pid):
        try:
            return ask(self.control, "status")
        except (OSError, ValueError):
            os.kill(pid, 0)  # it is between two engines
            return {}

    def end_engine(self):
        """Returns when the next engine serves."""
        pid = self.pool.server_pid()
        self.assertTrue(ask(self.control, "end-engine")["ok"])
        self.restarts += 1
        while True:
            status = self.ask_status(pid)
            if status.get("ok") and status["engine_restarts"] == self.restarts:
                break
        self.assertIn("told to end", status["engine_last_fault"])
        # Asks the server, which answers when the mount continues.
        self.assertEqual(self.pool.server_pid(), pid)
        return status

    def expect_content(self, file, content):
        """The kernel is told to drop its pages while its requests are already served again."""
        while os.pread(file, 100, 0) != content:
            os.kill(self.pool.server_pid(), 0)

    def write(self, name, data):
        file = os.open(self.pool.path(name), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.write(file, data)
        except OSError:
            with contextlib.suppress(OSError):  # reports unwritten data too
                os.close(file)  # else the mount stays in use
            raise
        return file

    def fails(self, number, call, *arguments):
        with self.assertRaises(OSError) as caught:
            call(*arguments)
        self.assertEqual(caught.exception.errno, number)

    def finish(self):
        self.pool.umount()
        self.pool.fsck()

    def test_what_was_synced_stays_and_open_files_go_on(self):
        os.mkdir(self.pool.path("folder"))
        kept = self.write("folder/kept", b"synced")
        reader = os.open(self.pool.path("folder/kept"), os.O_RDONLY)
        deleted = self.write("deleted", b"without a name")
        os.unlink(self.pool.path("deleted"))
        fcntl.flock(kept, fcntl.LOCK_EX)
        number = os.fstat(kept).st_ino
        directory = os.open(self.pool.path("folder"), os.O_RDONLY)
        os.fsync(deleted)
        os.fsync(kept)
        status = self.end_engine()
        self.assertEqual(status["write_errors"], 1)

        self.assertEqual(os.pread(reader, 100, 0), b"synced")
        self.assertEqual(os.fstat(kept).st_ino, number)
        self.assertEqual(os.stat(self.pool.path("folder/kept")).st_ino, number)
        self.assertEqual(os.listdir(directory), ["kept"])
        self.assertEqual(os.pread(deleted, 100, 0), b"without a name")
        os.pwrite(deleted, b"W", 0)
        self.assertEqual(os.pread(deleted, 100, 0), b"Without a name")
        other = os.open(self.pool.path("folder/kept"), os.O_RDONLY)
        self.fails(errno.EWOULDBLOCK, fcntl.flock, other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.pwrite(kept, b"S", 0)
        os.fsync(kept)  # nothing of it was lost
        for file in (kept, reader, deleted, other, directory):
            os.close(file)
        self.assertFalse(os.path.exists(self.pool.path("deleted")))
        self.finish()

    def test_lost_changes_are_told_once_and_lost_files_are_stale(self):
        changed = self.write("changed", b"old")
        os.rename(self.pool.path("changed"), self.pool.path("file"))
        os.fsync(changed)
        second = os.open(self.pool.path("file"), os.O_RDWR)
        os.pwrite(changed, b"new", 0)
        os.rename(self.pool.path("file"), self.pool.path("renamed"))
        new = self.write("new", b"never durable")
        number = os.fstat(new).st_ino
        self.end_engine()

        self.assertEqual(os.listdir(self.pool.mountpoint), ["file"])
        self.expect_content(second, b"old")
        self.fails(errno.EIO, os.fsync, changed)
        os.fsync(changed)
        self.fails(errno.EIO, os.close, second)
        self.fails(errno.ENOENT, os.stat, self.pool.path("renamed"))
        self.fails(errno.ENOENT, os.stat, self.pool.path("new"))
        self.fails(errno.ESTALE, os.pread, new, 10, 0)
        self.fails(errno.ESTALE, os.pwrite, new, b"x", 0)
        # A new file of the same number is not the one that is still open.
        for i in range(100):
            again = self.write(f"again{i}", b"another file")
            if os.fstat(again).st_ino == number:
                break
            os.close(again)
        self.assertEqual(os.fstat(again).st_ino, number)
        with self.assertRaises(OSError):
            os.pread(new, 10, 0)
        with self.assertRaises(OSError):
            os.pwrite(new, b"x", 0)
        self.assertEqual(os.pread(again, 100, 0), b"another file")
        os.fsync(again)
        with self.assertRaises(OSError):
            os.close(new)
        self.end_engine()
        # A file that the second engine made durable has kept its identity.
        self.assertEqual(os.pread(again, 100, 0), b"another file")
        os.close(again)
        os.close(changed)
        self.finish()

    def test_operations_under_way_fail_and_later_ones_wait(self):
        wrong = []
        ended = threading.Event()
        refused = []

        def open_again(index):
            while True:
                try:
                    return self.write(f"worker{index}", b"")
                except OSError as error:
                    if error.errno not in (errno.EIO, errno.ESTALE):
                        raise

        def work(index):
            rounds = 0
            file = open_again(index)
            while not ended.is_set() or rounds < 3:
                text = b"%d " % rounds * 500
                try:
                    os.pwrite(file, text, 0)
                    os.fsync(file)
                    if os.pread(file, len(text), 0) != text:
                        wrong.append(f"worker {index}: other data")
                except OSError as error:
                    refused.append(error.errno)
                    if error.errno not in (errno.EIO, errno.ESTALE):
                        wrong.append(f"worker {index}: {error}")
                    try:
                        os.close(file)
                    except OSError:
                        pass
                    file = open_again(index)
                rounds += 1
            os.fsync(file)
            os.close(file)

        def safely(index):
            try:
                work(index)
            except OSError as error:
                wrong.append(f"worker {index}: {error}")

        threads = [threading.Thread(target=safely, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        self.end_engine()
        ended.set()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        self.assertEqual(sorted(os.listdir(self.pool.mountpoint)), [f"worker{i}" for i in range(4)])
        self.finish()

    def test_another_death_while_the_kernel_is_told(self):
        """Dropping pages of a file waits for reads of that file, so these must be answered."""
        content = b"x" * 65536
        files = [self.write(f"file{i}", content) for i in range(200)]
        for file in files:
            os.fsync(file)
        wrong = []
        ended = threading.Event()

        def read(index):
            while not ended.is_set():
                for file in files[index::4]:
                    try:
                        data = os.pread(file, len(content), 0)
                        if data == b"" or not content.startswith(data):  # short where the rest was refused
                            wrong.append(f"{len(data)} bytes of other data")
                    except OSError as error:
                        if error.errno != errno.EIO:
                            wrong.append(str(error))

        threads = [threading.Thread(target=read, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            self.end_engine()
        ended.set()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        for file in files:
            self.assertEqual(os.pread(file, len(content), 0), content)
            os.close(file)
        self.finish()

    def test_too_many_deaths_are_not_repaired(self):
        pid = self.pool.server_pid()
        for _ in range(RESTART_MAX):
            self.end_engine()
        text = subprocess.run([PROGRAM, "status", self.pool.mountpoint], capture_output=True, text=True).stdout
        self.assertIn(f"restarts    {RESTART_MAX}, the last at ", text)
        self.assertTrue(ask(self.control, "end-engine")["ok"])
        self.fails(errno.EIO, os.mkdir, self.pool.path("folder"))
        status = ask(self.control, "status")
        self.assertFalse(status["ok"])
        self.assertIn("the engine died", status["error"])
        self.assertTrue(comes_to_rest(pid), "a thread goes on without an engine")
        subprocess.run([PROGRAM, "umount", self.pool.mountpoint], capture_output=True)
        self.pool.is_mounted = os.path.ismount(self.pool.mountpoint)
        self.assertFalse(self.pool.is_mounted)
        self.pool.fsck()

    def test_a_pool_that_cannot_be_recovered_leaves_a_mount_that_says_so(self):
        os.mkdir(self.pool.path("folder"))
        pid = self.pool.server_pid()
        moved = self.pool.devices[1] + ".away"
        os.rename(self.pool.devices[1], moved)
        self.assertTrue(ask(self.control, "end-engine")["ok"])
        while True:
            status = self.ask_status(pid)
            if "could not be started again" in status.get("error", ""):
                break
        self.assertIn("device1", status["error"])
        self.fails(errno.EIO, os.mkdir, self.pool.path("other"))
        subprocess.run([PROGRAM, "umount", self.pool.mountpoint], capture_output=True)
        self.pool.is_mounted = os.path.ismount(self.pool.mountpoint)
        self.assertFalse(self.pool.is_mounted)
        os.rename(moved, self.pool.devices[1])
        self.pool.fsck()


class NotAllowed(unittest.TestCase):
    def test_only_with_the_option(self):
        with MountedPool(device_mib=32, device_count=1, options="engine=cpu") as pool:
            control = os.getxattr(pool.mountpoint, "user.gpu4fs.server.socket").decode()
            self.assertFalse(ask(control, "end-engine")["ok"])
            os.mkdir(pool.path("folder"))


if __name__ == "__main__":
    in_own_namespace()
    unittest.main()
