"""Kills the server at random moments under load, mounts again and compares with what was synced.

Writers work in folders of their own and log, in memory of this process, every file whose fsync (and
that of its folder) returned. After the kill: fsck finds nothing, every logged file is there with its
bytes, and every other file is a prefix of what was written to it, never other bytes.
"""

import hashlib
import os
import random
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from mounted_pool import MountedPool, in_own_namespace, scale  # noqa: E402

WRITERS = 4


def content(name, size):
    """The only bytes that a file with this name may contain."""
    seed = hashlib.sha256(name.encode()).digest()
    return (seed * (size // len(seed) + 1))[:size]


class Writer(threading.Thread):
    """Creates, overwrites, renames and removes files until an operation fails."""

    def __init__(self, folder, seed):
        super().__init__()
        self.folder = folder
        self.random = random.Random(seed)
        self.synced = {}    # name -> size, durable
        self.removed = set()
        self.operations = 0

    def run(self):
        try:
            os.makedirs(self.folder, exist_ok=True)
            number = 0
            while True:
                self.step(f"{self.random.randrange(1 << 40):x}-{number}")
                number += 1
        except OSError:
            return  # the server is gone

    def step(self, name):
        path = os.path.join(self.folder, name)
        size = self.random.choice((0, 10, 128, 129, 5000, 70000, 400000))
        with open(path, "wb", buffering=0) as file:
            data = content(name, size)
            while data:
                data = data[file.write(data):]
            self.operations += 1
            if self.random.random() < 0.3:
                os.fsync(file.fileno())
                self.synced[name] = size
        if self.synced and self.random.random() < 0.2:
            victim = self.random.choice(sorted(self.synced))
            # From here on the file may or may not exist.
            del self.synced[victim]
            self.removed.add(victim)
            os.unlink(os.path.join(self.folder, victim))


def check_writer(writer):
    present = set(os.listdir(writer.folder)) if os.path.isdir(writer.folder) else set()
    for name, size in writer.synced.items():
        assert name in present, f"{writer.folder}/{name}: its fsync returned and it is gone"
        with open(os.path.join(writer.folder, name), "rb") as file:
            got = file.read()
        assert got == content(name, size), f"{writer.folder}/{name}: synced bytes differ"
    for name in present:
        with open(os.path.join(writer.folder, name), "rb") as file:
            got = file.read()
        assert got == content(name, len(got)), f"{writer.folder}/{name}: bytes never written"
    return len(present)


def one_round(pool, number, seed):
    chooser = random.Random(seed)
    writers = [Writer(pool.path(f"round{number}", str(i)), seed + i) for i in range(WRITERS)]
    for writer in writers:
        writer.start()
    time.sleep(chooser.uniform(0.05, 1.5))  # the moment of the kill, not synchronisation
    pool.kill_server()
    for writer in writers:
        writer.join()
    pool.fsck()
    pool.mount()
    files = sum(check_writer(writer) for writer in writers)
    synced = sum(len(writer.synced) for writer in writers)
    operations = sum(writer.operations for writer in writers)
    print(f"round {number}: seed {seed}, {operations} files written, {files} there, {synced} synced",
          flush=True)
    return writers


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else random.randrange(1 << 32)
    with MountedPool(device_mib=256, options="commit=1") as pool:
        for number in range(scale(10)):
            writers = one_round(pool, number, seed + 1000 * number)
            for writer in writers:  # a second look, through a clean mount
                check_writer(writer)
            if os.statvfs(pool.mountpoint).f_bavail < 30000:
                import shutil
                shutil.rmtree(pool.path(f"round{number}"))
    print("kill: every synced file survived every kill")


if __name__ == "__main__":
    in_own_namespace()
    main()
