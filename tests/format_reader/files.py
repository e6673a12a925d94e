"""Inodes, file maps, directories and attributes, according to docs/internals/format.md sections 6 to 10."""
import dataclasses
import stat
import struct

from medium import PAGE, ZERO_PAGE, FormatError, Pool, is_zero, require
from xxh3 import xxh3_64

INODE_FILE, ROOT, INODE_BITMAP, ORPHAN_BITMAP, FIRST_FREE = 0, 1, 2, 3, 16
HEIGHT_MAX = 5
# Extended attributes: pages 0 to 63 have entries; a value longer than INLINE_MAX has sixteen pages of its own.
ENTRY_PAGES, SLOT_PAGES, INLINE_MAX, VALUE_MAX, NAMES_MAX = 64, 16, 1024, 65536, 65512


@dataclasses.dataclass
class Pointer:
    size: int
    indirect: bool
    unwritten: bool
    address: int

    @staticmethod
    def parse(word: int):
        """A pointer, or None for a hole."""
        if word & 8 == 0:
            require(word == 0, f"pointer {word:#x}: not valid and not zero")
            return None
        size = word & 3
        pointer = Pointer(size, bool(word & 4), bool(word & 32), word & ~0x7F)
        require(size != 0 and word & (16 | 64) == 0, f"pointer {word:#x}: reserved tags")
        require(pointer.address % (PAGE * 512 ** (size - 1)) == 0, f"pointer {word:#x}: alignment")
        if pointer.indirect:
            require(size == 1 and not pointer.unwritten, f"pointer {word:#x}: indirect")
        return pointer


@dataclasses.dataclass
class Block:
    """A run of pages of a file: indirect blocks have level >= 1 and index 0."""

    level: int  # 0: content, else an indirect block for slots of level - 1
    index: int  # first page in the file
    address: int
    page_count: int
    unwritten: bool


@dataclasses.dataclass
class AttributeEntry:
    name: bytes
    value: bytes  # empty if it has pages of its own
    length: int
    hash: int
    slot: int


class Inode:
    NAMES = (
        "size access_time modification_time change_time birth_time uid gid link_count mode height version "
        "attributes flags generation"
    ).split()

    def __init__(self, number: int, data: bytes):
        self.number = number
        for name, value in zip(self.NAMES, struct.unpack_from("<5Q3IHBBQII", data)):
            setattr(self, name, value)
        self.slots = struct.unpack_from("<7Q", data, 72)
        self.page_count, self.parent, self.entry_count, self.profile, self.attribute_height = struct.unpack_from(
            "<QQQHB", data, 200
        )
        self.is_inline = bool(self.flags & 1)
        self.inline = data[72:200]
        self.is_blank = is_zero(data)
        if self.mode == 0:
            return
        require(self.version == 1, f"inode {number}: version {self.version}")
        require(self.flags & ~15 == 0 and is_zero(data[227:256]), f"inode {number}: flags or reserved bytes")
        require(self.height <= HEIGHT_MAX, f"inode {number}: height {self.height}")
        require(self.attribute_height <= 2, f"inode {number}: attributes {self.attribute_height} high")
        require(self.attribute_height == 0 or self.attributes != 0, f"inode {number}: height without attributes")
        require(self.size <= 7 << 57, f"inode {number}: {self.size} bytes")
        if self.is_inline:
            require(self.size <= 128, f"inode {number}: {self.size} inline bytes")
        else:
            require(is_zero(data[128:200]), f"inode {number}: bytes behind the slots")

    @property
    def type(self) -> int:
        return stat.S_IFMT(self.mode)

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_metadata(self) -> bool:
        return self.number < FIRST_FREE or not stat.S_ISREG(self.mode)


@dataclasses.dataclass
class Name:
    name: bytes
    inode: int
    type: int
    hash: int


class FileSystem:
    def __init__(self, pool: Pool):
        self.pool = pool
        inode_file = Inode(INODE_FILE, pool.superblock.inode_file)
        require(stat.S_ISREG(inode_file.mode) and inode_file.height == 3, "inode file: mode or height")
        self.inodes = {INODE_FILE: inode_file}
        self.inode_count = inode_file.size // 256
        self.inode_pages = {}

    def inode(self, number: int) -> Inode:
        if number not in self.inodes:
            require(number < self.inode_count, f"inode {number}: beyond the inode file")
            index = number // 16
            if index not in self.inode_pages:
                self.inode_pages[index] = self.read_file_page(self.inodes[INODE_FILE], index)
            self.inodes[number] = Inode(number, self.inode_pages[index][number % 16 * 256 :][:256])
        return self.inodes[number]

    def needs_checksum(self, inode: Inode) -> bool:
        return inode.is_metadata or self.pool.has_data_checksums

    def blocks(self, inode: Inode):
        """All blocks of a file's map, indirect ones before their content."""
        if inode.is_inline:
            return
        for slot, word in enumerate(inode.slots):
            yield from self.blocks_below(inode, word, inode.height, slot * 512**inode.height)

    def blocks_below(self, inode: Inode, word: int, level: int, index: int):
        pointer = Pointer.parse(word)
        if pointer is None:
            return
        if not pointer.indirect:
            require(pointer.size == level + 1, f"inode {inode.number}: block of size tag {pointer.size}")
            yield Block(0, index, pointer.address, 512**level, pointer.unwritten)
            return
        require(level > 0, f"inode {inode.number}: indirect block in a slot of level 0")
        yield Block(level, index, pointer.address, 1, False)
        words = struct.unpack("<512Q", self.pool.read_page(pointer.address))
        for i, child in enumerate(words):
            if child != 0:
                yield from self.blocks_below(inode, child, level - 1, index + i * 512 ** (level - 1))

    def find_page(self, inode: Inode, index: int):
        """The logical address of one page of a file; None for zeros."""
        slot = index // 512**inode.height
        if slot >= 7:
            return None
        pointer = Pointer.parse(inode.slots[slot])
        level = inode.height
        while pointer is not None and pointer.indirect:
            require(level > 0, f"inode {inode.number}: too many levels")
            page = self.pool.read_page(pointer.address)
            level -= 1
            pointer = Pointer.parse(struct.unpack_from("<Q", page, index // 512**level % 512 * 8)[0])
        if pointer is None or pointer.unwritten:
            return None
        require(pointer.size == level + 1, f"inode {inode.number}: block of size tag {pointer.size}")
        return pointer.address + index % 512**level * PAGE

    def read_file_page(self, inode: Inode, index: int) -> bytes:
        address = self.find_page(inode, index)
        if address is None:
            return ZERO_PAGE
        return self.pool.read_page(address, self.needs_checksum(inode))

    def content_runs(self, inode: Inode):
        """(offset, bytes) of the file's content, holes and unwritten blocks left out."""
        if inode.is_inline:
            yield 0, inode.inline[: inode.size]
            return
        verified = self.needs_checksum(inode)
        for block in self.blocks(inode):
            if block.level > 0 or block.unwritten:
                continue
            for page in range(block.page_count):
                offset = (block.index + page) * PAGE
                if offset < inode.size:
                    data = self.pool.read_page(block.address + page * PAGE, verified)
                    yield offset, data[: inode.size - offset]

    def read_content(self, inode: Inode) -> bytes:
        """The whole content of a small file."""
        content = bytearray(inode.size)
        for offset, data in self.content_runs(inode):
            content[offset : offset + len(data)] = data
        return bytes(content)

    def bitmap_bits(self, number: int) -> set:
        """Numbers of the set bits of a bitmap file."""
        content = int.from_bytes(self.read_content(self.inode(number)), "little")
        bits = set()
        while content:
            low = content & -content
            bits.add(low.bit_length() - 1)
            content ^= low
        return bits

    def names(self, directory: Inode) -> list:
        """All names of a directory in order; its whole structure is checked on the way."""
        return DirectoryReader(self, directory).names

    def attribute_blocks(self, inode: Inode):
        """(level, index, address) of all pages of the tree of attributes, map pages before their content."""
        if inode.attributes != 0:
            yield from self.attribute_blocks_below(inode, inode.attributes, inode.attribute_height, 0)

    def attribute_blocks_below(self, inode: Inode, word: int, level: int, index: int):
        pointer = Pointer.parse(word)
        fits = pointer is not None and pointer.size == 1 and not pointer.unwritten and pointer.indirect == (level > 0)
        require(fits, f"inode {inode.number}: attribute pointer {word:#x}")
        yield level, index, pointer.address
        if level == 0:
            return
        for i, child in enumerate(struct.unpack("<512Q", self.pool.read_page(pointer.address))):
            if child != 0:
                yield from self.attribute_blocks_below(inode, child, level - 1, index * 512 + i)

    def attributes(self, inode: Inode) -> dict:
        """Values by name. The tree has exactly the pages that the entries name."""
        addresses = {index: address for level, index, address in self.attribute_blocks(inode) if level == 0}
        found, reached = {}, set()
        for index in sorted(index for index in addresses if index < ENTRY_PAGES):
            reached.add(index)
            for entry in parse_attributes(inode.number, self.pool.read_page(addresses[index])):
                require(entry.name not in found, f"inode {inode.number}: attribute {entry.name} twice")
                found[entry.name] = entry.value
                if entry.slot != 0:
                    own = range(entry.slot * SLOT_PAGES, entry.slot * SLOT_PAGES - (-entry.length // PAGE))
                    require(not reached.intersection(own), f"inode {inode.number}: pages of {entry.name} twice")
                    reached.update(own)
                    # When an inode is being freed, values are removed before their entries.
                    if inode.link_count != 0:
                        found[entry.name] = self.great_value(inode, entry, [addresses.get(page) for page in own])
        require(sum(len(name) + 1 for name in found) <= NAMES_MAX, f"inode {inode.number}: bytes of names")
        require(reached == set(addresses) or inode.link_count == 0,
                f"inode {inode.number}: pages of attributes without an entry")
        return found

    def great_value(self, inode: Inode, entry, addresses: list) -> bytes:
        require(None not in addresses, f"inode {inode.number}: page of {entry.name} is missing")
        pages = [self.pool.read_page(address) for address in addresses]
        value_hash = 0
        for page in pages:
            value_hash = xxh3_64(page, value_hash)
        require(value_hash & 0xFFFFFFFF == entry.hash, f"inode {inode.number}: hash of {entry.name}")
        value = b"".join(pages)
        require(is_zero(value[entry.length :]), f"inode {inode.number}: bytes behind {entry.name}")
        return value[: entry.length]


def is_access_list(value: bytes) -> bool:
    if len(value) % 8 != 4 or value[:4] != b"\2\0\0\0":
        return False
    entries = [struct.unpack_from("<HHI", value, at) for at in range(4, len(value), 8)]
    tags = [tag for tag, _, _ in entries]
    if tags != sorted(tags) or not set(tags) <= {1, 2, 4, 8, 16, 32} or any(bits > 7 for _, bits, _ in entries):
        return False
    once = all(tags.count(tag) == 1 for tag in (1, 4, 32)) and tags.count(16) <= 1
    return once and (16 in tags or not {2, 8} & set(tags))


def parse_attributes(number: int, page: bytes) -> list:
    magic, version, count, used = struct.unpack_from("<4sHHH", page)
    require(magic == b"G4XA" and version == 2, f"inode {number}: no attribute page")
    require(is_zero(page[10:16]) and 16 <= used <= PAGE, f"inode {number}: attribute page header")
    found, offset = [], 16
    for _ in range(count):
        require(offset + 12 <= used, f"inode {number}: attribute is cut off")
        length, value_hash, name_length, reserved, slot = struct.unpack_from("<IIBBH", page, offset)
        name = page[offset + 12 : offset + 12 + name_length]
        inside = length if slot == 0 else 0
        value = page[offset + 12 + name_length :][:inside]
        offset = (offset + 12 + name_length + inside + 7) // 8 * 8
        require(offset <= used and name_length > 0 and reserved == 0, f"inode {number}: attribute {name}")
        require(0 not in name, f"inode {number}: attribute {name}")
        is_list = name in (b"system.posix_acl_access", b"system.posix_acl_default")
        is_great = length > INLINE_MAX and not is_list
        require(length <= VALUE_MAX and is_great == (slot != 0), f"inode {number}: place of {name}")
        if is_great:
            require(ENTRY_PAGES // SLOT_PAGES <= slot < 512 * 512 // SLOT_PAGES, f"inode {number}: place of {name}")
        else:
            require(value_hash == xxh3_64(value, 0) & 0xFFFFFFFF, f"inode {number}: hash of {name}")
        if is_list:
            require(is_access_list(value), f"inode {number}: {name} is no access control list")
        found.append(AttributeEntry(name, value, length, value_hash, slot))
    require(offset == used, f"inode {number}: {used} bytes of attributes used, entries end at {offset}")
    return found


class DirectoryReader:
    """Walks the hash tree of one directory and checks it (docs/internals/format.md section 9)."""

    def __init__(self, file_system: FileSystem, directory: Inode):
        self.fs = file_system
        self.directory = directory
        self.seed = file_system.pool.superblock.name_hash_seed
        self.names = []
        self.pages = set()
        require(not directory.is_inline and directory.size % PAGE == 0, self.where("inode"))
        self.walk(0, -1, 0, 0)

    def where(self, what) -> str:
        return f"directory {self.directory.number}: {what}"

    def walk(self, index: int, parent_level: int, prefix: int, slot_count: int) -> None:
        """The page `index` that is in `slot_count` slots (0: the root), with hashes of `prefix`."""
        require(index < self.directory.size // PAGE, self.where(f"page {index} beyond its end"))
        require(index not in self.pages, self.where(f"page {index} has two places"))
        self.pages.add(index)
        page = self.fs.read_file_page(self.directory, index)
        magic, version, level, depth, count, heap, garbage, reserved, own_prefix, reserved1 = struct.unpack_from(
            "<4sHBBHHHHQQ", page
        )
        require(version == 1 and reserved == 0 and reserved1 == 0, self.where(f"page {index}: header"))
        require(own_prefix == prefix, self.where(f"page {index}: prefix {own_prefix:#x}, not {prefix:#x}"))
        if magic == b"G4DN":
            require(level == parent_level + 1 and level <= 6, self.where(f"page {index}: level {level}"))
            require(slot_count <= 1 and depth == 0, self.where(f"node {index} in {slot_count} slots"))
            self.walk_node(page, level, prefix)
            return
        require(magic == b"G4DL", self.where(f"page {index}: neither leaf nor node"))
        require(level == max(parent_level, 0), self.where(f"leaf {index}: level {level}"))
        if slot_count == 0:
            require(depth == 0, self.where("root leaf with a depth"))
            bits = 0
        else:
            require(slot_count == 1 << 9 - depth, self.where(f"leaf {index}: depth {depth}"))
            bits = 9 * level + depth
        self.read_leaf(page, index, count, heap, garbage, prefix, bits)

    def walk_node(self, page: bytes, level: int, prefix: int) -> None:
        children = struct.unpack_from("<512I", page, 2048)
        require(is_zero(page[32:2048]), self.where("bytes between a node's header and its slots"))
        slot = 0
        while slot < 512:
            end = slot + 1
            while end < 512 and children[end] == children[slot]:
                end += 1
            count = end - slot
            require(children[slot] != 0, self.where(f"slot {slot} names page 0"))
            require(count & (count - 1) == 0 and slot % count == 0, self.where(f"slots {slot} to {end - 1}"))
            self.walk(children[slot], level, prefix | slot << (55 - 9 * level), count)
            slot = end

    def read_leaf(self, page, index, count, heap, garbage, prefix, bits) -> None:
        where = self.where(f"leaf {index}")
        require(32 + 16 * count <= heap <= PAGE, f"{where}: {count} slots, heap from {heap}")
        used, previous = [], None
        for i in range(count):
            digest, offset, length, kind, reserved = struct.unpack_from("<QHBBI", page, 32 + 16 * i)
            require(offset % 8 == 0 and offset >= heap and length > 0, f"{where}: slot {i}")
            end = (offset + 8 + length + 7) // 8 * 8
            require(end <= PAGE and reserved == 0, f"{where}: entry of slot {i}")
            name = page[offset + 8 : offset + 8 + length]
            require(b"/" not in name and b"\0" not in name, f"{where}: name {name}")
            require(name not in (b".", b".."), f"{where}: name {name}")
            require(xxh3_64(name, self.seed) == digest, f"{where}: hash of {name}")
            require(bits == 0 or digest >> 64 - bits == prefix >> 64 - bits, f"{where}: {name} in a wrong leaf")
            require(previous is None or previous < (digest, name), f"{where}: order at {name}")
            previous = (digest, name)
            used.append((offset, end))
            self.names.append(Name(name, struct.unpack_from("<Q", page, offset)[0], kind, digest))
        used.sort()
        require(all(a[1] <= b[0] for a, b in zip(used, used[1:])), f"{where}: entries overlap")
        total = sum(end - begin for begin, end in used)
        require(total + garbage == PAGE - heap, f"{where}: {total} bytes of entries, {garbage} of garbage")


def open_file_system(paths: list) -> FileSystem:
    try:
        return FileSystem(Pool(paths))
    except struct.error as error:
        raise FormatError(str(error)) from error
