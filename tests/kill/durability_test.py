"""Each way to request durability, then a kill: everything made durable is present after the next mount.

fsync, fdatasync, O_SYNC, O_DSYNC, mappings with msync, fsync of a directory, and the mount options sync and dirsync.
"""

import mmap
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from mounted_pool import PROGRAM, MountedPool, in_own_namespace  # noqa: E402

DATA = bytes(range(256)) * 40


def write_file(path, flags=0, call=None):
    handle = os.open(path, os.O_CREAT | os.O_WRONLY | flags, 0o600)
    os.write(handle, DATA)
    if call:
        call(handle)
    os.close(handle)


def read_file(path):
    with open(path, "rb") as file:
        return file.read()


def expect(condition, what):
    if not condition:
        raise AssertionError(what)


def crash(pool, options=""):
    pool.kill_server()
    pool.mount(options)


def by_call(pool):
    ways = {
        "fsync": (0, os.fsync),
        "fdatasync": (0, os.fdatasync),
        "o_sync": (os.O_SYNC, None),
        "o_dsync": (os.O_DSYNC, None),
    }
    for name, (flags, call) in ways.items():
        write_file(pool.path(name), flags, call)
        crash(pool)
        expect(read_file(pool.path(name)) == DATA, f"{name}: the data is lost")


def by_mapping(pool):
    path = pool.path("mapped")
    write_file(path, call=os.fsync)
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[100:108] = b"12345678"
        memory.flush()
    crash(pool)
    expect(read_file(path)[100:108] == b"12345678", "msync: the data is lost")


def by_directory(pool):
    os.mkdir(pool.path("folder"))
    write_file(pool.path("folder", "a"))
    os.rename(pool.path("folder", "a"), pool.path("folder", "b"))
    handle = os.open(pool.path("folder"), os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
    crash(pool)
    expect(os.listdir(pool.path("folder")) == ["b"], "fsync of a directory: a rename is lost")


def by_option(pool):
    crash(pool, "sync")
    write_file(pool.path("sync"))
    os.rename(pool.path("sync"), pool.path("sync2"))
    os.chmod(pool.path("sync2"), 0o640)
    crash(pool, "dirsync")
    expect(read_file(pool.path("sync2")) == DATA, "sync: the data is lost")
    expect(os.stat(pool.path("sync2")).st_mode & 0o777 == 0o640, "sync: the mode is lost")
    os.mkdir(pool.path("dirsync"))
    os.link(pool.path("sync2"), pool.path("dirsync", "link"))
    os.unlink(pool.path("sync2"))
    crash(pool)
    expect(os.listdir(pool.path("dirsync")) == ["link"], "dirsync: a name is lost")
    expect(not os.path.exists(pool.path("sync2")), "dirsync: a removed name is back")


def reading_only(pool):
    """A waiting log is neither silently ignored nor written by a read-only mount."""
    write_file(pool.path("waiting"), call=os.fsync)
    pool.kill_server()
    words = [PROGRAM, "mount", "-o", "ro", ":".join(pool.devices), pool.mountpoint]
    done = subprocess.run(words, capture_output=True, text=True)
    expect(done.returncode != 0 and "norecovery" in done.stderr, f"ro mount: {done.returncode} {done.stderr}")
    pool.mount("ro,norecovery")
    expect(not os.path.exists(pool.path("waiting")), "norecovery: the log was replayed")
    pool.umount()
    words = [PROGRAM, "mount", "-o", "norecovery", ":".join(pool.devices), pool.mountpoint]
    expect(subprocess.run(words, capture_output=True).returncode == 1, "norecovery without ro is taken")
    done = subprocess.run([PROGRAM, "mount", ":".join(pool.devices), pool.mountpoint], capture_output=True, text=True)
    pool.is_mounted = True
    expect("recovery: log-replay" in done.stderr, f"the mount does not tell of its recovery: {done.stderr}")
    expect(read_file(pool.path("waiting")) == DATA, "the data is lost")


def main():
    with MountedPool(device_mib=64, options="commit=0") as pool:
        for test in (by_call, by_mapping, by_directory, by_option, reading_only):
            test(pool)
            print(f"{test.__name__}: passed")


if __name__ == "__main__":
    in_own_namespace()
    main()
