#!/usr/bin/env python3
"""gpu4fs trace: what replays of known traces print, the layer that lists accesses, recording, pictures."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from mounted_pool import in_own_namespace  # noqa: E402
from plot_programs import load_plots  # noqa: E402

PROGRAM = os.environ["GPU4FS"]
PLOTS = os.path.join(os.environ["GPU4FS_SOURCE"], "bench", "plots", "trace.py")
TRACEFS = "/sys/kernel/tracing"
NOBODY = 65534
PAGE = 4096
# Of each letter the kernel's text for one page.
FTRACE = "x-1 [000] ..... 1.000000: block_rq_issue: 8,0 {} 4096 () {} + 8 be,0,4 [x]\n"


def run(*words, **options):
    return subprocess.run([PROGRAM, "trace", *words], capture_output=True, text=True, timeout=120, **options)


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def put(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        return self.path(name)

    def result(self, *words):
        done = run("replay", *words, "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)


class Replay(InFolder):
    def loop(self, page_count, rounds, letter="R"):
        return self.put("loop", "".join(FTRACE.format(letter, 8 * page) for page in range(page_count)) * rounds)

    def test_a_loop_has_the_ratios_of_theory(self):
        result = self.result(self.loop(128, 200))
        self.assertEqual(result["footprint_pages"], 128)
        self.assertEqual(result["requests"], {"reads": 25600, "writes": 0, "flushes": 0, "discards": 0})
        sizes = [cache["cache_bytes"] // PAGE for cache in result["caches"]]
        self.assertEqual(sizes, [2, 4, 8, 16, 32, 64, 128])
        for cache, size in zip(result["caches"], sizes):
            row = cache["all"]
            self.assertEqual(row, cache["reads"])
            self.assertEqual(row["pages"], 25600)
            self.assertEqual(row["hits"] + row["misses"], 25600)
            expected = 199 / 200 if size == 128 else (size - 1) / 127
            self.assertAlmostEqual(row["optimal_hit_ratio"], expected, delta=0.01)
            self.assertEqual(row["lru_hits"], 128 * 199 if size == 128 else 0)
            # One set is a clock, which cannot keep a part of the loop either.
            if size <= 32:
                self.assertEqual(row["hits"], 0)

    def test_sizes_are_whole_sets_each_once(self):
        caches = self.result(self.loop(4, 1), "--cache-bytes", "1M,128K,130K,4096")["caches"]
        self.assertEqual([cache["cache_bytes"] for cache in caches], [4096, 128 << 10, 1 << 20])

    def test_dirty_pages(self):
        result = self.result(self.loop(8, 2, "W"), "--cache-bytes", "16K")
        cache = result["caches"][0]
        self.assertEqual(cache["writes"]["write_back_misses"], 12)
        self.assertEqual((cache["written_back_for_misses"], cache["written_back_for_flushes"]), (12, 0))
        text = FTRACE.format("W", 0) + FTRACE.format("FF", 0).replace("+ 8", "+ 0")
        cache = self.result(self.put("flushed", text))["caches"][0]
        self.assertEqual((cache["written_back_for_misses"], cache["written_back_for_flushes"]), (0, 1))

    def test_text_and_file(self):
        done = run("replay", self.loop(8, 2), "--json", self.path("json"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("16 reads, 0 writes", done.stdout)
        self.assertIn("OPT %", done.stdout)
        with open(self.path("json"), encoding="utf-8") as file:
            self.assertEqual(json.load(file), self.result(self.path("loop")))
        done = run("replay", self.path("loop"), "--json", self.path("missing/json"))
        self.assertEqual(done.returncode, 8)
        self.assertIn("cannot be written", done.stderr)

    def test_bad_lines_are_named(self):
        path = self.put("bad", FTRACE.format("R", 0) + "broken\n" * 12 + "CPU:1 [LOST 7 EVENTS]\n")
        done = run("replay", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"{path}:2: the line is no event", done.stderr)
        self.assertIn(f"{path}:11:", done.stderr)
        self.assertNotIn(f"{path}:12:", done.stderr)
        self.assertIn("2 further lines", done.stderr)
        self.assertIn("lost events", done.stderr)
        self.assertIn("12 not understood", done.stdout)
        self.assertEqual(self.result(path)["bad_line_count"], 12)

    def test_refusals(self):
        empty = self.put("empty", "# tracer: nop\n")
        good = self.loop(1, 1)
        for words, status, text in (
            ([empty], 8, "no request"),
            ([good, empty], 8, "no request"),
            ([self.path("missing")], 8, "cannot be opened"),
            ([good, "--format", "gpu4fs"], 8, "header"),
            ([good, "--format", "blkparse"], 8, "not understood"),
            ([good, "--format", "csv"], 16, "csv"),
            ([good, "--cache-bytes", "1M,x"], 16, "'x'"),
            ([good, "--cache-bytes", "1M,"], 16, "''"),
            ([good, "--cache-bytes", "4095"], 16, "'4095'"),
            ([good, "--cache-bytes", "9T"], 16, "'9T'"),
            ([], 16, "files"),
        ):
            done = run("replay", *words)
            self.assertEqual(done.returncode, status, words)
            self.assertIn(text, done.stderr, words)
        self.assertEqual(run().returncode, 16)


class Layer(InFolder):
    def test_programs_that_open_a_pool_continue_one_trace(self):
        trace = self.path("trace")
        device = f"trace={trace}:{self.path('device')}"
        done = subprocess.run([PROGRAM, "mkfs", "-q", "--size", "64M", device], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        made = self.result(trace)
        self.assertGreater(made["requests"]["writes"], 0)
        self.assertGreater(made["requests"]["flushes"], 0)
        self.assertEqual(made["bad_line_count"], 0)
        self.assertEqual(made["devices"], [self.path("device")])
        done = subprocess.run([PROGRAM, "fsck", device], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        checked = self.result(trace)
        self.assertGreater(checked["requests"]["reads"], made["requests"]["reads"])
        self.assertEqual(checked["requests"]["writes"], made["requests"]["writes"])


class Record(InFolder):
    def loop_device(self, name="disk", *options):
        with open(self.path(name), "wb") as file:
            file.truncate(16 << 20)
        words = ["losetup", "--find", "--show", *options, self.path(name)]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode != 0:
            self.skipTest("no loop device can be had here")
        device = done.stdout.strip()
        self.addCleanup(subprocess.run, ["losetup", "--detach", device], check=True)
        return device

    def need_tracefs(self):
        if os.environ.get("GPU4FS_OWN_NAMESPACE") != "1":
            self.skipTest("only the superuser can record")
        if not os.path.isdir(os.path.join(TRACEFS, "instances")):
            done = subprocess.run(["mount", "-t", "tracefs", "tracefs", TRACEFS], capture_output=True)
            if done.returncode != 0:
                self.skipTest("the kernel has no tracefs")

    def write(self, device, first_page, count):
        place = [f"bs={PAGE}", f"seek={first_page}", f"count={count}", "oflag=direct"]
        subprocess.run(["dd", "if=/dev/zero", f"of={device}", *place], check=True, capture_output=True)

    def record(self, device, trace, writes):
        """What `writes`, (device, first page, number of pages), is recorded of a device."""
        words = [PROGRAM, "trace", "record", device, "-o", trace]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as recorder:
            try:
                # It records as soon as it says so, and copies what is left at the end.
                self.assertIn(device, recorder.stdout.readline())
                for write in writes:
                    self.write(*write)
            finally:
                recorder.send_signal(signal.SIGINT)
            self.assertIn("recorded", recorder.stdout.readline())
        self.assertEqual(recorder.returncode, 0)

    def test_requests_to_a_disk_are_recorded(self):
        self.need_tracefs()
        device, other = self.loop_device(), self.loop_device("other")
        trace = self.path("trace")
        self.record(device, trace, [(device, 100, 5), (device, 102, 2), (other, 200, 1)])
        # The kernel may have read from the disk meanwhile, so only the writes are known.
        result = self.result(trace)
        self.assertEqual(result["requests"]["writes"], 7)
        self.assertEqual(result["bad_line_count"], 0)
        writes = result["caches"][-1]["writes"]
        self.assertEqual((writes["pages"], writes["hits"]), (7, 2))
        self.assertFalse([name for name in os.listdir(os.path.join(TRACEFS, "instances")) if "gpu4fs" in name])

    def test_requests_to_a_partition_are_those_to_its_part_of_the_disk(self):
        self.need_tracefs()
        disk = self.loop_device("disk", "--partscan")
        # From page 256 on, 512 pages.
        made = subprocess.run(["addpart", disk, "1", "2048", "4096"], capture_output=True, text=True)
        if made.returncode != 0 or not os.path.exists(disk + "p1"):
            self.skipTest("the system has no partitions of loop devices")
        trace = self.path("trace")
        writes = [(disk + "p1", 0, 1), (disk, 255, 1), (disk, 257, 2), (disk + "p1", 511, 1), (disk, 768, 1)]
        self.record(disk + "p1", trace, writes)
        self.assertEqual(self.result(trace)["requests"]["writes"], 4)

    def test_refusals(self):
        for words, status, text in (
            (["/dev/null", "-o", self.path("trace")], 8, "no block device"),
            ([self.path("missing"), "-o", self.path("trace")], 8, "cannot be found"),
            (["/dev/null"], 16, "output"),
            (["-o", self.path("trace")], 16, "device"),
            (["/dev/null", "-o", self.path("trace"), "--seconds", "0"], 16, "seconds"),
        ):
            done = run("record", *words)
            self.assertEqual(done.returncode, status, words)
            self.assertIn(text, done.stderr, words)
            self.assertFalse(os.path.exists(self.path("trace")))

    def test_only_the_superuser_records(self):
        self.need_tracefs()
        device = self.loop_device()
        os.chmod(self.folder, 0o777)
        done = run("record", device, "-o", self.path("trace"), "--seconds", "1", user=NOBODY, group=NOBODY)
        self.assertEqual(done.returncode, 8, done.stdout)
        self.assertIn("only the superuser", done.stderr)


class Plots(InFolder):
    def result_file(self):
        text = "".join(FTRACE.format("RW"[page % 2], 8 * (page * 7 % 64)) for page in range(500))
        self.result(self.put("trace", text))
        run("replay", self.path("trace"), "--json", self.path("result.json"))
        return self.path("result.json")

    def test_shares_add_up(self):
        plots = load_plots(PLOTS)
        caches = plots.read_caches(self.result_file())
        shares = plots.kind_shares(caches)
        for place in range(len(caches)):
            self.assertAlmostEqual(sum(line[place] for line in shares.values()), 1)

    def test_other_files_are_refused(self):
        for text in ("", "{}", '{"caches": []}', '{"caches": [{"cache_bytes": 1}]}', "[]"):
            done = subprocess.run([sys.executable, PLOTS, self.put("other", text)], capture_output=True, text=True)
            self.assertEqual(done.returncode, 1, text)
            self.assertIn("no result of gpu4fs trace replay", done.stderr)

    def test_pictures(self):
        if importlib.util.find_spec("matplotlib") is None:
            self.skipTest("there is no matplotlib")
        done = subprocess.run([sys.executable, PLOTS, self.result_file()], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        for name in ("result-kinds.png", "result-policies.png"):
            with open(self.path(name), "rb") as file:
                self.assertEqual(file.read(4), b"\x89PNG")


if __name__ == "__main__":
    in_own_namespace()
    unittest.main()
