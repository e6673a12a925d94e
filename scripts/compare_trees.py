#!/usr/bin/env python3
"""Compares two directory trees: names, types, modes, owners, times, link targets, hard links, content.

Prints the first differences and a summary; exits with 1 if there is any. Times of symbolic links and
of directories count too.
"""
import argparse
import os
import stat
import sys

CALL_BYTES = 1 << 20
DIFFERENCES_MAX = 20


class Comparison:
    def __init__(self, left: str, right: str) -> None:
        self.left = left
        self.right = right
        self.differences: list[str] = []
        self.count = 0
        self.files = 0
        self.bytes = 0
        self.links: dict[tuple[int, int], tuple[int, int]] = {}
        self.links_back: dict[tuple[int, int], tuple[int, int]] = {}

    def report(self, path: str, what: str) -> None:
        self.count += 1
        if len(self.differences) < DIFFERENCES_MAX:
            self.differences.append(f"{path or '.'}: {what}")

    def compare(self, path: str) -> None:
        left, right = os.path.join(self.left, path), os.path.join(self.right, path)
        try:
            a, b = os.lstat(left), os.lstat(right)
        except OSError as error:
            self.report(path, str(error))
            return
        self.files += 1
        if self.compare_attributes(path, a, b):
            if stat.S_ISDIR(a.st_mode):
                self.compare_directory(path, left, right)
            elif stat.S_ISLNK(a.st_mode):
                if os.readlink(left) != os.readlink(right):
                    self.report(path, "symbolic link leads elsewhere")
            elif stat.S_ISREG(a.st_mode):
                self.compare_content(path, left, right)

    def compare_attributes(self, path: str, a: os.stat_result, b: os.stat_result) -> bool:
        if stat.S_IFMT(a.st_mode) != stat.S_IFMT(b.st_mode):
            self.report(path, "type differs")
            return False
        for field in ("st_mode", "st_uid", "st_gid", "st_mtime_ns"):
            if getattr(a, field) != getattr(b, field):
                self.report(path, f"{field} {getattr(a, field)} and {getattr(b, field)}")
        if not stat.S_ISDIR(a.st_mode) and a.st_size != b.st_size:
            self.report(path, f"size {a.st_size} and {b.st_size}")
        if not stat.S_ISDIR(a.st_mode) and (a.st_nlink > 1 or b.st_nlink > 1):
            key_a, key_b = (a.st_dev, a.st_ino), (b.st_dev, b.st_ino)
            if self.links.setdefault(key_a, key_b) != key_b or self.links_back.setdefault(key_b, key_a) != key_a:
                self.report(path, "hard linked with other names")
        return True

    def compare_directory(self, path: str, left: str, right: str) -> None:
        names_a, names_b = sorted(os.listdir(left)), sorted(os.listdir(right))
        if len(set(names_b)) != len(names_b):
            self.report(path, "a name is listed twice")
        for name in sorted(set(names_a) ^ set(names_b)):
            self.report(os.path.join(path, name), "is in one tree only")
        known = set(names_b)
        for name in names_a:
            if name in known:
                self.compare(os.path.join(path, name))

    def compare_content(self, path: str, left: str, right: str) -> None:
        with open(left, "rb", buffering=0) as a, open(right, "rb", buffering=0) as b:
            offset = 0
            while True:
                piece_a, piece_b = a.read(CALL_BYTES), b.read(CALL_BYTES)
                if piece_a != piece_b:
                    self.report(path, f"content differs at or after byte {offset}")
                    return
                if not piece_a:
                    return
                offset += len(piece_a)
                self.bytes += len(piece_a)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("left")
    parser.add_argument("right")
    arguments = parser.parse_args()
    sys.setrecursionlimit(10000)
    comparison = Comparison(arguments.left, arguments.right)
    comparison.compare("")
    for difference in comparison.differences:
        print(difference)
    print(f"{comparison.files} files, {comparison.bytes} bytes compared, {comparison.count} differences")
    return 1 if comparison.count else 0


if __name__ == "__main__":
    sys.exit(main())
