#!/usr/bin/env python3
"""The gpu4fs program from outside: exit statuses, messages, JSON, and the names under which it is called."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

PROGRAM = os.environ["GPU4FS"]
MIB = 1 << 20


def run(*words: str, program: str = PROGRAM) -> subprocess.CompletedProcess:
    return subprocess.run([program, *words], capture_output=True, text=True, timeout=120, check=False)


class CommandLineTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.devices = [str(pathlib.Path(self.folder.name) / name) for name in ("a", "b")]

    def make(self, *options: str) -> subprocess.CompletedProcess:
        result = run("mkfs", "--size", "64M", *options, *self.devices)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def test_without_arguments(self) -> None:
        self.assertEqual(run().returncode, 16)
        self.assertIn("mkfs", run("--help").stdout)
        self.assertEqual(run("--help").returncode, 0)
        self.assertRegex(run("--version").stdout, r"^gpu4fs \d+\.\d+")
        self.assertEqual(run("frobnicate").returncode, 16)

    def test_every_verb_explains_itself(self) -> None:
        for verb in ("mkfs", "mount", "umount", "fsck", "info", "dump", "doctor", "nvme", "trace", "calibrate",
                     "bench"):
            result = run(verb, "--help")
            self.assertEqual(result.returncode, 0, verb)
            self.assertIn(f"gpu4fs {verb}", result.stdout)

    def test_nvme(self) -> None:
        listed = run("nvme", "list", "--json")
        self.assertEqual(listed.returncode, 0, listed.stderr)
        self.assertIsInstance(json.loads(listed.stdout)["drives"], list)
        self.assertEqual(run("nvme").returncode, 16)
        self.assertEqual(run("nvme", "take").returncode, 16)
        refused = run("nvme", "take", "nvme0")
        self.assertEqual(refused.returncode, 8)
        self.assertIn("root" if os.geteuid() != 0 else "not a PCI address", refused.stderr)

    def test_calibrate(self) -> None:
        file, costs = pathlib.Path(self.folder.name) / "file", pathlib.Path(self.folder.name) / "costs.json"
        file.write_bytes(b"x" * MIB)
        result = run("calibrate", "--costs", str(costs), "--max-size", "1M", "--samples", str(file))
        if result.returncode != 0:  # of file systems that have no direct I/O the page cache alone is measured
            self.assertEqual(result.returncode, 8)
            self.assertIn("direct: ", result.stderr)
        self.assertRegex(result.stdout, r"cached: \d+\.\d us, .* R² -?\d+\.\d{4}, average error \d+ %\n")
        self.assertIn("1 MiB: ", result.stdout)
        kept = json.loads(costs.read_text())
        self.assertEqual(len(kept["devices"]), 1)
        self.assertGreater(kept["devices"][0]["routes"]["cached"]["ns_per_byte"], 0)
        self.assertEqual(run("calibrate", str(file)).returncode, 8)  # shorter than 16 MiB
        self.assertEqual(run("calibrate", str(file), "--max-size", "x").returncode, 8)
        self.assertEqual(run("calibrate").returncode, 16)

    def test_program_names(self) -> None:
        for name, status in (("mkfs.gpu4fs", 16), ("fsck.gpu4fs", 16), ("mount.gpu4fs", 1)):
            link = pathlib.Path(self.folder.name) / name
            link.symlink_to(os.path.abspath(PROGRAM))
            self.assertEqual(run(program=str(link)).returncode, status, name)
            self.assertEqual(run("--no-such-option", program=str(link)).returncode, status, name)
            self.assertEqual(run("--help", program=str(link)).returncode, 0, name)

    def test_mkfs(self) -> None:
        facts = json.loads(self.make("--json", "--label", "näme").stdout)
        self.assertEqual(facts["label"], "näme")
        self.assertEqual(facts["data_profile"], "single")
        self.assertEqual([os.path.getsize(path) for path in self.devices], [64 * MIB] * 2)
        again = run("mkfs", *self.devices)
        self.assertEqual(again.returncode, 8)
        self.assertIn(self.devices[0], again.stderr)
        self.assertIn("gpu4fs pool", again.stderr)
        self.assertEqual(run("mkfs", "-f", "-q", *self.devices).stdout, "")

    def test_mkfs_refusals(self) -> None:
        for words, status in (
            (["--size", "64Q"], 16),
            (["-d", "raid7", "--size", "64M"], 8),
            (["-m", "raid6", "--size", "64M"], 8),
        ):
            result = run("mkfs", *words, *self.devices)
            self.assertEqual(result.returncode, status, words)
            self.assertIn(words[1], result.stderr)
        self.assertEqual(run("mkfs", "--size", "64M", self.devices[0], self.devices[0]).returncode, 8)
        self.assertEqual(run("mkfs", "--size", "1M", self.devices[0]).returncode, 8)
        self.assertEqual(run("mkfs", self.devices[0]).returncode, 8)
        self.assertEqual(os.listdir(self.folder.name), [])

    def test_device_lists_with_colons(self) -> None:
        result = run("mkfs", "-q", "--size", "64M", ":".join(self.devices))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(run("fsck", ":".join(self.devices)).returncode, 0)

    def test_info_and_dump(self) -> None:
        uuid = json.loads(self.make("--json").stdout)["pool_uuid"]
        facts = json.loads(run("info", "--json", "--chunks", self.devices[1]).stdout)
        self.assertEqual(facts["pool_uuid"], uuid)
        self.assertEqual([device["path"] for device in facts["devices"]], [self.devices[0], self.devices[1]])
        self.assertEqual(sum(c["used_bytes"] for c in facts["chunks"]), facts["used_bytes"])
        self.assertIn(uuid, run("info", self.devices[0]).stdout)
        expected = {
            ("superblock",): uuid, ("device",): "chunk area", ("chunks",): "bitmap slot A", ("tree",): "level 0",
            ("inode", "1"): "type: directory", ("directory", "1"): "magic: G4DL", ("map", "0"): "level 3",
            ("page", "0x800000"): "content matches",
        }
        for words, text in expected.items():
            result = run("dump", *words, self.devices[0])
            self.assertEqual(result.returncode, 0, f"{words}: {result.stderr}")
            self.assertIn(text, result.stdout, words)
        self.assertEqual(run("dump", "inode", "99999", self.devices[0]).returncode, 8)
        self.assertEqual(run("dump", "inode", "one", self.devices[0]).returncode, 8)
        self.assertEqual(run("dump", "directory", "2", self.devices[0]).returncode, 8)
        self.assertEqual(run("dump", "page", "1", self.devices[0]).returncode, 8)
        self.assertEqual(run("dump", "nonsense", self.devices[0]).returncode, 16)

    def test_fsck(self) -> None:
        self.make()
        clean = run("fsck", "--json", self.devices[0])
        self.assertEqual(clean.returncode, 0, clean.stderr)
        self.assertTrue(json.loads(clean.stdout)["clean"])
        for option in ("-n", "-p", "-a", "-y", "-f", "--no-data"):
            self.assertEqual(run("fsck", option, self.devices[0]).returncode, 0, option)
        self.assertEqual(run("fsck", "--repair", self.devices[0]).returncode, 0)
        self.assertEqual(run("fsck", "--drop-log", self.devices[0]).returncode, 16)
        with open(self.devices[1], "r+b") as device:
            device.seek(128 * 1024 + 100)
            byte = device.read(1)[0]
            device.seek(-1, os.SEEK_CUR)
            device.write(bytes([byte ^ 1]))
        broken = run("fsck", "--json", *self.devices)
        self.assertEqual(broken.returncode, 4, broken.stdout)
        self.assertEqual(json.loads(broken.stdout)["findings"][0]["id"], "pool-unusable")
        self.assertRegex(run("fsck", *self.devices).stdout, r"^pool-unusable: .*" + self.devices[1])

    def test_fsck_repair(self) -> None:
        self.make()
        with open(self.devices[1], "r+b") as device:
            device.seek(256 * 1024 + 100)  # a replica of the chunk tree
            device.write(b"damage")
        for engine in ("none", "cpu", "auto"):
            self.assertEqual(run("fsck", "--engine", engine, self.devices[0]).returncode, 4, engine)
        planned = run("fsck", "--repair", "--dry-run", self.devices[0])
        self.assertEqual(planned.returncode, 4)
        self.assertIn("would repair: chunk tree", planned.stdout)
        self.assertEqual(run("fsck", "-n", "--repair", self.devices[0]).returncode, 4)
        repaired = run("fsck", "--repair", self.devices[0])
        self.assertEqual(repaired.returncode, 1, repaired.stdout)
        self.assertIn("repaired: chunk tree", repaired.stdout)
        self.assertEqual(run("fsck", self.devices[0]).returncode, 0)

    def test_fsck_without_a_pool(self) -> None:
        self.assertEqual(run("fsck").returncode, 16)
        self.assertEqual(run("fsck", self.devices[0]).returncode, 8)
        pathlib.Path(self.devices[0]).write_bytes(bytes(MIB))
        result = run("fsck", self.devices[0])
        self.assertEqual(result.returncode, 8)
        self.assertIn("no gpu4fs pool", result.stderr)
        self.make("-f")
        os.unlink(self.devices[1])
        missing = run("fsck", self.devices[0])
        self.assertEqual(missing.returncode, 8)
        self.assertIn("missing", missing.stderr)

    def test_doctor(self) -> None:
        result = run("doctor", "--json")
        facts = json.loads(result.stdout)
        self.assertEqual(result.returncode, 0 if facts["usable"] else 1)
        names = {condition["name"] for condition in facts["conditions"]}
        self.assertLessEqual({"fuse", "gpu", "driver", "cuda build", "registration", "mps", "shared memory"}, names)
        for condition in facts["conditions"]:
            self.assertTrue(condition["why"])
            self.assertEqual("fix" in condition, not condition["holds"], condition["name"])

    def test_bench(self) -> None:
        path = str(pathlib.Path(self.folder.name) / "result.json")
        result = run("bench", "run", "--engine", "cpu", "--quick", "--only", "latency", "--output", path)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        rows = {row["name"]: row for row in json.loads(pathlib.Path(path).read_text(encoding="utf-8"))["rows"]}
        self.assertLessEqual({"noop-p50", "read-4k-p50", "create-p50"}, set(rows))
        self.assertGreater(rows["create-p50"]["median"], 0)
        self.assertIn("create of an empty file", run("bench", "report", path).stdout)
        self.assertEqual(run("bench", "report", self.folder.name).returncode, 8)


if __name__ == "__main__":
    unittest.main()
