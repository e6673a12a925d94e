#!/usr/bin/env python3
"""The format reader with images from mkfs, images packed by hand, and damaged copies of both.

Needs GPU4FS_BUILD, the build folder, for the program that makes images (gpu4fs_pool_test).
"""
import base64
import contextlib
import io
import itertools
import json
import os
import random
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import gpu4fs_reader  # noqa: E402
import xxh3  # noqa: E402
from files import INODE_BITMAP, ORPHAN_BITMAP, ROOT, open_file_system  # noqa: E402
from image_writer import Block, ImageWriter, attribute_page, great_value  # noqa: E402
from log import Log  # noqa: E402
from medium import PAGE, SUPERBLOCK_OFFSETS, table_word, unsealed_hash  # noqa: E402
from mounted_pool import PROGRAM, MountedPool, gpu4fs, in_own_namespace  # noqa: E402
from verify import Checker  # noqa: E402


def run(*arguments) -> tuple:
    """(exit status, output) of the reader's command line."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        status = gpu4fs_reader.main(list(arguments))
    return status, output.getvalue()


class Xxh3(unittest.TestCase):
    def test_python_equals_library(self):
        if xxh3.library_hash is None:
            self.skipTest("libxxhash is not installed: nothing to compare with")
        source = random.Random(1)
        for length in [*range(0, 300), 1023, 1024, 1025, PAGE, 3 * PAGE + 5]:
            data, seed = source.randbytes(length), source.getrandbits(64)
            self.assertEqual(xxh3.python_hash(data, seed), xxh3.library_hash(data, seed), length)

    def test_known_values(self):
        self.assertEqual(xxh3.python_hash(b"", 0), 0x2D06800538D394C2)
        self.assertEqual(xxh3.python_hash(b"a", 0), 0xE6C632B61E964E1F)


class Images(unittest.TestCase):
    """Makes the images once; every test that changes one works on a copy."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="gpu4fs_reader_")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        maker = os.path.join(os.environ["GPU4FS_BUILD"], "gpu4fs_pool_test")
        subprocess.run(
            [maker, "--gtest_filter=PoolMake.images_for_other_readers"],
            env=os.environ | {"GPU4FS_IMAGE_FOLDER": cls.folder},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        cls.rich = os.path.join(cls.folder, "rich")
        shutil.copy(os.path.join(cls.folder, "one"), cls.rich)
        cls.model, cls.unwritten_page = make_rich(cls.rich)

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def copy(self, source: str) -> str:
        target = self.path("copy")
        shutil.copy(source, target)
        return target


def make_rich(path: str) -> tuple:
    """Fills an image with every construct of the format. Returns the expected output of `list` by path."""
    writer = ImageWriter(path)
    source = random.Random(5)
    model = {}

    def add(directory, name, number, full_path, **expected):
        writer.link(directory, name, number)
        model[full_path] = expected | {"inode": number}

    regular = stat.S_IFREG | 0o640
    number = writer.add_inode(regular, inline=b"short content", size=13, uid=5, gid=6)
    add(ROOT, b"inline", number, "/inline", content=b"short content", links=1, uid=5, gid=6)
    data = source.randbytes(PAGE + 100)
    number = writer.add_file(regular, PAGE + 100, [Block(0, data[:PAGE]), Block(1, data[PAGE:])], 0)
    add(ROOT, b"two pages", number, "/two pages", content=data, links=1)
    # Sparse, height 2: a page, an unwritten page, a block of 2 MiB, an unwritten one, a far page.
    big = source.randbytes(2 << 20)
    blocks = [
        Block(3, b"third page"),
        Block(4, b"", unwritten=True),
        Block(512, big, level=1),
        Block(1024, b"", level=1, unwritten=True),
        Block(512 * 512 * 3 + 7, b"far"),
    ]
    size = (512 * 512 * 3 + 7) * PAGE + 3
    number = writer.add_file(regular, size, blocks, 2, links=1)
    add(ROOT, b"sparse", number, "/sparse", size=size, pages=1 + 1 + 512 + 512 + 1 + 4)
    model["/sparse"]["runs"] = {3 * PAGE: b"third page", 2 << 20: big, size - 3: b"far"}
    target = b"/somewhere/" + b"x" * 200
    number = writer.add_inode(stat.S_IFLNK | 0o777, inline=b"inline", size=6)
    add(ROOT, b"link", number, "/link", target="inline")
    number = writer.add_file(stat.S_IFLNK | 0o777, len(target), [Block(0, target)], 0)
    add(ROOT, b"long link", number, "/long link", target=target.decode())
    number = writer.add_inode(stat.S_IFCHR | 0o600, parent=os.makedev(1, 3))
    add(ROOT, b"null", number, "/null", device=[1, 3])
    # Two pages of entries, and values with pages of their own: below one map page, and with two levels of them.
    for name, slot in ((b"many", 4), (b"high", 40)):
        small = {b"user.a": b"1", b"user.b": source.randbytes(1024)}
        great = {b"user.large": source.randbytes(65536), b"user.middle": source.randbytes(1025)}
        tree, places = {}, {}
        for i, (key, value) in enumerate(great.items()):
            pages, value_hash = great_value(value)
            places[key] = slot + i, value_hash
            tree |= {(slot + i) * 16 + page: data for page, data in enumerate(pages)}
        tree |= {0: attribute_page(small), 3: attribute_page(great, places)}
        number = writer.add_inode(regular, inline=b"", attribute_tree=tree)
        add(ROOT, name, number, "/" + name.decode(), attributes=small | great)
    values = {b"user.one": b"1", b"user.empty": b"", b"security.selinux": source.randbytes(300)}
    number = writer.add_inode(regular, inline=b"", attribute_page=attribute_page(values), links=2)
    add(ROOT, b"attributed", number, "/attributed", attributes=values, links=2)
    folder = writer.add_directory(ROOT, b"folder", 0o700)
    model["/folder"] = {"inode": folder, "links": 3, "mode": "0040700"}
    add(folder, "ü".encode(), number, "/folder/ü", links=2)
    crowd = writer.add_directory(folder, b"crowd")
    model["/folder/crowd"] = {"inode": crowd, "links": 2}
    names = [b"n%d" % i + b"." * (i % 200) for i in range(1500)]
    # Sixty names with the same nine upper bits of the hash do not fit into one leaf: a second node.
    seed = writer.pool.superblock.name_hash_seed
    alike = (b"same%d" % i + b"." * 100 for i in range(10**6))
    names += itertools.islice((name for name in alike if xxh3.xxh3_64(name, seed) >> 55 == 77), 60)
    for i, name in enumerate(names):
        number = writer.add_inode(regular, inline=str(i).encode(), size=len(str(i)))
        add(crowd, name, number, "/folder/crowd/" + name.decode())
    number = writer.add_inode(regular, inline=b"gone", size=4, links=0)
    writer.orphans.add(number)
    unwritten = next(b for b in writer_blocks(writer, model["/sparse"]["inode"]))
    writer.save()
    return model, unwritten


def writer_blocks(writer: ImageWriter, number: int):
    """Address of the unwritten 4 KiB block of the sparse file, from its packed inode."""
    level2 = struct.unpack_from("<Q", writer.inodes[number], 72)[0] & ~127
    words = read_words(writer, level2)
    words = read_words(writer, words[0] & ~127)
    yield words[4] & ~127


def read_words(writer: ImageWriter, address: int) -> tuple:
    writer.file.seek(writer.place(address))
    return struct.unpack("<512Q", writer.file.read(PAGE))


class CleanImages(Images):
    def test_mkfs_images_are_good(self):
        for devices in (["one"], ["three.1", "three.2", "three.0"]):
            status, output = run("verify", *map(self.path, devices))
            self.assertEqual((status, output), (0, "11 pages, 3 inodes, 0 problems\n"))

    def test_info(self):
        status, output = run("info", self.path("three.2"), self.path("three.0"), self.path("three.1"))
        info = json.loads(output)
        self.assertEqual(status, 0)
        self.assertEqual(info["devices"], [self.path(f"three.{i}") for i in range(3)])
        self.assertFalse(info["data_checksums"])
        self.assertEqual(json.loads(run("info", self.path("one"))[1])["label"], "one device")

    def test_rich_image_is_good(self):
        status, output = run("verify", self.rich)
        self.assertEqual(status, 0, output)
        self.assertIn(" 0 problems", output)

    def test_list_equals_the_model(self):
        status, output = run("list", self.rich)
        self.assertEqual(status, 0, output[-500:])
        listed = {entry["path"]: entry for entry in map(json.loads, output.splitlines())}
        self.assertEqual(set(listed), set(self.model) | {"/"})
        for path, expected in self.model.items():
            for key, value in expected.items():
                if key == "attributes":
                    value = {k.decode(): base64.b64encode(v).decode() for k, v in value.items()}
                if key not in ("content", "runs"):
                    self.assertEqual(listed[path][key], value, (path, key))
        self.assertEqual(listed["/inline"]["birth_time"], "1700000000.123456792")

    def test_extract_gives_the_content(self):
        folder = self.path("extracted")
        status, output = run("extract", folder, self.rich)
        self.assertEqual((status, output), (0, "left out: /null\n"))
        for path, expected in self.model.items():
            if "content" in expected:
                with open(folder + path, "rb") as file:
                    self.assertEqual(file.read(), expected["content"], path)
        with open(folder + "/sparse", "rb") as file:
            content = file.read(16 << 20)
            self.assertEqual(content[3 * PAGE : 3 * PAGE + 10], b"third page")
            self.assertEqual(content[2 << 20 : 4 << 20], self.model["/sparse"]["runs"][2 << 20])
            self.assertFalse(any(content[: 3 * PAGE]) or any(content[4 << 20 :]))
            file.seek(self.model["/sparse"]["size"] - 3)
            self.assertEqual(file.read(), b"far")
        self.assertEqual(os.readlink(folder + "/link"), "inline")
        self.assertTrue(os.path.samefile(folder + "/attributed", folder + "/folder/ü"))
        with open(folder + "/folder/crowd/n1499" + "." * 99, "rb") as file:
            self.assertEqual(file.read(), b"1499")

    def test_the_second_level_of_a_directory_is_there(self):
        fs = open_file_system([self.rich])
        crowd = fs.inode(self.model["/folder/crowd"]["inode"])
        levels = set()
        for block in fs.blocks(crowd):
            page = fs.pool.read_page(block.address)
            if block.level == 0 and page[:4] == b"G4DN":
                levels.add(page[6])
        self.assertEqual(levels, {0, 1})

    def test_the_older_superblock_is_not_taken(self):
        image = self.copy(self.path("one"))
        with open(image, "r+b") as file:
            file.seek(131072)
            page = bytearray(file.read(PAGE))
            struct.pack_into("<I", page, 12, 0)
            struct.pack_into("<Q", page, 24, 2)
            struct.pack_into("<Q", page, 16, unsealed_hash(bytes(page), 16, 65536))
            file.seek(65536)
            file.write(page)
        self.assertEqual(json.loads(run("info", image)[1])["epoch"], 2)

    def test_wrong_use(self):
        for arguments in ([], ["verify"], ["extract", "x"], ["mend", "x"]):
            self.assertEqual(run(*arguments)[0], 2)
        status, output = run("info", self.path("three.0"), self.path("three.1"))
        self.assertEqual(status, 1)
        self.assertIn("device 2 is missing", output)
        self.assertIn("is there twice", run("info", *[self.path("one")] * 2)[1])
        self.assertIn("of another pool", run("info", self.path("one"), self.path("three.0"))[1])
        self.assertIn("ends before byte", run("info", "/dev/null")[1])


class Damage(Images):
    """Canaries: each damage must be reported."""

    def expect(self, image: str, part: str) -> None:
        status, output = run("verify", image)
        self.assertEqual(status, 1, part)
        self.assertTrue(part in output, f"'{part}' is not in {output[:800]}")

    def flip(self, image: str, offset: int) -> None:
        with open(image, "r+b") as file:
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ 0x40]))

    def place(self, fs, address: int) -> int:
        chunk = fs.pool.chunk_of(address)
        return chunk.columns[0][1] + chunk.header_pages * PAGE + address - chunk.base

    def rewrite(self, image: str, address: int, change) -> None:
        """Changes a page and recomputes its checksum, which then does not reveal the damage."""
        fs = open_file_system([image])
        page = bytearray(fs.pool.read_page(address))
        change(page)
        chunk = fs.pool.chunk_of(address)
        number = (address - chunk.base) // PAGE
        with open(image, "r+b") as file:
            file.seek(self.place(fs, address))
            file.write(page)
        self.seal(image, chunk, number, xxh3.xxh3_64(bytes(page), address))

    def seal(self, image: str, chunk, number: int, checksum: int) -> None:
        """Recomputes the checksum of a page of the chunk, and everything that verifies it up to the superblock."""
        pool = open_file_system([image]).pool
        column = chunk.columns[0][1]
        index = number // 256
        content = bytearray(pool.read_descriptors(chunk, index))
        struct.pack_into("<Q", content, number % 256 * 16, checksum)
        table = list(pool.table(chunk))
        place = table[index] % 2
        table[index] = table_word(bytes(content), chunk, index, place)
        packed = struct.pack(f"<{len(table)}Q", *table)
        slot = pool.find_slot(pool.devices[0][0], column + PAGE, chunk)
        header = bytearray(pool.devices[0][0].read(slot.begin, PAGE))
        number = struct.unpack_from("<H", header, 6)[0]
        struct.pack_into("<Q", header, 56, xxh3.xxh3_64(packed, ~chunk.base & (1 << 64) - 1))
        sealed = unsealed_hash(bytes(header), 8, chunk.base ^ number)
        struct.pack_into("<Q", header, 8, sealed)
        superblock = bytearray(pool.superblock.page)
        slot_sum = (pool.superblock.slot_sum - slot.checksum + sealed) % (1 << 64)
        struct.pack_into("<Q", superblock, 248, slot_sum)
        offset = SUPERBLOCK_OFFSETS[pool.superblock.slot]
        struct.pack_into("<Q", superblock, 16, unsealed_hash(bytes(superblock), 16, offset))
        with open(image, "r+b") as file:
            for at, data in (
                (column + (chunk.descriptors_page + place * chunk.descriptor_pages + index) * PAGE, content),
                (slot.begin + (1 + chunk.bitmap_pages) * PAGE, packed),
                (slot.begin, header),
                (offset, superblock),
            ):
                file.seek(at)
                file.write(data)

    def change_inode(self, number: int, offset: int, form: str, value: int) -> str:
        image = self.copy(self.rich)
        fs = open_file_system([image])
        address = fs.find_page(fs.inode(0), number // 16)
        self.rewrite(image, address, lambda p: struct.pack_into(form, p, number % 16 * 256 + offset, value))
        return image

    def test_a_flipped_byte_of_any_page(self):
        fs = open_file_system([self.rich])
        checker = Checker(fs)
        self.assertEqual(checker.run(), [])
        unwritten = {
            block.address + i * PAGE
            for block in fs.blocks(fs.inode(self.model["/sparse"]["inode"]))
            if block.unwritten
            for i in range(block.page_count)
        }
        self.assertIn(self.unwritten_page, unwritten)
        pages = sorted(set(checker.reached) - unwritten)
        source = random.Random(2)
        image = self.copy(self.rich)
        for address in source.sample(pages, 40):
            offset = self.place(fs, address) + source.randrange(PAGE)
            self.flip(image, offset)
            self.assertEqual(run("verify", image)[0], 1, hex(address))
            self.flip(image, offset)
        self.flip(image, self.place(fs, self.unwritten_page))
        self.assertEqual(run("verify", image)[0], 0, "an unwritten block may hold anything")

    def test_a_flipped_byte_of_the_structures(self):
        fs = open_file_system([self.rich])
        part, chunk = fs.pool.devices[0][1], fs.pool.chunks[0]
        column = chunk.columns[0][1]
        places = {
            131072 + 300: "superblock checksum",
            part.tree_offset + 50: "node 0: checksum",
            part.chunk_map_offset + 60: "no valid bitmap slot",
            part.chunk_map_offset + PAGE: "chunk map of",
            column + 100: "checksum of the header",
            column + PAGE + 50: "no valid bitmap slot",
            column + 2 * PAGE: "bitmap at",
            column + 3 * PAGE: "descriptor table of the slot",
            column + chunk.descriptors_page * PAGE: "page 0 of the descriptors: checksum",
        }
        for offset, part_text in places.items():
            image = self.copy(self.rich)
            self.flip(image, offset)
            self.expect(image, part_text)

    def test_wrong_inodes(self):
        sparse, inline = self.model["/sparse"]["inode"], self.model["/inline"]["inode"]
        folder = self.model["/folder"]["inode"]
        self.expect(self.change_inode(sparse, 48, "<I", 2), f"inode {sparse}: 2 links counted, 1 found")
        self.expect(self.change_inode(sparse, 200, "<Q", 9), f"inode {sparse}: 1031 pages found, 9 counted")
        self.expect(self.change_inode(sparse, 54, "<B", 1), f"inode {sparse}: ")
        self.expect(self.change_inode(sparse, 72, "<Q", 0x100D), "lies in no chunk")
        self.expect(self.change_inode(sparse, 80, "<Q", 7), "not valid and not zero")
        self.expect(self.change_inode(inline, 52, "<H", 0), f"bit {inline} is set without reason")
        self.expect(self.change_inode(inline, 52, "<H", 0o100), "type")
        self.expect(self.change_inode(inline, 0, "<Q", 129), f"inode {inline}: 129 inline bytes")
        self.expect(self.change_inode(inline, 230, "<B", 1), f"inode {inline}: flags or reserved bytes")
        self.expect(self.change_inode(folder, 208, "<Q", 5), f"directory {folder}: parent 5")
        self.expect(self.change_inode(folder, 216, "<Q", 5), f"directory {folder}: 2 names, 5 counted")
        self.expect(self.change_inode(5, 0, "<Q", 1), "inode 5: reserved and not zero")
        two = self.model["/two pages"]["inode"]
        self.expect(self.change_inode(two, 0, "<Q", PAGE + 50), "bytes behind the end of the file")

    def test_a_page_of_two_files(self):
        fs = open_file_system([self.rich])
        two = fs.inode(self.model["/two pages"]["inode"])
        link = self.model["/long link"]["inode"]
        self.expect(self.change_inode(link, 72, "<Q", two.slots[0]), f"of inode {link} and of inode {two.number}")

    def test_wrong_bitmaps(self):
        for number, bit, text in (
            (INODE_BITMAP, 9, "inode bitmap: bit 9 is not set"),
            (INODE_BITMAP, 32767, "inode bitmap: bit 32767 is set without reason"),
            (ORPHAN_BITMAP, 20, "orphan bitmap: bit 20 is set without reason"),
        ):
            image = self.copy(self.rich)
            fs = open_file_system([image])

            def change(page, bit=bit):
                page[bit // 8] ^= 1 << bit % 8

            self.rewrite(image, fs.find_page(fs.inode(number), 0), change)
            self.expect(image, text)

    def test_wrong_directories(self):
        fs = open_file_system([self.rich])
        root_leaf = fs.find_page(fs.inode(ROOT), 0)
        node = fs.find_page(fs.inode(self.model["/folder/crowd"]["inode"]), 0)
        cases = (
            (root_leaf, "<H", 8, 3, "directory 1: "),
            (root_leaf, "<B", 7, 1, "root leaf with a depth"),
            (root_leaf, "<Q", 16, 1, "prefix"),
            (root_leaf, "<Q", 32, 1, "hash of"),
            (root_leaf, "<B", 32 + 11, 1, "type 1 of"),
            (root_leaf, "<H", 12, 8, "8 of garbage"),
            (node, "<B", 6, 1, "level 1"),
            (node, "<I", 2048, 0, "names page 0"),
            (node, "<I", 2048 + 4 * 511, 10**6, "directory"),
            (node, "<I", 2048, 10**6, "page 1000000 beyond its end"),
            (node, "<B", 1000, 1, "bytes between a node's header and its slots"),
        )
        for address, form, offset, value, text in cases:
            image = self.copy(self.rich)
            self.rewrite(image, address, lambda p, a=(form, offset, value): struct.pack_into(a[0], p, a[1], a[2]))
            self.expect(image, text)

    def test_wrong_counts_of_the_superblock(self):
        for offset, text in ((136, "pages allocated, the superblock"), (144, "inodes used,")):
            image = self.copy(self.rich)
            with open(image, "r+b") as file:
                file.seek(131072)
                page = bytearray(file.read(PAGE))
                page[offset] ^= 1
                struct.pack_into("<Q", page, 16, unsealed_hash(bytes(page), 16, 131072))
                file.seek(131072)
                file.write(page)
            self.expect(image, text)

    def test_attributes(self):
        fs = open_file_system([self.rich])
        inode = fs.inode(self.model["/attributed"]["inode"])
        for offset, text in ((16 + 12 + 8, "hash of"), (6, "used, entries end"), (10, "attribute page header")):
            image = self.copy(self.rich)

            def change(page, offset=offset):
                page[offset] ^= 1

            self.rewrite(image, inode.attributes & ~127, change)
            self.expect(image, text)


    def test_the_program_agrees_about_attributes(self):
        """fsck accepts trees of attributes from this writer; it reports a changed byte of a value."""
        self.assertEqual(self.fsck(self.rich), [])
        fs = open_file_system([self.rich])
        for name in ("/many", "/high"):
            inode = fs.inode(self.model[name]["inode"])
            pages = {index: address for level, index, address in fs.attribute_blocks(inode) if level == 0}
            image = self.copy(self.rich)
            self.rewrite(image, pages[min(index for index in pages if index >= 64)], lambda page: page.reverse())
            self.assertEqual(self.fsck(image), ["attribute-page"])

    def fsck(self, image: str) -> list:
        done = gpu4fs("fsck", "--json", image)
        return [finding["id"] for finding in json.loads(done.stdout)["findings"] if finding["severity"] == "error"]

    def test_attribute_trees(self):
        """A changed page of a value, a changed place of an entry, a page without an entry, a missing page."""
        fs = open_file_system([self.rich])
        for name in ("/many", "/high"):
            inode = fs.inode(self.model[name]["inode"])
            blocks = list(fs.attribute_blocks(inode))
            pages = {index: address for level, index, address in blocks if level == 0}
            block = next(address for level, _, address in blocks if level == 1)
            value = min(index for index in pages if index >= 64)
            faults = [(pages[value], 77, "hash of"), (pages[3], 16 + 10, "is missing"), (pages[3], 16 + 4, "hash of"),
                      (pages[0], 16 + 10, "place of"), (block, 0, "reserved tags")]
            for address, offset, text in faults:
                image = self.copy(self.rich)

                def change(page, offset=offset):
                    page[offset] ^= 16

                self.rewrite(image, address, change)
                self.expect(image, text)


class OperationLog(unittest.TestCase):
    """The log of a killed mount, read by this reader and by the program."""

    def setUp(self):
        self.pool = MountedPool(device_mib=32, device_count=2, options="commit=0,engine=cpu", check=False)
        self.pool.__enter__()
        self.addCleanup(self.pool.remove)
        self.change()
        self.pool.kill_server()

    def change(self):
        path = self.pool.path
        os.mkdir(path("folder"))
        file = os.open(path("folder/file"), os.O_RDWR | os.O_CREAT, 0o644)
        os.pwrite(file, b"x" * 300, 0)
        os.pwrite(file, random.Random(3).randbytes(50_000), 10_000)
        os.posix_fallocate(file, 100_000, 30_000)
        os.ftruncate(file, 120_000)
        os.fsync(file)
        os.setxattr(path("folder/file"), "user.name", b"value")
        os.symlink("t" * 100, path("link"))
        os.link(path("folder/file"), path("\u00fc and \\"))
        os.rename(path("link"), path("folder/renamed"))
        os.unlink(path("folder/renamed"))
        os.fsync(file)
        os.close(file)

    def both(self, devices):
        program = subprocess.run([PROGRAM, "dump", "log", *devices], capture_output=True, text=True)
        self.assertEqual(program.returncode, 0, program.stderr)
        status, output = run("log", *devices)
        self.assertEqual(status, 0, output)
        return output, program.stdout

    def test_both_list_the_same(self):
        own, program = self.both(self.pool.devices)
        self.assertEqual(own, program)
        kinds = {line.split(": ", 1)[1].split(",")[0] for line in own.splitlines()[:-1]}
        wanted = {"mkdir", "mknod", "write_bytes", "write_extents", "fallocate", "set_inode", "set_attribute",
                  "symlink", "link", "rename", "unlink"}
        self.assertLessEqual(wanted, kinds)
        self.assertIn("\\xc3\\xbc and \\x5c", own)
        self.assertNotIn("not written", own)

    def test_both_see_damage(self):
        records = Log(open_file_system(self.pool.devices).pool).records
        victim = next(record for record in records if record.kind == "write_extents")
        fs = open_file_system(self.pool.devices)
        address = victim.extents[0].address
        chunk = fs.pool.chunk_of(address)
        index, offset = chunk.columns[0]
        device, _ = fs.pool.devices[index]
        with open(device.path, "r+b") as file:
            file.seek(offset + chunk.header_pages * PAGE + address - chunk.base + 5)
            file.write(b"damage")
        own, program = self.both(self.pool.devices)
        self.assertEqual(own, program)
        self.assertEqual(own.count("its pages were not written"), 1)
        # One copy of a record suffices; without any copy the log ends.
        last = records[-1]
        for count, place in enumerate(fs.pool.devices):
            device, part = place
            with open(device.path, "r+b") as file:
                file.seek(part.log_offset + last.lsn + 30)
                file.write(b"damage")
            own, program = self.both(self.pool.devices)
            self.assertEqual(own, program)
            self.assertIn(f"log: {len(records) - count} records", own)
            self.assertNotIn("damaged", own)
        # After the second one there are records that say that it was durable.
        for device, part in fs.pool.devices:
            with open(device.path, "r+b") as file:
                file.seek(part.log_offset + records[1].lsn + 30)
                file.write(b"damage")
        own, program = self.both(self.pool.devices)
        self.assertEqual(own, program)
        self.assertIn("log: 1 records", own)
        self.assertIn("log: damaged, was durable up to ", own)


if __name__ == "__main__":
    in_own_namespace()
    unittest.main()
