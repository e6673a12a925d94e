"""Every operation of the mount, with the same answers as a local file system of the kernel."""

import ctypes
import errno
import fcntl
import mmap
import os
import shutil
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from mounted_pool import MountedPool, in_own_namespace  # noqa: E402

pool = None
libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD = -100
RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
FALLOC_FL_KEEP_SIZE = 1
FALLOC_FL_PUNCH_HOLE = 2
FALLOC_FL_COLLAPSE_RANGE = 8
FALLOC_FL_ZERO_RANGE = 16


def setUpModule():
    global pool
    pool = MountedPool(device_mib=96, options="allow_other")
    pool.__enter__()


def tearDownModule():
    pool.__exit__(None, None, None)


def renameat2(source, target, flags):
    result = libc.renameat2(AT_FDCWD, source.encode(), AT_FDCWD, target.encode(), flags)
    if result != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


def fallocate(fd, mode, offset, length):
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if libc.fallocate(fd, mode, offset, length) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")


def link_open_file(fd, path):
    AT_SYMLINK_FOLLOW = 0x400
    source = f"/proc/self/fd/{fd}".encode()
    if libc.linkat(AT_FDCWD, source, AT_FDCWD, path.encode(), AT_SYMLINK_FOLLOW) != 0:
        raise OSError(ctypes.get_errno(), "linkat")


def write_file(path, data):
    with open(path, "wb") as file:
        file.write(data)


def read_file(path):
    with open(path, "rb") as file:
        return file.read()


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = pool.path(self.id().rsplit(".", 1)[1])
        os.mkdir(self.folder)

    def tearDown(self):
        shutil.rmtree(self.folder)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def assert_errno(self, number, function, *arguments, **keywords):
        with self.assertRaises(OSError) as context:
            function(*arguments, **keywords)
        self.assertEqual(errno.errorcode[context.exception.errno], errno.errorcode[number])


class Names(Case):
    def test_create_and_lookup(self):
        fd = os.open(self.path("a"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640)
        os.close(fd)
        status = os.stat(self.path("a"))
        self.assertEqual(stat.S_IMODE(status.st_mode), 0o640 & ~current_umask())
        self.assertEqual((status.st_size, status.st_nlink, status.st_blocks), (0, 1, 0))
        self.assert_errno(errno.EEXIST, os.open, self.path("a"), os.O_CREAT | os.O_EXCL)
        self.assert_errno(errno.ENOENT, os.stat, self.path("b"))
        write_file(self.path("b"), b"x")  # the kernel remembered that there was no "b"
        self.assertEqual(os.stat(self.path("b")).st_size, 1)
        self.assert_errno(errno.ENOTDIR, os.stat, self.path("a", "x"))

    def test_name_lengths(self):
        write_file(self.path("n" * 255), b"")
        self.assert_errno(errno.ENAMETOOLONG, os.mkdir, self.path("n" * 256))
        name = bytes(value for value in range(1, 256) if value != ord("/"))
        folder = os.fsencode(self.folder)
        write_file(os.path.join(folder, name), b"every byte")
        self.assertIn(name, os.listdir(folder))

    def test_unlink_keeps_open_file(self):
        write_file(self.path("a"), b"content")
        with open(self.path("a"), "r+b") as file:
            os.unlink(self.path("a"))
            self.assertEqual(os.fstat(file.fileno()).st_nlink, 0)
            file.write(b"CONTENT and more")
            file.seek(0)
            self.assertEqual(file.read(), b"CONTENT and more")
        self.assert_errno(errno.ENOENT, os.unlink, self.path("a"))

    def test_unlink_and_rmdir_types(self):
        os.mkdir(self.path("d"))
        write_file(self.path("f"), b"")
        self.assert_errno(errno.EISDIR, os.unlink, self.path("d"))
        self.assert_errno(errno.ENOTDIR, os.rmdir, self.path("f"))
        write_file(self.path("d", "x"), b"")
        self.assert_errno(errno.ENOTEMPTY, os.rmdir, self.path("d"))
        os.unlink(self.path("d", "x"))
        os.rmdir(self.path("d"))

    def test_directory_link_counts(self):
        before = os.stat(self.folder).st_nlink
        os.mkdir(self.path("d"))
        self.assertEqual(os.stat(self.folder).st_nlink, before + 1)
        self.assertEqual(os.stat(self.path("d")).st_nlink, 2)
        os.mkdir(self.path("e"))
        os.rename(self.path("d"), self.path("e", "d"))
        self.assertEqual(os.stat(self.folder).st_nlink, before + 1)
        self.assertEqual(os.stat(self.path("e")).st_nlink, 3)
        self.assertEqual(os.stat(self.path("e", "d", "..")).st_ino, os.stat(self.path("e")).st_ino)
        os.rmdir(self.path("e", "d"))
        self.assertEqual(os.stat(self.path("e")).st_nlink, 2)

    def test_hard_links(self):
        write_file(self.path("a"), b"1")
        first = os.stat(self.path("a"))
        os.link(self.path("a"), self.path("b"))
        self.assertEqual(os.stat(self.path("a")).st_nlink, 2)
        self.assertGreaterEqual(os.stat(self.path("a")).st_ctime_ns, first.st_ctime_ns)
        self.assertTrue(os.path.samefile(self.path("a"), self.path("b")))
        write_file(self.path("b"), b"longer")
        self.assertEqual(os.stat(self.path("a")).st_size, 6)
        os.unlink(self.path("a"))
        self.assertEqual(os.stat(self.path("b")).st_nlink, 1)
        self.assertEqual(read_file(self.path("b")), b"longer")
        os.mkdir(self.path("d"))
        self.assert_errno(errno.EPERM, os.link, self.path("d"), self.path("e"))
        self.assert_errno(errno.EEXIST, os.link, self.path("b"), self.path("d"))

    def test_symlinks(self):
        for length in (1, 100, 128, 129, 1000, 4095):
            target = "t" * length
            os.symlink(target, self.path("s"))
            self.assertEqual(os.readlink(self.path("s")), target)
            self.assertEqual(os.lstat(self.path("s")).st_size, length)
            os.unlink(self.path("s"))
        os.symlink("loop", self.path("loop"))
        self.assert_errno(errno.ELOOP, os.stat, self.path("loop"))
        write_file(self.path("real"), b"reached")
        os.symlink("real", self.path("s"))
        self.assertEqual(read_file(self.path("s")), b"reached")

    def test_special_files(self):
        os.mkfifo(self.path("fifo"))
        self.assertTrue(stat.S_ISFIFO(os.stat(self.path("fifo")).st_mode))
        with socket.socket(socket.AF_UNIX) as server:
            os.chdir(self.folder)
            server.bind("socket")
            os.chdir("/")
        self.assertTrue(stat.S_ISSOCK(os.stat(self.path("socket")).st_mode))
        if os.geteuid() == 0:
            os.mknod(self.path("null"), stat.S_IFCHR | 0o666, os.makedev(1, 3))
            status = os.stat(self.path("null"))
            self.assertEqual(status.st_rdev, os.makedev(1, 3))
            write_file(self.path("null"), b"gone")
            os.mknod(self.path("block"), stat.S_IFBLK | 0o600, os.makedev(259, 70000))
            self.assertEqual(os.stat(self.path("block")).st_rdev, os.makedev(259, 70000))


class Rename(Case):
    def test_over_existing(self):
        write_file(self.path("a"), b"new")
        write_file(self.path("b"), b"old")
        with open(self.path("b"), "rb") as old:
            os.rename(self.path("a"), self.path("b"))
            self.assertEqual(old.read(), b"old")
            self.assertEqual(os.fstat(old.fileno()).st_nlink, 0)
        self.assertEqual(read_file(self.path("b")), b"new")
        self.assert_errno(errno.ENOENT, os.stat, self.path("a"))

    def test_types(self):
        os.makedirs(self.path("full", "x"))
        os.mkdir(self.path("empty"))
        write_file(self.path("f"), b"")
        self.assert_errno(errno.ENOTEMPTY, os.rename, self.path("empty"), self.path("full"))
        self.assert_errno(errno.ENOTDIR, os.rename, self.path("empty"), self.path("f"))
        self.assert_errno(errno.EISDIR, os.rename, self.path("f"), self.path("empty"))
        os.rename(self.path("full"), self.path("empty"))
        self.assertEqual(os.listdir(self.path("empty")), ["x"])
        self.assert_errno(errno.EINVAL, os.rename, self.path("empty"), self.path("empty", "x", "y"))

    def test_same_inode(self):
        write_file(self.path("a"), b"")
        os.link(self.path("a"), self.path("b"))
        os.rename(self.path("a"), self.path("b"))  # POSIX: does nothing
        self.assertEqual(sorted(os.listdir(self.folder)), ["a", "b"])

    def test_noreplace_and_exchange(self):
        write_file(self.path("a"), b"a")
        os.mkdir(self.path("b"))
        write_file(self.path("b", "in"), b"")
        with self.assertRaises(OSError) as context:
            renameat2(self.path("a"), self.path("b"), RENAME_NOREPLACE)
        self.assertEqual(context.exception.errno, errno.EEXIST)
        renameat2(self.path("a"), self.path("b"), RENAME_EXCHANGE)
        self.assertEqual(os.listdir(self.path("a")), ["in"])
        self.assertEqual(read_file(self.path("b")), b"a")
        renameat2(self.path("b"), self.path("c"), RENAME_NOREPLACE)
        self.assertEqual(sorted(os.listdir(self.folder)), ["a", "c"])

    def test_across_directories_concurrently(self):
        for name in ("x", "y"):
            os.mkdir(self.path(name))
        write_file(self.path("x", "f"), b"still here")

        def move(source, target):
            for _ in range(200):
                try:
                    os.rename(self.path(source, "f"), self.path(target, "f"))
                except FileNotFoundError:
                    pass

        threads = [threading.Thread(target=move, args=pair) for pair in (("x", "y"), ("y", "x")) * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = [name for name in ("x", "y") if os.listdir(self.path(name)) == ["f"]]
        self.assertEqual(len(found), 1)
        self.assertEqual(read_file(self.path(found[0], "f")), b"still here")


class Content(Case):
    def test_sizes_and_offsets(self):
        data = os.urandom(3 << 20)
        for size in (0, 1, 127, 128, 129, 4095, 4096, 4097, 65536, (1 << 20) + 1, 3 << 20):
            write_file(self.path("f"), data[:size])
            self.assertEqual(os.stat(self.path("f")).st_size, size)
            self.assertEqual(read_file(self.path("f")), data[:size], size)

    def test_overwrite_parts(self):
        model = bytearray(os.urandom(300000))
        write_file(self.path("f"), model)
        fd = os.open(self.path("f"), os.O_RDWR)
        for offset, length in ((0, 1), (4095, 2), (4096, 4096), (10000, 70000), (299999, 5000)):
            piece = os.urandom(length)
            self.assertEqual(os.pwrite(fd, piece, offset), length)
            model[offset:offset + length] = piece
        drop_page_cache(fd)
        self.assertEqual(os.pread(fd, 1 << 20, 0), bytes(model))
        os.close(fd)

    def test_holes(self):
        fd = os.open(self.path("f"), os.O_RDWR | os.O_CREAT)
        os.pwrite(fd, b"end", 10 << 20)
        os.pwrite(fd, b"middle", 5 << 20)
        self.assertEqual(os.fstat(fd).st_size, (10 << 20) + 3)
        self.assertLess(os.fstat(fd).st_blocks * 512, 1 << 20)
        drop_page_cache(fd)
        self.assertEqual(os.pread(fd, 4096, 1 << 20), bytes(4096))
        self.assertEqual(os.lseek(fd, 0, os.SEEK_DATA), 5 << 20)
        self.assertEqual(os.lseek(fd, 5 << 20, os.SEEK_HOLE), (5 << 20) + 4096)
        self.assertEqual(os.lseek(fd, 10 << 20, os.SEEK_HOLE), (10 << 20) + 3)
        self.assert_errno(errno.ENXIO, os.lseek, fd, 11 << 20, os.SEEK_DATA)
        os.close(fd)

    def test_truncate(self):
        data = os.urandom(100000)
        write_file(self.path("f"), data)
        os.truncate(self.path("f"), 50001)
        os.truncate(self.path("f"), 90000)
        self.assertEqual(read_file(self.path("f")), data[:50001] + bytes(90000 - 50001))
        write_file(self.path("f"), b"")  # O_TRUNC
        self.assertEqual((os.stat(self.path("f")).st_size, os.stat(self.path("f")).st_blocks), (0, 0))

    def test_append_from_two_handles(self):
        files = [os.open(self.path("f"), os.O_WRONLY | os.O_CREAT | os.O_APPEND) for _ in range(2)]
        for i in range(50):
            os.write(files[i % 2], b"%04d" % i)
        for fd in files:
            os.close(fd)
        self.assertEqual(read_file(self.path("f")), b"".join(b"%04d" % i for i in range(50)))

    def test_direct_io(self):
        fd = os.open(self.path("f"), os.O_RDWR | os.O_CREAT | os.O_DIRECT)
        memory = mmap.mmap(-1, 2 << 20)
        memory[:] = os.urandom(2 << 20)
        self.assertEqual(os.writev(fd, [memory]), 2 << 20)
        back = mmap.mmap(-1, 2 << 20)
        self.assertEqual(os.preadv(fd, [back], 0), 2 << 20)
        self.assertEqual(memory[:], back[:])
        os.close(fd)

    def test_shared_mapping(self):
        write_file(self.path("f"), bytes(100000))
        with open(self.path("f"), "r+b") as file:
            with mmap.mmap(file.fileno(), 0) as mapping:
                mapping[70000:70005] = b"hello"
                mapping.flush()
                drop_page_cache(file.fileno())
                self.assertEqual(os.pread(file.fileno(), 5, 70000), b"hello")
                os.pwrite(file.fileno(), b"other", 8192)
                self.assertEqual(mapping[8192:8197], b"other")
                mapping[99999] = 7
        self.assertEqual(read_file(self.path("f"))[99999], 7)

    def test_fallocate(self):
        fd = os.open(self.path("f"), os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(fd, 0, 1 << 20)
        self.assertEqual(os.fstat(fd).st_size, 1 << 20)
        self.assertGreaterEqual(os.fstat(fd).st_blocks * 512, 1 << 20)
        self.assertEqual(os.pread(fd, 4096, 1 << 19), bytes(4096))
        fallocate(fd, FALLOC_FL_KEEP_SIZE, 1 << 20, 1 << 20)
        self.assertEqual(os.fstat(fd).st_size, 1 << 20)
        os.pwrite(fd, b"x" * 65536, 0)
        fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 8192)
        fallocate(fd, FALLOC_FL_ZERO_RANGE, 20480, 100)
        expected = b"x" * 4096 + bytes(8192) + b"x" * 8192 + bytes(100) + b"x" * (65536 - 20580)
        self.assertEqual(os.pread(fd, 65536, 0), expected)
        drop_page_cache(fd)
        self.assertEqual(os.pread(fd, 65536, 0), expected)
        self.assert_errno(errno.EOPNOTSUPP, fallocate, fd, FALLOC_FL_COLLAPSE_RANGE, 0, 4096)
        os.close(fd)

    def test_copy_file_range(self):
        data = os.urandom(1 << 20)
        write_file(self.path("a"), data)
        source = os.open(self.path("a"), os.O_RDONLY)
        target = os.open(self.path("b"), os.O_RDWR | os.O_CREAT)
        os.pwrite(target, b"z" * 10, 0)
        done = 0
        while done < 500000:
            done += os.copy_file_range(source, target, 500000 - done, 1000 + done, 5 + done)
        self.assertEqual(os.fstat(target).st_size, 500005)
        self.assertEqual(os.pread(target, 1 << 20, 0), b"z" * 5 + data[1000:501000])
        os.close(source)
        os.close(target)

    def test_temporary_file(self):
        fd = os.open(self.folder, os.O_TMPFILE | os.O_RDWR, 0o600)
        os.write(fd, b"no name yet")
        self.assertEqual(os.fstat(fd).st_nlink, 0)
        self.assertEqual(os.listdir(self.folder), [])
        link_open_file(fd, self.path("named"))
        self.assertEqual(os.fstat(fd).st_nlink, 1)
        os.close(fd)
        self.assertEqual(read_file(self.path("named")), b"no name yet")
        os.close(os.open(self.folder, os.O_TMPFILE | os.O_RDWR, 0o600))

    def test_fsync(self):
        fd = os.open(self.path("f"), os.O_WRONLY | os.O_CREAT)
        os.write(fd, b"safe")
        os.fsync(fd)
        os.fdatasync(fd)
        os.close(fd)
        folder = os.open(self.folder, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        os.sync()


class Attributes(Case):
    def test_times(self):
        write_file(self.path("f"), b"")
        os.utime(self.path("f"), ns=(1_111_111_111_222_333_444, 2_222_222_222_999_888_777))
        status = os.stat(self.path("f"))
        self.assertEqual(status.st_atime_ns, 1_111_111_111_222_333_444)
        self.assertEqual(status.st_mtime_ns, 2_222_222_222_999_888_777)
        now = time.time_ns()
        self.assertLess(abs(status.st_ctime_ns - now), 10_000_000_000)
        os.utime(self.path("f"))
        self.assertLess(abs(os.stat(self.path("f")).st_mtime_ns - time.time_ns()), 10_000_000_000)

    def test_times_before_1970_and_far_ones(self):
        write_file(self.path("f"), b"")
        first, last = -(2**31), 2**34 - 2**31 - 1
        dates = {
            "1901-12-13T20:45:52Z": first * 10**9,
            "1930-01-01T00:00:00.5Z": -1_262_304_000 * 10**9 + 500_000_000,
            "1969-12-31T23:59:59.999999999Z": -1,
            "1970-01-01T00:00:00Z": 0,
            "2446-05-10T22:38:55.999999999Z": last * 10**9 + 999_999_999,
            "1800-01-01T00:00:00Z": first * 10**9,
            "2500-01-01T00:00:00Z": last * 10**9 + 999_999_999,
        }
        for date, expected in dates.items():
            subprocess.run(["touch", "-d", date, self.path("f")], check=True)
            status = os.stat(self.path("f"))
            self.assertEqual((status.st_atime_ns, status.st_mtime_ns), (expected, expected), date)

    def test_times_change_with_operations(self):
        write_file(self.path("f"), b"old")
        past = (10**18, 10**18)
        os.utime(self.path("f"), ns=past)
        os.utime(self.folder, ns=past)
        with open(self.path("f"), "ab") as file:
            file.write(b"!")
        self.assertGreater(os.stat(self.path("f")).st_mtime_ns, 10**18)
        self.assertEqual(os.stat(self.folder).st_mtime_ns, 10**18)
        write_file(self.path("g"), b"")
        self.assertGreater(os.stat(self.folder).st_mtime_ns, 10**18)
        os.utime(self.folder, ns=past)
        os.unlink(self.path("g"))
        self.assertGreater(os.stat(self.folder).st_mtime_ns, 10**18)
        os.utime(self.path("f"), ns=past)
        os.truncate(self.path("f"), 1)
        self.assertGreater(os.stat(self.path("f")).st_mtime_ns, 10**18)

    def test_mode_and_owner(self):
        write_file(self.path("f"), b"")
        os.chmod(self.path("f"), 0o4751)
        self.assertEqual(stat.S_IMODE(os.stat(self.path("f")).st_mode), 0o4751)
        if os.geteuid() == 0:
            os.chown(self.path("f"), 1234, 5678)
            status = os.stat(self.path("f"))
            self.assertEqual((status.st_uid, status.st_gid), (1234, 5678))
            self.assertEqual(stat.S_IMODE(status.st_mode), 0o751)  # Linux takes set-user-id away

    def test_extended_attributes(self):
        write_file(self.path("f"), b"")
        self.assertEqual(os.listxattr(self.path("f")), [])
        os.setxattr(self.path("f"), "user.a", b"1")
        os.setxattr(self.path("f"), "user.empty", b"")
        os.setxattr(self.path("f"), "user.b", b"x" * 2000)
        self.assertEqual(sorted(os.listxattr(self.path("f"))), ["user.a", "user.b", "user.empty"])
        self.assertEqual(os.getxattr(self.path("f"), "user.b"), b"x" * 2000)
        self.assertEqual(os.getxattr(self.path("f"), "user.empty"), b"")
        os.setxattr(self.path("f"), "user.a", b"2", os.XATTR_REPLACE)
        self.assertEqual(os.getxattr(self.path("f"), "user.a"), b"2")
        self.assert_errno(errno.EEXIST, os.setxattr, self.path("f"), "user.a", b"", os.XATTR_CREATE)
        self.assert_errno(errno.ENODATA, os.setxattr, self.path("f"), "user.c", b"", os.XATTR_REPLACE)
        os.removexattr(self.path("f"), "user.a")
        self.assert_errno(errno.ENODATA, os.getxattr, self.path("f"), "user.a")
        self.assert_errno(errno.ENODATA, os.removexattr, self.path("f"), "user.a")

    def test_great_extended_attributes(self):
        """Linux's limits: 64 KiB a value, 64 KiB of names, short buffers are told the size."""
        path = self.path("f")
        write_file(path, b"")
        greatest = os.urandom(65536)
        os.setxattr(path, "user.great", greatest)
        self.assertEqual(os.getxattr(path, "user.great"), greatest)
        self.assert_errno(errno.E2BIG, os.setxattr, path, "user.great", greatest + b"x")
        self.assertEqual(os.getxattr(path, "user.great"), greatest)
        buffer = ctypes.create_string_buffer(65536)
        for size in (1, 4096, 65535):
            self.assertEqual(libc.getxattr(path.encode(), b"user.great", buffer, size), -1)
            self.assertEqual(ctypes.get_errno(), errno.ERANGE)
        self.assertEqual(libc.getxattr(path.encode(), b"user.great", None, 0), 65536)
        names = {"user.great"}
        for number in range(300):
            name = f"user.{number}.".ljust(255, "n")
            try:
                os.setxattr(path, name, b"1")
            except OSError as error:
                self.assertEqual(error.errno, errno.ENOSPC)
                break
            names.add(name)
        self.assertEqual(len(names), 256)
        self.assertEqual(set(os.listxattr(path)), names)
        self.assertEqual(libc.listxattr(path.encode(), buffer, 1000), -1)
        self.assertEqual(ctypes.get_errno(), errno.ERANGE)
        os.setxattr(path, "user.great", b"small")
        self.assertEqual(os.getxattr(path, "user.great"), b"small")
        for name in names:
            os.removexattr(path, name)
        self.assertEqual((os.listxattr(path), os.stat(path).st_blocks), ([], 0))

    def test_server_attributes(self):
        pid = int(os.getxattr(pool.mountpoint, "user.gpu4fs.server.pid"))
        with open(f"/proc/{pid}/comm") as file:
            self.assertEqual(file.read().strip()[:6], "gpu4fs")
        self.assert_errno(errno.EPERM, os.setxattr, pool.mountpoint, "user.gpu4fs.server.pid", b"1")

    def test_statfs(self):
        before = os.statvfs(self.folder)
        write_file(self.path("f"), os.urandom(4 << 20))
        after = os.statvfs(self.folder)
        self.assertEqual((before.f_bsize, before.f_namemax), (4096, 255))
        self.assertGreaterEqual(before.f_bfree - after.f_bfree, 1024)
        self.assertEqual(after.f_files - after.f_ffree, before.f_files - before.f_ffree + 1)


SOMEBODY = 1234
FALLOC_BEHIND_END = FALLOC_FL_KEEP_SIZE, 1 << 20, 4096


def as_somebody(action, groups=()):
    """Runs `action` in a process without rights; its exit status."""
    child = os.fork()
    if child == 0:
        status = 99
        try:
            os.setgroups(groups)
            os.setgid(SOMEBODY)
            os.setuid(SOMEBODY)
            action()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def access_list(other):
    """The value of system.posix_acl_access with one named user."""
    entries = [(1, 6, -1), (2, 6, 1235), (4, 4, -1), (0x10, 6, -1), (0x20, other, -1)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)


@unittest.skipIf(os.geteuid() != 0, "needs root to become somebody else")
class SetIdBits(Case):
    """A program that another user changes does not run as root, immediately and however it was changed."""

    def setUp(self):
        super().setUp()
        os.chmod(self.folder, 0o777)
        with open("/usr/bin/id", "rb") as file:
            self.program = file.read()
        write_file(self.path("copy"), self.program)

    def effective_uid(self, path):
        """The user as whom the program at `path` runs."""
        reader, writer = os.pipe()

        def run():
            os.dup2(writer, 1)
            os.execv(path, [path, "-u"])

        as_somebody(run)
        os.close(writer)
        with open(reader) as pipe:
            return int(pipe.read())

    def changed_program(self, change, mode=0o6777):
        path = self.path("program")
        write_file(path, self.program)
        os.chmod(path, mode)
        self.assertEqual(self.effective_uid(path), 0)
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), mode)

        def open_and_change():
            fd = os.open(path, os.O_RDWR)
            change(fd)
            os.close(fd)

        self.assertEqual(as_somebody(open_and_change), 0)
        self.assertEqual(self.effective_uid(path), SOMEBODY)
        return stat.S_IMODE(os.stat(path).st_mode)

    def test_write(self):
        self.assertEqual(self.changed_program(lambda fd: os.pwrite(fd, self.program[:100], 0)), 0o777)

    def test_write_without_page_cache(self):
        def change(fd):
            fcntl.fcntl(fd, fcntl.F_SETFL, os.O_DIRECT)
            page = mmap.mmap(-1, 4096)
            page[:] = self.program[:4096]
            os.pwritev(fd, [page], 0)

        self.assertEqual(self.changed_program(change), 0o777)

    def test_fallocate(self):
        self.assertEqual(self.changed_program(lambda fd: fallocate(fd, *FALLOC_BEHIND_END)), 0o777)

    def test_punched_hole(self):
        mode = FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
        self.assertEqual(self.changed_program(lambda fd: fallocate(fd, mode, 1 << 20, 4096)), 0o777)

    def test_truncation(self):
        self.assertEqual(self.changed_program(lambda fd: os.ftruncate(fd, len(self.program) + 1)), 0o777)

    def test_copy_file_range(self):
        def change(fd):
            source = os.open(self.path("copy"), os.O_RDONLY)
            os.copy_file_range(source, fd, 4096, 0, 0)

        self.assertEqual(self.changed_program(change), 0o777)

    def test_the_superuser_keeps_them(self):
        write_file(self.path("f"), b"x")
        os.chmod(self.path("f"), 0o6777)
        with open(self.path("f"), "r+b") as file:
            file.write(b"y")
            fallocate(file.fileno(), *FALLOC_BEHIND_END)
            os.ftruncate(file.fileno(), 100)
        self.assertEqual(stat.S_IMODE(os.stat(self.path("f")).st_mode), 0o6777)

    def test_the_superuser_without_the_capability_loses_them(self):
        write_file(self.path("f"), b"x")
        os.chmod(self.path("f"), 0o6777)
        subprocess.run(["setpriv", "--bounding-set", "-fsetid", "--inh-caps", "-fsetid", "dd", "if=/dev/zero", "bs=1",
                        "count=1", "conv=notrunc", f"of={self.path('f')}"], check=True, capture_output=True)
        self.assertEqual(stat.S_IMODE(os.stat(self.path("f")).st_mode), 0o777)

    def test_group_bit_of_a_file_that_is_no_program(self):
        changes = {
            "write": lambda fd: os.write(fd, b"changed"),
            "fallocate": lambda fd: fallocate(fd, *FALLOC_BEHIND_END),
            "truncate": lambda fd: os.ftruncate(fd, 5),
        }
        for name, change in changes.items():
            for gid, kept in ((0, 0), (SOMEBODY, stat.S_ISGID)):
                path = self.path(f"{name}-{gid}")
                write_file(path, b"")
                os.chown(path, -1, gid)
                os.chmod(path, 0o2666)
                self.assertEqual(as_somebody(lambda: change(os.open(path, os.O_RDWR))), 0)
                self.assertEqual(os.stat(path).st_mode & 0o7777, 0o666 | kept, path)

    def test_group_bit_after_a_new_owner_group(self):
        for gid, kept in ((0, 0), (SOMEBODY, stat.S_ISGID)):
            path = self.path(f"f{gid}")
            write_file(path, b"")
            os.chown(path, SOMEBODY, gid)
            os.chmod(path, 0o2664)
            self.assertEqual(as_somebody(lambda: os.chown(path, -1, 77), groups=[77]), 0)
            self.assertEqual(os.stat(path).st_mode & 0o7777, 0o664 | kept)

    def test_group_bit_after_a_new_access_list(self):
        for gid, kept in ((0, 0), (SOMEBODY, stat.S_ISGID)):
            path = self.path(f"f{gid}")
            write_file(path, b"")
            os.chown(path, SOMEBODY, gid)
            os.chmod(path, 0o2664)
            self.assertEqual(
                as_somebody(lambda: os.setxattr(path, "system.posix_acl_access", access_list(other=0))), 0)
            self.assertEqual(os.stat(path).st_mode & 0o7777, 0o660 | kept)


class Directories(Case):
    def test_listing(self):
        names = {f"name {i}" for i in range(3000)}
        for name in names:
            os.close(os.open(self.path(name), os.O_CREAT | os.O_WRONLY))
        self.assertEqual(set(os.listdir(self.folder)), names)
        with os.scandir(self.folder) as entries:
            for entry in entries:
                self.assertTrue(entry.is_file(follow_symlinks=False))
                self.assertEqual(entry.inode(), entry.stat(follow_symlinks=False).st_ino)

    def test_removal_while_listing(self):
        for i in range(2000):
            os.close(os.open(self.path(str(i)), os.O_CREAT | os.O_WRONLY))
        with os.scandir(self.folder) as entries:
            for entry in entries:
                os.unlink(entry.path)
        self.assertEqual(os.listdir(self.folder), [])

    def test_deep_tree(self):
        path = self.folder
        for i in range(60):
            path = os.path.join(path, f"level{i}")
            os.mkdir(path)
        write_file(os.path.join(path, "leaf"), b"deep")
        self.assertEqual(sum(len(files) for _, _, files in os.walk(self.folder)), 1)

    def test_parallel_creation(self):
        def create(part):
            for i in range(300):
                write_file(self.path(f"{part}-{i}"), b"%d" % i)

        threads = [threading.Thread(target=create, args=(part,)) for part in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(os.listdir(self.folder)), 1800)
        self.assertEqual(read_file(self.path("3-299")), b"299")


class Locks(Case):
    def test_flock_and_posix_locks_exclude(self):
        write_file(self.path("f"), b"")
        with open(self.path("f"), "r+b") as first, open(self.path("f"), "r+b") as second:
            fcntl.flock(first, fcntl.LOCK_EX)
            self.assert_errno(errno.EAGAIN, fcntl.flock, second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(first, fcntl.LOCK_UN)
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(first, fcntl.LOCK_EX)
            child = os.fork()
            if child == 0:
                try:
                    fcntl.lockf(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os._exit(1)
                except OSError as error:
                    os._exit(0 if error.errno in (errno.EAGAIN, errno.EACCES) else 2)
            self.assertEqual(os.waitpid(child, 0)[1], 0)


class Full(Case):
    def test_no_space_and_back(self):
        written = 0
        block = os.urandom(1 << 20)
        with open(self.path("big"), "wb", buffering=0) as file:
            with self.assertRaises(OSError) as context:
                while written < 1 << 30:
                    written += file.write(block)
            self.assertEqual(errno.errorcode[context.exception.errno], "ENOSPC")
        self.assertEqual(os.stat(self.path("big")).st_size, written)
        os.unlink(self.path("big"))
        write_file(self.path("after"), block)  # the space is there at once
        self.assertEqual(read_file(self.path("after")), block)


    def test_overwriting_when_almost_full(self):
        """New pages come only from pages that earlier overwrites freed, one checkpoint later."""
        block = os.urandom(1 << 20)
        with open(self.path("big"), "w+b", buffering=0) as file:
            with self.assertRaises(OSError):
                while True:
                    file.write(block)
            size = os.fstat(file.fileno()).st_size - (2 << 20)
            file.truncate(size)
            pieces = min(48, size >> 20)
            for i in range(pieces):
                piece = i.to_bytes(4, "little") + block[4:]
                done = 0
                while done < len(piece):
                    done += os.pwrite(file.fileno(), piece[done:], (i << 20) + done)
            drop_page_cache(file.fileno())
            for i in range(pieces):
                piece = os.pread(file.fileno(), 1 << 20, i << 20)
                self.assertEqual(int.from_bytes(piece[:4], "little"), i)
                self.assertEqual(piece[4:], block[4:])


def current_umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def drop_page_cache(fd):
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    in_own_namespace()
    unittest.main(verbosity=1)
