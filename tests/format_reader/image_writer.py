"""Puts files into an empty pool of one device, for tests of readers and checkers.

The writer edits the image in place, without epochs or atomicity; no real writer may do this. Structures are packed here
by hand from docs/internals/format.md; no code is shared with the engine.
"""
import stat
import struct

from files import FIRST_FREE, INODE_BITMAP, INODE_FILE, ORPHAN_BITMAP, ROOT, FileSystem
from medium import PAGE, SUPERBLOCK_OFFSETS, Pool, table_word, unsealed_hash
from xxh3 import xxh3_64

INODE_FORMAT = "<5Q3IHBBQII"
NOW = ((1700000000 + (1 << 31)) << 30) | 123456789


def pointer(address: int, level: int = 0, unwritten: bool = False) -> int:
    return address | 8 | (level + 1) | (32 if unwritten else 0)


def indirect_pointer(address: int) -> int:
    return address | 8 | 4 | 1


class Block:
    """A direct block of a file: `level` 0, 1, 2 for 4 KiB, 2 MiB, 1 GiB at page `index`."""

    def __init__(self, index: int, data: bytes, level: int = 0, unwritten: bool = False):
        self.index, self.data, self.level, self.unwritten = index, data, level, unwritten


class ImageWriter:
    def __init__(self, path: str):
        self.path = path
        self.fs = FileSystem(Pool([path]))
        self.pool = self.fs.pool
        self.file = open(path, "r+b")
        self.descriptors = {}  # of pages that were written, by chunk
        self.allocated = {c.base: [False] * c.page_count for c in self.pool.chunks}
        for number in (INODE_FILE, ROOT, INODE_BITMAP, ORPHAN_BITMAP):
            for block in self.fs.blocks(self.fs.inode(number)):
                self.mark(block.address, block.page_count, True)
        self.inodes = {}
        self.orphans = set()
        self.next_inode = FIRST_FREE
        self.entries = {ROOT: []}
        self.free_file(ROOT)
        self.free_file(INODE_FILE)
        self.free_file(INODE_BITMAP)
        self.free_file(ORPHAN_BITMAP)

    # Pages and places.

    def chunk_and_page(self, address: int):
        chunk = self.pool.chunk_of(address)
        return chunk, (address - chunk.base) // PAGE

    def mark(self, address: int, count: int, state: bool) -> None:
        chunk, page = self.chunk_and_page(address)
        self.allocated[chunk.base][page : page + count] = [state] * count

    def free_file(self, number: int) -> None:
        for block in list(self.fs.blocks(self.fs.inode(number))):
            self.mark(block.address, block.page_count, False)

    def allocate(self, count: int = 1) -> int:
        """A free run of 1 page, or of a power of two aligned to itself."""
        for base, pages in self.allocated.items():
            first = -(base // PAGE) % count
            for page in range(first, len(pages) - count + 1, count):
                if not any(pages[page : page + count]):
                    self.mark(base + page * PAGE, count, True)
                    return base + page * PAGE
        raise MemoryError("no space in the image")

    def place(self, address: int) -> int:
        chunk, page = self.chunk_and_page(address)
        return chunk.columns[0][1] + (chunk.header_pages + page) * PAGE

    def write_at(self, offset: int, data: bytes) -> None:
        self.file.seek(offset)
        self.file.write(data)

    def write_page(self, address: int, data: bytes) -> None:
        """The page and its descriptor."""
        assert len(data) == PAGE
        chunk, page = self.chunk_and_page(address)
        self.write_at(self.place(address), data)
        self.descriptors.setdefault(chunk.base, {})[page] = struct.pack(
            "<QII", xxh3_64(data, address), self.pool.superblock.epoch, 0
        )

    def new_page(self, data: bytes) -> int:
        address = self.allocate()
        self.write_page(address, data.ljust(PAGE, b"\0"))
        return address

    # Files.

    def write_map(self, blocks: list, height: int) -> tuple:
        """Seven slots and the number of pages of a map that holds these blocks."""
        count = 0
        pointers = {}  # (level, first page) -> pointer
        for block in blocks:
            pages = 512**block.level
            address = self.allocate(pages)
            count += pages
            if not block.unwritten:
                data = block.data.ljust(pages * PAGE, b"\0")
                for i in range(pages):
                    self.write_page(address + i * PAGE, data[i * PAGE : (i + 1) * PAGE])
            pointers[block.level, block.index] = pointer(address, block.level, block.unwritten)
        for level in range(height):
            groups = {}
            for (own, index), word in pointers.items():
                if own == level:
                    parent = index // 512 ** (level + 1)
                    groups.setdefault(parent, [0] * 512)[index // 512**level % 512] = word
            for parent, words in groups.items():
                address = self.new_page(struct.pack("<512Q", *words))
                pointers[level + 1, parent * 512 ** (level + 1)] = indirect_pointer(address)
                count += 1
        slots = [pointers.get((height, i * 512**height), 0) for i in range(7)]
        return slots, count

    def pack_inode(self, mode: int, **fields) -> bytes:
        get = fields.get
        times = get("times", (NOW, NOW + 1, NOW + 2, NOW + 3))
        head = struct.pack(
            INODE_FORMAT,
            get("size", 0),
            *times,
            get("uid", 0),
            get("gid", 0),
            get("links", 1),
            mode,
            get("height", 0),
            1,
            get("attributes", 0),
            1 if "inline" in fields else 0,
            0,
        )
        body = get("inline", b"").ljust(128, b"\0")
        if "inline" not in fields:
            body = struct.pack("<7Q", *get("slots", [0] * 7)).ljust(128, b"\0")
        tail = struct.pack(
            "<QQQHB", get("pages", 0), get("parent", 0), get("entry_count", 0), 0, get("attribute_height", 0)
        )
        return (head + body + tail).ljust(256, b"\0")

    def add_inode(self, mode: int, **fields) -> int:
        number = self.next_inode
        self.next_inode += 1
        if "attribute_page" in fields:
            fields["attributes"] = pointer(self.new_page(fields.pop("attribute_page")))
            fields["pages"] = fields.get("pages", 0) + 1
        if "attribute_tree" in fields:
            pages = fields.pop("attribute_tree")
            self.add_attribute_tree(pages, fields)
        self.inodes[number] = self.pack_inode(mode, **fields)
        return number

    def add_attribute_tree(self, pages: dict, fields: dict) -> None:
        """Pages of attributes by their index, below one map page or, if they exceed it, two levels of them."""
        level, count = {index: pointer(self.new_page(data)) for index, data in pages.items()}, len(pages)
        height = 0
        while height == 0 or max(level) > 0:
            groups = {}
            for index, word in level.items():
                groups.setdefault(index // 512, [0] * 512)[index % 512] = word
            level = {i: indirect_pointer(self.new_page(struct.pack("<512Q", *words))) for i, words in groups.items()}
            count += len(level)
            height += 1
        fields["attributes"], fields["attribute_height"] = level[0], height
        fields["pages"] = fields.get("pages", 0) + count

    def add_file(self, mode: int, size: int, blocks: list, height: int, **fields) -> int:
        slots, pages = self.write_map(blocks, height)
        return self.add_inode(mode, size=size, slots=slots, pages=pages, height=height, **fields)

    def add_directory(self, parent: int, name: bytes, permissions: int = 0o755) -> int:
        """An empty directory; its inode is made by save()."""
        number = self.next_inode
        self.next_inode += 1
        self.entries[number] = []
        self.inodes[number] = (permissions, parent)
        self.link(parent, name, number)
        return number

    def link(self, directory: int, name: bytes, number: int) -> None:
        self.entries[directory].append((name, number))

    def type_of(self, number: int) -> int:
        record = self.inodes[number]
        mode = stat.S_IFDIR if isinstance(record, tuple) else struct.unpack_from("<H", record, 52)[0]
        return mode >> 12

    # Saving.

    def write_directory(self, number: int, permissions: int, parent: int) -> None:
        pages = DirectoryBuilder(self, self.entries[number]).pages
        height = 0
        while len(pages) > 7 * 512**height:
            height += 1
        slots, count = self.write_map([Block(i, page) for i, page in enumerate(pages)], height)
        subdirectories = sum(isinstance(self.inodes.get(n), tuple) for _, n in self.entries[number])
        self.inodes[number] = (
            self.pack_inode(
                stat.S_IFDIR | permissions,
                size=len(pages) * PAGE,
                slots=slots,
                pages=count,
                height=height,
                links=2 + subdirectories,
                parent=parent,
                entry_count=len(self.entries[number]),
            ),
        )

    def bitmap_file(self, bits: set) -> bytes:
        size = (max(bits, default=0) // (PAGE * 8) + 1) * PAGE
        content = bytearray(size)
        for bit in bits:
            content[bit // 8] |= 1 << bit % 8
        slots, count = self.write_map(
            [Block(i // PAGE, bytes(content[i : i + PAGE])) for i in range(0, size, PAGE)], 2
        )
        return self.pack_inode(stat.S_IFREG | 0o600, size=size, slots=slots, pages=count, height=2)

    def save(self) -> None:
        self.inodes[ROOT] = (0o755, ROOT)
        directories = {n: r for n, r in self.inodes.items() if isinstance(r, tuple)}
        for number, (permissions, parent) in directories.items():
            self.write_directory(number, permissions, parent)
        used = set(self.inodes) | set(range(FIRST_FREE))
        self.inodes = {n: r[0] if isinstance(r, tuple) else r for n, r in self.inodes.items()}
        self.inodes[INODE_BITMAP] = self.bitmap_file(used)
        self.inodes[ORPHAN_BITMAP] = self.bitmap_file(self.orphans)
        blocks = []
        for first in range(0, max(self.inodes) + 1, 16):
            records = [self.inodes.get(number, bytes(256)) for number in range(first, first + 16)]
            if any(any(record) for record in records):
                blocks.append(Block(first // 16, b"".join(records)))
        slots, count = self.write_map(blocks, 3)
        size = (blocks[-1].index + 1) * PAGE
        inode_file = self.pack_inode(stat.S_IFREG | 0o600, size=size, slots=slots, pages=count, height=3)
        self.write_superblock(inode_file, len(used), self.write_bitmaps())
        self.file.close()

    def write_bitmaps(self) -> int:
        """Bitmaps, descriptors and their tables into slot A; the sum of the slots' checksums."""
        slot_sum = 0
        for chunk in self.pool.chunks:
            bits = sum(1 << i for i, state in enumerate(self.allocated[chunk.base]) if state)
            bitmap = bits.to_bytes(chunk.bitmap_pages * PAGE, "little")
            table = self.write_descriptors(chunk)
            offset = chunk.columns[0][1] + PAGE
            page = bytearray(self.pool.devices[0][0].read(offset, PAGE))
            struct.pack_into("<Q", page, 16, xxh3_64(bitmap, chunk.base))
            struct.pack_into("<QQ", page, 48, bits.bit_count(), xxh3_64(table, ~chunk.base & (1 << 64) - 1))
            checksum = unsealed_hash(bytes(page), 8, chunk.base)
            struct.pack_into("<Q", page, 8, checksum)
            slot_sum += checksum
            self.write_at(offset, bytes(page) + bitmap + table)
        return slot_sum % (1 << 64)

    def write_descriptors(self, chunk) -> bytes:
        """Place A of the pages of descriptors that change; the chunk's table."""
        table = list(self.pool.table(chunk))
        changed = self.descriptors.get(chunk.base, {})
        for index in {page // 256 for page in changed}:
            content = bytearray(self.pool.read_descriptors(chunk, index))
            for page, descriptor in changed.items():
                if page // 256 == index:
                    content[page % 256 * 16 : page % 256 * 16 + 16] = descriptor
            self.write_at(chunk.columns[0][1] + (chunk.descriptors_page + index) * PAGE, bytes(content))
            table[index] = table_word(bytes(content), chunk, index, 0)
        return struct.pack(f"<{len(table)}Q", *table)

    def write_superblock(self, inode_file: bytes, inode_used: int, slot_sum: int) -> None:
        offset = SUPERBLOCK_OFFSETS[self.pool.superblock.slot]
        page = bytearray(self.pool.devices[0][0].read(offset, PAGE))
        struct.pack_into("<QQ", page, 136, sum(map(sum, self.allocated.values())), inode_used)
        struct.pack_into("<Q", page, 248, slot_sum)
        page[608:864] = inode_file
        struct.pack_into("<Q", page, 16, unsealed_hash(bytes(page), 16, offset))
        self.write_at(offset, bytes(page))


class DirectoryBuilder:
    """The pages of a directory with these (name, inode number) entries."""

    def __init__(self, writer: ImageWriter, entries: list):
        self.writer = writer
        seed = writer.pool.superblock.name_hash_seed
        named = sorted((xxh3_64(name, seed), name, number) for name, number in entries)
        self.pages = [b""]
        leaf = self.leaf(named, 0, 0, 0)
        self.pages[0] = leaf if leaf is not None else self.node(named, 0, 0)

    def header(self, magic: bytes, level, depth, count, heap, prefix) -> bytes:
        return struct.pack("<4sHBBHHHHQQ", magic, 1, level, depth, count, heap, 0, 0, prefix, 0)

    def leaf(self, named: list, level: int, depth: int, prefix: int):
        """A leaf, or None if it would overflow."""
        if sum(16 + (8 + len(name) + 7) // 8 * 8 for _, name, _ in named) > PAGE - 32:
            return None
        slots, heap = b"", b""
        for digest, name, number in reversed(named):
            entry = struct.pack("<Q", number) + name
            heap = entry.ljust((len(entry) + 7) // 8 * 8, b"\0") + heap
            kind = self.writer.type_of(number)
            slots = struct.pack("<QHBBI", digest, PAGE - len(heap), len(name), kind, 0) + slots
        head = self.header(b"G4DL", level, depth, len(named), PAGE - len(heap), prefix)
        return (head + slots).ljust(PAGE - len(heap), b"\0") + heap

    def node(self, named: list, level: int, prefix: int) -> bytes:
        children = [0] * 512
        self.fill(children, named, level, prefix, 0, 0)
        head = self.header(b"G4DN", level, 0, 0, 0, prefix)
        return head.ljust(2048, b"\0") + struct.pack("<512I", *children)

    def fill(self, children: list, named: list, level: int, prefix: int, first: int, depth: int) -> None:
        """Slots [first, first + 2^(9 - depth)) of a node."""
        count = 1 << 9 - depth
        below = prefix | first << 55 - 9 * level
        leaf = self.leaf(named, level, depth, below)
        if leaf is not None or depth == 9:
            page = leaf if leaf is not None else self.node(named, level + 1, below)
            self.pages.append(page)
            children[first : first + count] = [len(self.pages) - 1] * count
            return
        middle = first + count // 2
        border = prefix | middle << 55 - 9 * level
        self.fill(children, [n for n in named if n[0] < border], level, prefix, first, depth + 1)
        self.fill(children, [n for n in named if n[0] >= border], level, prefix, middle, depth + 1)


def attribute_page(attributes: dict, places: dict | None = None) -> bytes:
    """A page of entries; `places`: slots and hashes of values with pages of their own."""
    body = b""
    for name, value in attributes.items():
        slot, value_hash = (places or {}).get(name, (0, xxh3_64(value, 0)))
        entry = struct.pack("<IIBBH", len(value), value_hash & 0xFFFFFFFF, len(name), 0, slot) + name
        entry += value if slot == 0 else b""
        body += entry.ljust((len(entry) + 7) // 8 * 8, b"\0")
    return struct.pack("<4sHHH6x", b"G4XA", 2, len(attributes), 16 + len(body)) + body


def great_value(value: bytes) -> tuple:
    """Pages and hash of a value with pages of its own."""
    pages = [value[at : at + PAGE].ljust(PAGE, b"\0") for at in range(0, len(value), PAGE)]
    value_hash = 0
    for page in pages:
        value_hash = xxh3_64(page, value_hash)
    return pages, value_hash
