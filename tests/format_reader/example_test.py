#!/usr/bin/env python3
"""Compares docs/internals/format-example.md with an image from mkfs.

usage: example_test.py           # compares; GPU4FS names the program
       example_test.py --write   # puts the image's bytes into the page, except for ".."
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from mounted_pool import PROGRAM  # noqa: E402

PAGE_BYTES = 4096
DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs/internals/format-example.md"
DUMP = re.compile(r"^```dump\n(.*?)^```$", re.M | re.S)
LINE = re.compile(r"^([0-9a-f]{8})  ((?:(?:[0-9a-f]{2}|\.\.) ){15}(?:[0-9a-f]{2}|\.\.))(  .*)?$")
TABLE_ROW = re.compile(r"^\| 0x([0-9a-f]+) \|", re.M)
# The page says so in its first lines.
OPTIONS = ["mkfs", "-q", "--size", "32M", "--label", "example"]


def make_image(folder: str) -> bytes:
    path = pathlib.Path(folder) / "example"
    subprocess.run([PROGRAM, *OPTIONS, str(path)], check=True, timeout=60)
    return path.read_bytes()


def image_line(line: str, image: bytes) -> str:
    """The line with the image's bytes, except for "..". ValueError: it is not a line of a dump."""
    match = LINE.match(line)
    if match is None:
        raise ValueError(f"no line of a dump: {line!r}")
    offset = int(match[1], 16)
    cells = [cell if cell == ".." else f"{image[offset + i]:02x}" for i, cell in enumerate(match[2].split(" "))]
    return f"{match[1]}  {' '.join(cells)}{match[3] or ''}"


def find_differences(text: str, image: bytes) -> list:
    faults = []
    lines = [line for block in DUMP.findall(text) for line in block.splitlines()]
    if not lines:
        faults.append("no dump in the page")
    for line in lines:
        expected = image_line(line, image)
        if line != expected:
            faults.append(f"the page has {line!r}, the image {expected!r}")
    listed = [int(number, 16) for number in TABLE_ROW.findall(text)]
    zero = bytes(PAGE_BYTES)
    used = [at for at in range(0, len(image), PAGE_BYTES) if image[at: at + PAGE_BYTES] != zero]
    if listed != used:
        faults.append(f"pages listed and not: {[hex(at) for at in sorted(set(listed) ^ set(used))]}")
    return faults


class Example(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory(prefix="gpu4fs_example_") as folder:
            cls.image = make_image(folder)
        cls.text = DOCUMENT.read_text(encoding="utf-8")

    def test_the_page_shows_the_image(self):
        self.assertEqual(find_differences(self.text, self.image), [])

    def test_the_page_says_how_the_image_was_made(self):
        shown = " ".join(option for option in OPTIONS if option != "-q")
        self.assertIn(f"gpu4fs {shown} ", self.text)

    def test_masks_hide_little(self):
        """A page with only masks would be equal to any image."""
        lines = [line for block in DUMP.findall(self.text) for line in block.splitlines()]
        cells = [cell for line in lines for cell in LINE.match(line)[2].split()]
        self.assertLess(cells.count("..") * 3, len(cells))

    def test_differences_are_found(self):
        line = next(line for line in DUMP.search(self.text)[1].splitlines())
        changed = line.replace(" 21 47 ", " 21 48 ", 1)
        self.assertNotEqual(line, changed)
        row = TABLE_ROW.search(self.text)
        damaged = bytearray(self.image)
        damaged[0x20000 + 72] ^= 1
        for text, image in (
            (self.text.replace(line, changed), self.image),
            (self.text[: row.start()] + self.text[row.end():], self.image),
            (self.text.replace("```dump", "```"), self.image),
            (self.text, bytes(damaged)),
            (self.text, self.image + b"\x01" + bytes(PAGE_BYTES - 1)),
        ):
            self.assertEqual(len(find_differences(text, image)), 1)


def write() -> None:
    with tempfile.TemporaryDirectory(prefix="gpu4fs_example_") as folder:
        image = make_image(folder)

    def fill(match: re.Match) -> str:
        return "```dump\n" + "".join(image_line(line, image) + "\n" for line in match[1].splitlines()) + "```"

    text = DUMP.sub(fill, DOCUMENT.read_text(encoding="utf-8"))
    DOCUMENT.write_text(text, encoding="utf-8")
    print("\n".join(find_differences(text, image)) or f"{DOCUMENT}: written")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        write()
    else:
        unittest.main()
