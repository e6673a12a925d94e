#!/usr/bin/env python3
"""scripts/compare_trees.py must notice every kind of difference: the result of the demo depends on it."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(os.environ["GPU4FS_SOURCE"]) / "scripts" / "compare_trees.py"


class CompareTreesTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.left, self.right = pathlib.Path(folder.name, "left"), pathlib.Path(folder.name, "right")
        (self.left / "sub").mkdir(parents=True)
        (self.left / "file").write_bytes(b"x" * 3000000)
        os.link(self.left / "file", self.left / "sub" / "linked")
        (self.left / "symlink").symlink_to("file")
        (self.left / "sub" / "other").write_bytes(b"y")
        subprocess.run(["cp", "-a", self.left, self.right], check=True)

    def compare(self) -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, SCRIPT, self.left, self.right], capture_output=True, text=True,
                              check=False)

    def keep_times(self, path: pathlib.Path, change) -> None:
        state = os.stat(path)
        change()
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))

    def test_equal(self) -> None:
        result = self.compare()
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertIn("6 files, 6000001 bytes compared, 0 differences", result.stdout)

    def test_content(self) -> None:
        path = self.right / "file"
        self.keep_times(path, lambda: path.write_bytes(b"x" * 2999999 + b"z"))
        self.assertIn("content differs", self.compare().stdout)

    def test_other_differences(self) -> None:
        changes = {
            "st_mode": lambda: os.chmod(self.right / "file", 0o600),
            "st_mtime_ns": lambda: os.utime(self.right / "sub" / "other", ns=(1, 1)),
            "in one tree only": lambda: (self.right / "new").write_bytes(b""),
            "leads elsewhere": lambda: (os.unlink(self.right / "symlink"), (self.right / "symlink").symlink_to("sub")),
            "hard linked": lambda: (os.unlink(self.right / "sub" / "linked"),
                                    shutil.copy2(self.right / "file", self.right / "sub" / "linked")),
            "type differs": lambda: (os.unlink(self.right / "sub" / "other"), os.mkdir(self.right / "sub" / "other")),
            "size": lambda: (self.right / "sub" / "other").write_bytes(b"yy"),
        }
        for text, change in changes.items():
            shutil.rmtree(self.right)
            subprocess.run(["cp", "-a", self.left, self.right], check=True)
            change()
            result = self.compare()
            self.assertEqual(result.returncode, 1, text)
            self.assertIn(text, result.stdout)


if __name__ == "__main__":
    unittest.main()
