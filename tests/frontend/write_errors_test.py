"""Changes that cannot be made durable are reported by fsync and by close, once to each open file.

A library that replaces msync(2) and fdatasync(2) of libc makes the medium's flush fail: no medium here fails on demand.
"""

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from mounted_pool import PROGRAM, SKIPPED, MountedPool, in_own_namespace  # noqa: E402

SOURCE = r"""
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
static int fails(void) {
  const char* flag = getenv("TEST_FAILING_FLUSH");
  if (flag == NULL || access(flag, F_OK) != 0) return 0;
  errno = EIO;
  return 1;
}
int msync(void* address, size_t length, int flags) {
  return fails() ? -1 : (int)syscall(SYS_msync, address, length, flags);
}
int fdatasync(int file) { return fails() ? -1 : (int)syscall(SYS_fdatasync, file); }
"""


def require_disk_and_compiler():
    """The pool's files must need flushing, so they cannot lie in memory."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    kind = subprocess.run(["stat", "-f", "-c", "%T", tempfile.gettempdir()], capture_output=True, text=True).stdout
    if compiler is None or kind.strip() == "tmpfs":
        print("skipped: a C compiler and a temporary folder on a disk are needed")
        sys.exit(SKIPPED)
    return compiler


class FailingFlush(unittest.TestCase):
    options = "commit=0,engine=cpu,access=mapped"

    def setUp(self):
        compiler = require_disk_and_compiler()
        self.pool = MountedPool(device_mib=32, device_count=1, check=False, parent=tempfile.gettempdir())
        self.addCleanup(self.pool.remove)
        library = os.path.join(self.pool.folder, "flush.so")
        source = os.path.join(self.pool.folder, "flush.c")
        with open(source, "w") as file:
            file.write(SOURCE)
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
        self.flag = os.path.join(self.pool.folder, "fail")
        os.environ["LD_PRELOAD"] = library
        os.environ["TEST_FAILING_FLUSH"] = self.flag
        self.addCleanup(os.environ.pop, "TEST_FAILING_FLUSH")
        try:
            self.pool.mount(self.options)
        finally:
            del os.environ["LD_PRELOAD"]

    def open(self, name, flags=os.O_RDWR | os.O_CREAT):
        return os.open(self.pool.path(name), flags, 0o644)

    def fails(self, number, call, *arguments):
        with self.assertRaises(OSError) as caught:
            call(*arguments)
        self.assertEqual(caught.exception.errno, number)

    def test_fsync_and_close_report_once_to_each(self):
        synced = self.open("synced")
        os.write(synced, b"durable")
        os.fsync(synced)
        reader = self.open("changed", os.O_RDONLY | os.O_CREAT)
        changed = self.open("changed")
        other = self.open("changed")
        unchanged = self.open("unchanged")
        os.fsync(unchanged)
        os.write(changed, b"lost")
        with open(self.flag, "w"):
            pass
        self.fails(errno.EIO, os.fsync, changed)
        self.fails(errno.EIO, os.close, other)
        os.close(changed)  # it has reported
        self.fails(errno.EROFS, self.open, "changed", os.O_RDWR)
        late = self.open("changed", os.O_RDONLY)
        os.close(late)
        os.close(unchanged)
        os.close(synced)
        os.close(reader)

    def test_close_alone_reports_and_changes_end(self):
        first = self.open("first")
        os.write(first, b"lost")
        copy = os.dup(first)
        second = self.open("second")
        os.write(second, b"lost too")
        with open(self.flag, "w"):
            pass
        self.fails(errno.EIO, os.fsync, second)
        self.fails(errno.EIO, os.close, copy)
        os.close(first)  # the same open file description
        os.close(second)
        self.fails(errno.EROFS, self.open, "third")
        self.fails(errno.EROFS, os.mkdir, self.pool.path("folder"))
        os.unlink(self.flag)
        self.fails(errno.EROFS, self.open, "third")
        done = subprocess.run([PROGRAM, "status", "--json", self.pool.mountpoint], capture_output=True, text=True)
        self.assertEqual(done.returncode, 4, done.stderr)
        status = json.loads(done.stdout)
        self.assertEqual(status["write_errors"], 1)
        self.assertEqual(status["devices"][0]["flush_errors"], 1)
        self.assertFalse(status["takes_changes"])

    def test_with_fast_close_fsync_reports(self):
        self.pool.umount()
        library = os.path.join(self.pool.folder, "flush.so")
        os.environ["LD_PRELOAD"] = library
        try:
            self.pool.mount(self.options + ",fast_close")
        finally:
            del os.environ["LD_PRELOAD"]
        file = self.open("file")
        os.write(file, b"lost")
        with open(self.flag, "w"):
            pass
        self.fails(errno.EIO, os.fsync, file)
        os.close(file)


class FailingFlushOfADirectDevice(FailingFlush):
    options = "commit=0,engine=cpu,access=direct"


if __name__ == "__main__":
    in_own_namespace()
    unittest.main()
