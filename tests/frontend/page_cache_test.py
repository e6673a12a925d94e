"""What reads through the kernel's page cache return together with direct writes."""

import ctypes
import errno
import mmap
import os
import struct
import sys
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from mounted_pool import MountedPool, in_own_namespace  # noqa: E402

pool = None
libc = ctypes.CDLL(None, use_errno=True)


def setUpModule():
    global pool
    pool = MountedPool(device_mib=64)
    pool.__enter__()


def tearDownModule():
    pool.__exit__(None, None, None)


class AsynchronousWrites:
    """Direct writes of whole pages by libaio's system calls."""

    SETUP, DESTROY, GETEVENTS, SUBMIT = 206, 207, 208, 209
    COMMAND_WRITE = 1

    def __enter__(self):
        self.context = ctypes.c_ulong(0)
        self.call(self.SETUP, 64, ctypes.byref(self.context))
        return self

    def __exit__(self, *_):
        self.call(self.DESTROY, self.context)

    @staticmethod
    def call(number, *arguments):
        result = libc.syscall(number, *arguments)
        if result < 0:
            raise OSError(ctypes.get_errno(), "libaio")
        return result

    def write(self, fd, pages):
        """`pages`: offset and aligned memory of each write. Returns when all are done."""
        blocks = []
        for offset, memory in pages:
            address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            fields = (0, 0, 0, self.COMMAND_WRITE, 0, fd, address, len(memory), offset, 0, 0, 0)
            blocks.append(ctypes.create_string_buffer(struct.pack("<QIIHhIQQqQII", *fields), 64))
        pointers = (ctypes.c_void_p * len(blocks))(*map(ctypes.addressof, blocks))
        if self.call(self.SUBMIT, self.context, len(blocks), pointers) != len(blocks):
            raise OSError(errno.EAGAIN, "io_submit")
        events = ctypes.create_string_buffer(32 * len(blocks))
        done = 0
        while done < len(blocks):
            done += self.call(self.GETEVENTS, self.context, 1, len(blocks) - done,
                              ctypes.byref(events, 32 * done), None)
        for i in range(done):
            written = struct.unpack_from("<QQqq", events, 32 * i)[2]
            if written != len(pages[0][1]):
                raise OSError(-written, "asynchronous write")


class PageCache(unittest.TestCase):
    def test_asynchronous_direct_writes_beside_buffered_readers(self):
        size, page = 64 << 10, 4096
        path = pool.path("f")
        with open(path, "wb") as file:
            file.write(bytes(size))
        stop = threading.Event()

        def read_all_the_time():
            with open(path, "rb", buffering=0) as file:
                while not stop.is_set():
                    os.pread(file.fileno(), size, 0)

        readers = [threading.Thread(target=read_all_the_time) for _ in range(3)]
        for reader in readers:
            reader.start()
        try:
            fd = os.open(path, os.O_RDWR | os.O_DIRECT)
            with AsynchronousWrites() as writes:
                memory = [mmap.mmap(-1, page) for _ in range(size // page)]
                for turn in range(1, 201):
                    for part in memory:
                        part[:] = bytes([turn]) * page
                    writes.write(fd, [(i * page, part) for i, part in enumerate(memory)])
                    with open(path, "rb") as file:
                        seen = set(file.read())
                    self.assertEqual(seen, {turn}, f"stale pages after turn {turn}")
            os.close(fd)
        finally:
            stop.set()
            for reader in readers:
                reader.join()


if __name__ == "__main__":
    in_own_namespace()
    unittest.main()
