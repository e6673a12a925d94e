"""Less common features: file handles, whiteouts and overlays, times of birth, flags of inodes, discarding, idmapped
mounts."""

import concurrent.futures
import ctypes
import errno
import fcntl
import mmap
import os
import stat
import struct
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from mounted_pool import MountedPool, in_own_namespace  # noqa: E402

libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD = -100
MAX_HANDLE = 128
RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
RENAME_WHITEOUT = 4
FS_IOC_GETFLAGS = 0x80086601
FS_IOC_SETFLAGS = 0x40086602
FS_IOC_FSGETXATTR = 0x801C581F
FS_IOC_FSSETXATTR = 0x401C5820
FITRIM = 0xC0185879
FS_IMMUTABLE_FL = 0x10
FS_APPEND_FL = 0x20
FS_NODUMP_FL = 0x40
FS_NOATIME_FL = 0x80
FS_COMPR_FL = 0x4
FS_XFLAG_APPEND = 0x10
FS_XFLAG_NODUMP = 0x80


def drop_caches():
    """Makes the kernel forget every unused name and inode."""
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("2")


class FileHandle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("kind", ctypes.c_int), ("data", ctypes.c_char * MAX_HANDLE)]


def handle_of(path):
    handle = FileHandle(bytes=MAX_HANDLE)
    mount = ctypes.c_int()
    if libc.name_to_handle_at(AT_FDCWD, os.fsencode(path), ctypes.byref(handle), ctypes.byref(mount), 0) != 0:
        raise OSError(ctypes.get_errno(), "name_to_handle_at")
    return handle


def open_handle(mountpoint, handle, flags=os.O_RDONLY):
    place = os.open(mountpoint, os.O_RDONLY | os.O_DIRECTORY)
    try:
        file = libc.open_by_handle_at(place, ctypes.byref(handle), flags)
        if file < 0:
            raise OSError(ctypes.get_errno(), "open_by_handle_at")
        return file
    finally:
        os.close(place)


def renameat2(source, target, flags):
    if libc.renameat2(AT_FDCWD, os.fsencode(source), AT_FDCWD, os.fsencode(target), flags) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


def write_file(path, content):
    with open(path, "w") as file:
        file.write(content)


def read_file(path):
    with open(path) as file:
        return file.read()


class PoolTest(unittest.TestCase):
    options = "allow_other"

    def setUp(self):
        self.pool = MountedPool(device_mib=64, options=self.options)
        self.addCleanup(self.pool.remove)
        self.pool.mount()

    def end(self):
        self.pool.umount()
        self.pool.fsck()

    def assert_error(self, error, function, *words):
        with self.assertRaises(OSError) as context:
            function(*words)
        self.assertEqual(context.exception.errno, error, context.exception)


class Handles(PoolTest):
    def content_of(self, handle):
        file = open_handle(self.pool.mountpoint, handle)
        with os.fdopen(file) as opened:
            return opened.read()

    def test_files_are_found_by_handle(self):
        os.makedirs(self.pool.path("a/b/c"))
        write_file(self.pool.path("a/b/c/file"), "content")
        handle = handle_of(self.pool.path("a/b/c/file"))
        self.assertEqual(self.content_of(handle), "content")
        drop_caches()
        self.assertEqual(self.content_of(handle), "content")
        os.rename(self.pool.path("a/b"), self.pool.path("moved"))
        drop_caches()
        self.assertEqual(self.content_of(handle), "content")
        self.pool.remount()
        self.assertEqual(self.content_of(handle), "content")
        self.end()

    def test_directories_are_found_with_their_parents(self):
        os.makedirs(self.pool.path("a/b/c"))
        write_file(self.pool.path("a/b/c/file"), "content")
        handle = handle_of(self.pool.path("a/b/c"))
        self.pool.remount()
        place = open_handle(self.pool.mountpoint, handle, os.O_RDONLY | os.O_DIRECTORY)
        self.assertEqual(os.readlink(f"/proc/self/fd/{place}"), self.pool.path("a/b/c"))
        self.assertEqual(os.listdir(place), ["file"])
        self.assertEqual(os.stat("..", dir_fd=place).st_ino, os.stat(self.pool.path("a/b")).st_ino)
        os.close(place)
        self.end()

    def test_handles_of_deleted_files_are_stale(self):
        write_file(self.pool.path("file"), "content")
        os.mkdir(self.pool.path("dir"))
        handles = [handle_of(self.pool.path("file")), handle_of(self.pool.path("dir"))]
        os.unlink(self.pool.path("file"))
        os.rmdir(self.pool.path("dir"))
        for _ in range(2):
            for handle in handles:
                self.assert_error(errno.ESTALE, open_handle, self.pool.mountpoint, handle)
            drop_caches()
        # The same number with another generation is another file.
        for number in range(200):
            write_file(self.pool.path(f"file{number}"), "other")
        drop_caches()
        for handle in handles:
            self.assert_error(errno.ESTALE, open_handle, self.pool.mountpoint, handle)
        self.end()

    def test_a_deleted_file_is_found_while_it_is_open(self):
        with open(self.pool.path("file"), "w+") as file:
            file.write("content")
            file.flush()
            handle = handle_of(self.pool.path("file"))
            os.unlink(self.pool.path("file"))
            drop_caches()
            try:
                self.assertEqual(self.content_of(handle), "content")
            except OSError as error:
                self.assertEqual(error.errno, errno.ESTALE)
        # The kernel releases a closed file when the mount has got the request.
        for _ in range(100000):
            try:
                os.close(open_handle(self.pool.mountpoint, handle))
            except OSError as error:
                self.assertEqual(error.errno, errno.ESTALE)
                break
        else:
            self.fail("the file is found for ever")
        self.end()

    def test_numbers_that_no_file_has_are_stale(self):
        write_file(self.pool.path("file"), "content")
        handle = handle_of(self.pool.path("file"))
        own = struct.unpack_from("<III", ctypes.string_at(ctypes.addressof(handle) + 8, 12))
        for number in (0, 2, 3, 4, 1 << 40, (1 << 64) - 1):
            data = struct.pack("<III", number >> 32, number & 0xFFFFFFFF, own[2])
            ctypes.memmove(ctypes.addressof(handle) + 8, data, len(data))
            self.assert_error(errno.ESTALE, open_handle, self.pool.mountpoint, handle)
        self.end()


class Whiteouts(PoolTest):
    def assert_whiteout(self, path):
        found = os.stat(path, follow_symlinks=False)
        self.assertEqual((found.st_mode, found.st_rdev, found.st_nlink), (stat.S_IFCHR, 0, 1))

    def test_a_rename_leaves_one(self):
        write_file(self.pool.path("file"), "content")
        renameat2(self.pool.path("file"), self.pool.path("new"), RENAME_WHITEOUT)
        self.assertEqual(read_file(self.pool.path("new")), "content")
        self.assert_whiteout(self.pool.path("file"))
        write_file(self.pool.path("other"), "other")
        renameat2(self.pool.path("new"), self.pool.path("other"), RENAME_WHITEOUT)
        self.assertEqual(read_file(self.pool.path("other")), "content")
        self.assert_whiteout(self.pool.path("new"))
        os.makedirs(self.pool.path("dir/sub"))
        os.mkdir(self.pool.path("target"))
        renameat2(self.pool.path("dir/sub"), self.pool.path("target/sub"), RENAME_WHITEOUT | RENAME_NOREPLACE)
        self.assert_whiteout(self.pool.path("dir/sub"))
        self.assertEqual((os.stat(self.pool.path("dir")).st_nlink, os.stat(self.pool.path("target")).st_nlink), (2, 3))
        self.assert_error(errno.EINVAL, renameat2, self.pool.path("other"), self.pool.path("dir"),
                          RENAME_WHITEOUT | RENAME_EXCHANGE)
        drop_caches()
        self.assert_whiteout(self.pool.path("file"))
        self.assertEqual(sorted(os.listdir(self.pool.mountpoint)), ["dir", "file", "new", "other", "target"])
        for name in ("file", "new", "dir/sub"):
            os.unlink(self.pool.path(name))
        self.end()

    def test_it_is_replayed_after_a_crash(self):
        self.pool.umount()
        self.pool.mount("commit=0")
        write_file(self.pool.path("file"), "content")
        write_file(self.pool.path("target"), "other")
        os.mkdir(self.pool.path("dir"))
        renameat2(self.pool.path("file"), self.pool.path("dir/new"), RENAME_WHITEOUT)
        renameat2(self.pool.path("dir/new"), self.pool.path("target"), RENAME_WHITEOUT)
        numbers = {name: os.stat(self.pool.path(name)).st_ino for name in ("file", "dir/new", "target")}
        write_file(self.pool.path("last"), "")
        place = os.open(self.pool.mountpoint, os.O_RDONLY)
        os.fsync(place)
        os.close(place)
        self.pool.kill_server()
        self.pool.mount()
        for name, number in numbers.items():
            self.assertEqual(os.stat(self.pool.path(name)).st_ino, number)
        self.assert_whiteout(self.pool.path("file"))
        self.assert_whiteout(self.pool.path("dir/new"))
        self.assertEqual(read_file(self.pool.path("target")), "content")
        self.end()

    def test_an_overlay_has_it_as_its_upper_layer(self):
        lower = os.path.join(self.pool.folder, "lower")
        merged = os.path.join(self.pool.folder, "merged")
        os.makedirs(os.path.join(lower, "dir"))
        os.mkdir(merged)
        for name in ("a", "b", "dir/c"):
            write_file(os.path.join(lower, name), name)
        for name in ("upper", "work"):
            os.mkdir(self.pool.path(name))
        options = f"lowerdir={lower},upperdir={self.pool.path('upper')},workdir={self.pool.path('work')}"
        subprocess.run(["mount", "-t", "overlay", "none", merged, "-o", options], check=True)
        try:
            os.rename(os.path.join(merged, "a"), os.path.join(merged, "dir/a"))
            os.unlink(os.path.join(merged, "b"))
            write_file(os.path.join(merged, "dir/c"), "changed")
            self.assertEqual(sorted(os.listdir(merged)), ["dir"])
            self.assertEqual(sorted(os.listdir(os.path.join(merged, "dir"))), ["a", "c"])
            self.assertEqual(read_file(os.path.join(merged, "dir/a")), "a")
        finally:
            subprocess.run(["umount", merged], check=True)
        for name in ("upper/a", "upper/b"):
            found = os.stat(self.pool.path(name))
            self.assertEqual((found.st_mode, found.st_rdev), (stat.S_IFCHR, 0))
        self.assertEqual(read_file(self.pool.path("upper/dir/c")), "changed")
        self.end()


class Births(PoolTest):
    def test_the_time_of_birth_stays(self):
        before = time.time()
        write_file(self.pool.path("file"), "content")
        os.utime(self.pool.path("file"), (1, 1))
        os.chmod(self.pool.path("file"), 0o600)
        birth = self.birth(self.pool.path("file"))
        self.assertTrue(int(before) <= birth <= time.time() + 1, birth)
        self.pool.remount()
        self.assertEqual(self.birth(self.pool.path("file")), birth)
        done = subprocess.run(["stat", "--format=%F %a %s %Y", self.pool.path("file")], capture_output=True, text=True)
        self.assertEqual(done.stdout, "regular file 600 7 1\n")
        self.end()

    def birth(self, path):
        done = subprocess.run(["stat", "--format=%W", path], capture_output=True, text=True, check=True)
        return int(done.stdout)


class FlagsTest(PoolTest):
    def control(self, path, number, value):
        file = os.open(path, os.O_RDONLY)
        try:
            return fcntl.ioctl(file, number, value)
        finally:
            os.close(file)

    def flags(self, path):
        return struct.unpack("<I", self.control(path, FS_IOC_GETFLAGS, bytes(8))[:4])[0]

    def set_flags(self, path, flags):
        self.control(path, FS_IOC_SETFLAGS, struct.pack("<Q", flags))

    def append(self, path, content):
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            self.assertEqual(os.write(file, content), len(content))
        finally:
            os.close(file)


class Flags(FlagsTest):
    def test_they_are_set_and_stay(self):
        write_file(self.pool.path("file"), "content")
        os.mkdir(self.pool.path("dir"))
        for path in (self.pool.path("file"), self.pool.path("dir")):
            self.assertEqual(self.flags(path), 0)
            for flags in (FS_NODUMP_FL, FS_NOATIME_FL, FS_IMMUTABLE_FL, FS_APPEND_FL | FS_NODUMP_FL):
                self.set_flags(path, flags)
                self.assertEqual(self.flags(path), flags)
        self.pool.remount()
        self.assertEqual(self.flags(self.pool.path("file")), FS_APPEND_FL | FS_NODUMP_FL)
        fields = struct.unpack("<IIIII8s", self.control(self.pool.path("file"), FS_IOC_FSGETXATTR, bytes(28)))
        self.assertEqual(fields, (FS_XFLAG_APPEND | FS_XFLAG_NODUMP, 0, 0, 0, 0, bytes(8)))
        self.control(self.pool.path("file"), FS_IOC_FSSETXATTR, struct.pack("<IIIII8s", 0, 0, 0, 0, 0, bytes(8)))
        self.set_flags(self.pool.path("dir"), 0)
        self.assertEqual((self.flags(self.pool.path("file")), self.flags(self.pool.path("dir"))), (0, 0))
        self.end()

    def test_unknown_ones_are_refused(self):
        write_file(self.pool.path("file"), "content")
        self.assert_error(errno.EOPNOTSUPP, self.set_flags, self.pool.path("file"), FS_COMPR_FL)
        project = struct.pack("<IIIII8s", 0, 0, 0, 7, 0, bytes(8))
        self.assert_error(errno.EOPNOTSUPP, self.control, self.pool.path("file"), FS_IOC_FSSETXATTR, project)
        self.assertEqual(self.flags(self.pool.path("file")), 0)
        self.assert_error(errno.ENOTTY, self.control, self.pool.path("file"), 0x80086699, bytes(8))
        self.end()

    def test_the_owner_sets_nodump_and_no_more(self):
        write_file(self.pool.path("file"), "content")
        os.chown(self.pool.path("file"), 1001, 1001)
        os.chmod(self.pool.path("file"), 0o600)
        for flags, expected in ((FS_NOATIME_FL, 0), (FS_NODUMP_FL, 0), (FS_IMMUTABLE_FL, errno.EPERM),
                                (FS_APPEND_FL, errno.EPERM)):
            child = os.fork()
            if child == 0:
                os.setgid(1001)
                os.setuid(1001)
                try:
                    self.set_flags(self.pool.path("file"), flags)
                except OSError as error:
                    os._exit(error.errno)
                os._exit(0)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), expected)
        self.assertEqual(self.flags(self.pool.path("file")), FS_NODUMP_FL)
        self.end()

    def test_what_they_forbid(self):
        file, folder = self.pool.path("file"), self.pool.path("dir")
        write_file(file, "content")
        os.mkdir(folder)
        write_file(self.pool.path("dir/inside"), "content")

        def change(path, flags):
            opened = os.open(path, flags)
            try:
                os.write(opened, b"more")
            finally:
                os.close(opened)

        refused_of_both = (lambda: change(file, os.O_WRONLY), lambda: change(file, os.O_RDWR),
                           lambda: change(file, os.O_WRONLY | os.O_TRUNC), lambda: os.truncate(file, 0),
                           lambda: os.chmod(file, 0o600), lambda: os.chown(file, 1, 1), lambda: os.unlink(file),
                           lambda: os.utime(file, (1, 1)), lambda: os.setxattr(file, "user.x", b"1"),
                           lambda: os.rename(file, self.pool.path("other")),
                            lambda: os.link(file, self.pool.path("other")),
                           lambda: os.unlink(self.pool.path("dir/inside")), lambda: os.rmdir(folder))
        for flags in (FS_APPEND_FL, FS_IMMUTABLE_FL):
            self.set_flags(file, flags)
            self.set_flags(folder, flags)
            for operation in refused_of_both:
                self.assert_error(errno.EPERM, operation)
            self.assertEqual(read_file(file), "content")
        self.assert_error(errno.EPERM, change, file, os.O_WRONLY | os.O_APPEND)
        self.assert_error(errno.EPERM, write_file, self.pool.path("dir/new"), "")
        self.set_flags(file, FS_APPEND_FL)
        self.set_flags(folder, FS_APPEND_FL)
        change(file, os.O_WRONLY | os.O_APPEND)
        write_file(self.pool.path("dir/new"), "")
        self.set_flags(file, 0)
        self.set_flags(folder, 0)
        self.assertEqual(read_file(file), "contentmore")
        for operation in refused_of_both[2:4]:
            operation()
        self.end()

    def test_a_file_that_is_append_only_is_not_mapped_for_writing(self):
        file = self.pool.path("file")
        write_file(file, "content")

        def change_by_mapping(flags):
            opened = os.open(file, flags)
            try:
                with mmap.mmap(opened, 7) as mapping:
                    mapping[0:1] = b"C"
            finally:
                os.close(opened)

        change_by_mapping(os.O_RDWR)
        self.set_flags(file, FS_APPEND_FL)
        self.assert_error(errno.ENODEV, change_by_mapping, os.O_RDWR | os.O_APPEND)
        with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 7, prot=mmap.PROT_READ) as mapping:
            self.assertEqual(mapping[:], b"Content")
            self.append(file, b" and more")
            self.assertEqual(opened.read(), b"Content and more")
        self.set_flags(file, 0)
        change_by_mapping(os.O_RDWR)
        self.end()

    def test_what_was_stored_by_a_mapping_before_stays(self):
        size = 300 * 4096
        for flags in (FS_IMMUTABLE_FL, FS_APPEND_FL):
            file = self.pool.path(f"file{flags}")
            write_file(file, "-" * size)
            opened = os.open(file, os.O_RDWR)
            mapping = mmap.mmap(opened, size)
            os.close(opened)
            for offset in range(0, size, 4096):
                mapping[offset:offset + 4] = b"data"
            self.set_flags(file, flags)
            expected = ("data" + "-" * 4092) * 300
            self.assertEqual(read_file(file), expected)
            mapping.close()
            self.pool.remount()
            self.assertEqual(read_file(file), expected)
        self.end()

    def test_many_are_set_at_once(self):
        """More requests than threads, all with pages that have to be written back."""
        paths = [self.pool.path(f"file{i}") for i in range(64)]
        for path in paths:
            write_file(path, "-" * 4096)
        mappings = []
        for path in paths:
            with open(path, "r+b") as file:
                mappings.append(mmap.mmap(file.fileno(), 4096))
            mappings[-1][0:4] = b"data"
        with concurrent.futures.ThreadPoolExecutor(len(paths)) as pool:
            list(pool.map(lambda path: self.set_flags(path, FS_IMMUTABLE_FL), paths))
        for mapping in mappings:
            mapping.close()
        self.pool.remount()
        for path in paths:
            self.assertEqual(read_file(path), "data" + "-" * 4092)
        self.end()

    def test_discarding_has_nothing_to_do(self):
        whole = struct.pack("<QQQ", 0, (1 << 64) - 1, 0)
        answer = self.control(self.pool.mountpoint, FITRIM, whole)
        self.assertEqual(struct.unpack("<QQQ", answer), (0, 0, 0))
        self.assert_error(errno.EINVAL, self.control, self.pool.mountpoint, FITRIM,
                          struct.pack("<QQQ", 1 << 60, 1 << 20, 0))
        self.pool.remount("ro")
        self.assert_error(errno.EROFS, self.control, self.pool.mountpoint, FITRIM, whole)
        self.end()


class FlagsWithWriteback(FlagsTest):
    options = "allow_other,writeback"

    def test_those_that_forbid_are_not_set(self):
        file = self.pool.path("file")
        write_file(file, "content")
        for flags in (FS_APPEND_FL, FS_IMMUTABLE_FL, FS_IMMUTABLE_FL | FS_NODUMP_FL):
            self.assert_error(errno.EOPNOTSUPP, self.set_flags, file, flags)
            extended = struct.pack("<IIIII8s", FS_XFLAG_APPEND, 0, 0, 0, 0, bytes(8))
            self.assert_error(errno.EOPNOTSUPP, self.control, file, FS_IOC_FSSETXATTR, extended)
            self.assertEqual(self.flags(file), 0)
        self.set_flags(file, FS_NODUMP_FL)
        self.assertEqual(self.flags(file), FS_NODUMP_FL)
        self.append(file, b" and more")
        self.pool.remount()
        self.assertEqual(read_file(file), "content and more")
        self.end()

    def test_those_of_another_mount_hold(self):
        fixed, log = self.pool.path("fixed"), self.pool.path("log")
        self.pool.remount("allow_other")
        write_file(fixed, "content")
        write_file(log, "content")
        self.set_flags(fixed, FS_IMMUTABLE_FL)
        self.set_flags(log, FS_APPEND_FL)
        self.pool.remount()
        self.assert_error(errno.EPERM, write_file, fixed, "other")
        self.assert_error(errno.EPERM, write_file, log, "other")
        # The kernel would hold it back together with the preceding bytes of the page.
        for text in (b" and", b" more"):
            self.append(log, text)
        self.assertEqual(read_file(log), "content and more")
        self.pool.remount()
        self.assertEqual((read_file(fixed), read_file(log)), ("content", "content and more"))
        for path in (fixed, log):
            self.set_flags(path, 0)
            write_file(path, "other")
        self.pool.remount()
        self.assertEqual((read_file(fixed), read_file(log)), ("other", "other"))
        self.end()


class FlagsWithFastClose(FlagsTest):
    options = "allow_other,fast_close"

    def test_changes_are_refused(self):
        file = self.pool.path("file")
        write_file(file, "content")
        for flags in (FS_APPEND_FL, FS_IMMUTABLE_FL):
            self.set_flags(file, flags)
            opened = os.open(file, os.O_RDWR)
            self.assert_error(errno.EPERM, os.pwrite, opened, b"other", 0)
            self.assert_error(errno.EPERM, os.ftruncate, opened, 0)
            os.close(opened)
        self.set_flags(file, FS_APPEND_FL)
        self.append(file, b" and more")
        self.assertEqual(read_file(file), "content and more")
        self.end()


class IdentityMapped(PoolTest):
    options = "allow_other,idmap"

    def test_owners_are_mapped(self):
        write_file(self.pool.path("file"), "content")
        os.chown(self.pool.path("file"), 1000, 1000)
        os.mkdir(self.pool.path("dir"))
        os.chown(self.pool.path("dir"), 1000, 1000)
        mapped = os.path.join(self.pool.folder, "mapped")
        os.mkdir(mapped)
        self.bind(mapped)
        try:
            found = os.stat(os.path.join(mapped, "file"))
            self.assertEqual((found.st_uid, found.st_gid), (2000, 2000))
            done = subprocess.run(["touch", os.path.join(mapped, "dir/new")], user=2000, group=2000, extra_groups=[],
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
        finally:
            subprocess.run(["umount", mapped], check=True)
        found = os.stat(self.pool.path("dir/new"))
        self.assertEqual((found.st_uid, found.st_gid), (1000, 1000))
        self.end()

    def test_the_superuser_is_known(self):
        """The kernel does not name callers. FITRIM and the list of attributes are for CAP_SYS_ADMIN, as with ext4."""
        write_file(self.pool.path("file"), "content")
        os.chmod(self.pool.mountpoint, 0o755)
        os.setxattr(self.pool.path("file"), "trusted.secret", b"1")
        os.setxattr(self.pool.path("file"), "user.open", b"1")
        mapped = os.path.join(self.pool.folder, "mapped")
        os.mkdir(mapped)
        self.bind(mapped)
        try:
            for place in (self.pool.mountpoint, mapped):
                self.assertEqual(self.seen(place), ["trusted.secret", "user.open", "trimmed"], place)
                for user, leaves_users in ((2000, False), (0, True), (2000, True)):
                    self.assertEqual(self.seen(place, user, leaves_users), ["user.open", "EPERM"],
                                     (place, user, leaves_users))
        finally:
            subprocess.run(["umount", mapped], check=True)
        self.end()

    def seen(self, place, user=0, leaves_users=False):
        """What a process of the user gets: names of attributes, and the answer to FITRIM.

        It may be in its own namespace of
        users, where it has all rights."""
        new_users = 0x10000000
        answer, end = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                if user != 0:
                    os.setgroups([])
                    os.setgid(user)
                    os.setuid(user)
                if leaves_users and libc.unshare(new_users) != 0:
                    os._exit(1)
                words = sorted(os.listxattr(os.path.join(place, "file")))
                try:
                    fcntl.ioctl(os.open(place, os.O_RDONLY), FITRIM, struct.pack("<QQQ", 0, (1 << 64) - 1, 0))
                    words.append("trimmed")
                except OSError as error:
                    words.append(errno.errorcode[error.errno])
                os.write(end, " ".join(words).encode())
            finally:
                os._exit(0)
        os.close(end)
        with os.fdopen(answer) as file:
            words = file.read().split()
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        return words

    def bind(self, mapped):
        """User 1000 of the mount is 2000 there: open_tree(2), mount_setattr(2), move_mount(2)."""
        child = subprocess.Popen(["unshare", "--user", "sleep", "1000"])
        try:
            own = os.readlink("/proc/self/ns/user")
            while os.readlink(f"/proc/{child.pid}/ns/user") == own:
                os.sched_yield()
            for name in ("uid_map", "gid_map"):
                with open(f"/proc/{child.pid}/{name}", "w") as file:
                    file.write("1000 2000 1")
            users = os.open(f"/proc/{child.pid}/ns/user", os.O_RDONLY)
        finally:
            child.kill()
            child.wait()
        open_tree, move_mount, mount_setattr = 428, 429, 442
        at_empty_path, clone, mount_attr_idmap = 0x1000, 1, 0x100000
        tree = libc.syscall(open_tree, AT_FDCWD, os.fsencode(self.pool.mountpoint), clone | os.O_CLOEXEC)
        self.assertGreaterEqual(tree, 0, ctypes.get_errno())
        attributes = struct.pack("<QQQQ", mount_attr_idmap, 0, 0, users)
        self.assertEqual(libc.syscall(mount_setattr, tree, b"", at_empty_path, attributes, len(attributes)), 0,
                         os.strerror(ctypes.get_errno()))
        self.assertEqual(libc.syscall(move_mount, tree, b"", AT_FDCWD, os.fsencode(mapped), 4), 0, ctypes.get_errno())
        os.close(users)
        os.close(tree)


if __name__ == "__main__":
    # Handles, overlays and idmapped mounts need the privilege to mount.
    in_own_namespace(is_needed=True)
    unittest.main()
