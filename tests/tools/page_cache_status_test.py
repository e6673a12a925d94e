"""What status says of the page cache of a pool on disk, and of the requests to the disk."""

import json
import mmap
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from mounted_pool import PROGRAM, SKIPPED, MountedPool, in_own_namespace  # noqa: E402

PAGE = 4096
PAGES = 2000


def require_disk():
    kind = subprocess.run(["stat", "-f", "-c", "%T", tempfile.gettempdir()], capture_output=True, text=True).stdout
    if kind.strip() == "tmpfs":
        print("skipped: a temporary folder on a disk is needed")
        sys.exit(SKIPPED)


def status_of(pool):
    done = subprocess.run([PROGRAM, "status", "--json", pool.mountpoint], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def read_pages(pool):
    fd = os.open(pool.path("file"), os.O_RDONLY | os.O_DIRECT)
    memory = mmap.mmap(-1, PAGE)
    for page in range(PAGES):
        os.preadv(fd, [memory], page * PAGE)
        assert memory[:8] == page.to_bytes(8, "little"), page
    os.close(fd)


class PageCacheStatus(unittest.TestCase):
    def setUp(self):
        require_disk()
        self.pool = MountedPool(device_mib=128, device_count=1, check=False, parent=tempfile.gettempdir())
        self.addCleanup(self.pool.remove)

    def mount(self, options):
        self.pool.mount(options)
        with open(self.pool.path("file"), "wb") as file:
            for page in range(PAGES):
                file.write(page.to_bytes(8, "little") * (PAGE // 8))
        os.sync()
        self.pool.remount(options)

    def test_misses_then_hits(self):
        self.mount("engine=cpu,access=direct,page_cache=64M,page_readahead=0")
        read_pages(self.pool)
        first = status_of(self.pool)
        cache = first["page_cache"]
        self.assertEqual(cache["bytes"], 64 << 20)
        self.assertGreaterEqual(cache["misses"], PAGES)
        self.assertEqual(cache["evictions"], 0)
        reads = {io["operation"]: io for io in first["io"]}["read"]
        self.assertGreaterEqual(reads["bytes"], PAGES * PAGE)
        self.assertGreater(first["io_cpu_us"], 0)

        read_pages(self.pool)
        second = status_of(self.pool)
        self.assertEqual(second["page_cache"]["misses"], cache["misses"])
        self.assertGreaterEqual(second["page_cache"]["hits"], cache["hits"] + PAGES)
        self.assertEqual({io["operation"]: io for io in second["io"]}["read"]["requests"], reads["requests"])
        text = subprocess.run([PROGRAM, "status", self.pool.mountpoint], capture_output=True, text=True, check=True)
        self.assertRegex(text.stdout, r"page cache  64(\.0)? MiB, \d+ hits, \d+ misses \(\d+\.\d % found\)")
        self.assertEqual(second["page_cache"]["read_ahead"], 0)
        self.assertNotIn("read-ahead", text.stdout)

    def test_pages_that_are_loaded_ahead(self):
        self.mount("engine=cpu,access=direct,page_cache=64M,page_readahead=256K")
        read_pages(self.pool)
        cache = status_of(self.pool)["page_cache"]
        self.assertGreaterEqual(cache["read_ahead"], PAGES // 2)
        self.assertGreaterEqual(cache["read_ahead_used"], PAGES // 2)
        self.assertLess(cache["misses"], PAGES // 2)
        self.assertEqual(cache["read_ahead_dropped"], 0)
        text = subprocess.run([PROGRAM, "status", self.pool.mountpoint], capture_output=True, text=True, check=True)
        self.assertRegex(text.stdout, r"read-ahead  \d+ pages, \d+ used, 0 dropped unused")

    def test_copies_of_pages_that_are_read_again(self):
        os.environ["GPU4FS_PAGE_TIER"] = str(64 << 20)
        self.addCleanup(os.environ.pop, "GPU4FS_PAGE_TIER")
        self.mount("engine=cpu,access=direct,page_cache=64M")
        for _ in range(4):
            read_pages(self.pool)
        status = status_of(self.pool)
        tier = status["page_tier"]
        self.assertEqual(tier["bytes"], 64 << 20)
        self.assertGreaterEqual(tier["promotions"], PAGES)
        self.assertGreaterEqual(tier["hits"], PAGES)
        self.assertEqual(tier["evictions"], 0)
        self.assertIn("with 65536 KiB for copies of pages", status["device_access"])
        text = subprocess.run([PROGRAM, "status", self.pool.mountpoint], capture_output=True, text=True, check=True)
        self.assertRegex(text.stdout, r"page copies 64(\.0)? MiB, \d+ hits, \d+ promotions, 0 evictions, ")

    def test_host_cache_is_for_the_gpu_engine(self):
        options = "engine=cpu,host_cache=64M"
        done = subprocess.run([PROGRAM, "mount", "-f", "-o", options, "device", "/mnt"], capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("option 'host_cache' is for the GPU engine", done.stderr)

    def test_a_mapped_pool_has_none(self):
        self.mount("engine=cpu,access=mapped")
        read_pages(self.pool)
        status = status_of(self.pool)
        self.assertNotIn("page_cache", status)
        self.assertNotIn("io", status)


if __name__ == "__main__":
    in_own_namespace()
    unittest.main()
