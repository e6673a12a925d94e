"""Random operations on a file through the mount, compared with a byte string after every step.

write, append, truncate, punch, zero range, allocate, mapped write, copy_file_range, fsync, reads with and
without the page cache, remounts. A failure prints the seed; `file_walk_test.py SEED` repeats the walk.
"""

import ctypes
import errno
import mmap
import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from mounted_pool import MountedPool, in_own_namespace, scale  # noqa: E402

SIZE_MAX = 6 << 20
KEEP_SIZE, PUNCH, ZERO = 1, 2, 16
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


class Walk:
    def __init__(self, pool, seed):
        self.pool = pool
        self.random = random.Random(seed)
        self.model = bytearray()
        self.fd = os.open(pool.path("walk"), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self.steps = {
            self.write: 8, self.small_write: 8, self.truncate: 3, self.punch: 3, self.zero: 2,
            self.allocate: 2, self.map_write: 3, self.copy: 2, self.sync: 2, self.drop_cache: 4,
            self.remount: 0.3,
        }

    def place(self, length_max):
        """An offset and a length, often at page or 2 MiB boundaries."""
        unit = self.random.choice((1, 1, 512, 4096, 4096, 2 << 20))
        offset = self.random.randrange(SIZE_MAX) // unit * unit
        length = self.random.randrange(1, length_max + 1)
        if self.random.random() < 0.5:
            length = (length + 4095) // 4096 * 4096
        return offset, min(length, SIZE_MAX - offset) or 1

    def fill(self, offset, data):
        if offset > len(self.model):
            self.model.extend(bytes(offset - len(self.model)))
        self.model[offset:offset + len(data)] = data

    def write_at(self, offset, length):
        data = self.random.randbytes(length)
        done = 0
        while done < length:
            done += os.pwrite(self.fd, data[done:], offset + done)
        self.fill(offset, data)

    def write(self):
        self.write_at(*self.place(3 << 20))

    def small_write(self):
        self.write_at(*self.place(self.random.choice((1, 100, 5000, 40000))))

    def truncate(self):
        size = self.random.choice((0, 100, 128, 129, self.place(1)[0], self.place(1)[0]))
        os.ftruncate(self.fd, size)
        if size < len(self.model):
            del self.model[size:]
        else:
            self.model.extend(bytes(size - len(self.model)))

    def fallocate(self, mode, offset, length):
        if libc.fallocate(self.fd, mode, offset, length) != 0:
            raise OSError(ctypes.get_errno(), "fallocate")

    def punch(self):
        offset, length = self.place(3 << 20)
        self.fallocate(PUNCH | KEEP_SIZE, offset, length)
        end = min(offset + length, len(self.model))
        if offset < end:
            self.model[offset:end] = bytes(end - offset)

    def zero(self):
        offset, length = self.place(1 << 20)
        self.fallocate(ZERO, offset, length)
        self.fill(offset, bytes(length))

    def allocate(self):
        offset, length = self.place(3 << 20)
        self.fallocate(0, offset, length)
        if offset + length > len(self.model):
            self.model.extend(bytes(offset + length - len(self.model)))

    def map_write(self):
        if not self.model:
            return
        with mmap.mmap(self.fd, len(self.model)) as mapping:
            for _ in range(self.random.randrange(1, 10)):
                offset = self.random.randrange(len(self.model))
                data = self.random.randbytes(min(self.random.randrange(1, 5000), len(self.model) - offset))
                mapping[offset:offset + len(data)] = data
                self.model[offset:offset + len(data)] = data

    def copy(self):
        if not self.model:
            return
        source = self.random.randrange(len(self.model))
        target, length = self.place(1 << 20)
        length = min(length, len(self.model) - source)
        if abs(source - target) < length:
            return  # overlapping ranges of one file are EINVAL
        data = bytes(self.model[source:source + length])
        done = 0
        while done < length:
            done += os.copy_file_range(self.fd, self.fd, length - done, source + done, target + done)
        self.fill(target, data)

    def sync(self):
        os.fsync(self.fd)

    def drop_cache(self):
        os.fsync(self.fd)
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def remount(self):
        os.close(self.fd)
        self.pool.remount()
        self.fd = os.open(self.pool.path("walk"), os.O_RDWR)

    def check(self, step):
        assert os.fstat(self.fd).st_size == len(self.model), f"{step}: size"
        got = os.pread(self.fd, SIZE_MAX + 1, 0)
        while len(got) < len(self.model):
            more = os.pread(self.fd, SIZE_MAX + 1, len(got))
            assert more, f"{step}: the file ends at {len(got)}"
            got += more
        if got != self.model:
            at = next(i for i in range(len(got)) if got[i] != self.model[i])
            raise AssertionError(f"{step}: byte {at} is {got[at]:#x}, not {self.model[at]:#x}")
        position = 0
        while position < len(self.model):  # holes must read as zeros
            try:
                data = os.lseek(self.fd, position, os.SEEK_DATA)
            except OSError as error:
                assert error.errno == errno.ENXIO
                data = len(self.model)
            hole = self.model[position:data]
            assert hole == bytes(len(hole)), f"{step}: data in a hole at {position}"
            position = os.lseek(self.fd, data, os.SEEK_HOLE) if data < len(self.model) else data

    def run(self, count):
        names, weights = list(self.steps), list(self.steps.values())
        for number in range(count):
            step = self.random.choices(names, weights)[0]
            step()
            self.check(f"step {number}, {step.__name__}")
        os.close(self.fd)


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else random.randrange(1 << 32)
    count = scale(250)
    print(f"seed {seed}", flush=True)
    with MountedPool(device_mib=48, options="commit=1") as pool:
        Walk(pool, seed).run(count)
    print(f"file walk: {count} operations equal the model")


if __name__ == "__main__":
    in_own_namespace()
    main()
