"""The checker: docs/internals/format.md section 11. Collects problems instead of stopping at the first."""
import stat
import struct

from files import FIRST_FREE, INODE_BITMAP, INODE_FILE, ORPHAN_BITMAP, ROOT, DirectoryReader, FileSystem
from medium import GRANULE, PAGE, FormatError, is_zero, unsealed_hash


class Checker:
    def __init__(self, file_system: FileSystem):
        self.fs = file_system
        self.pool = file_system.pool
        self.problems = []
        self.notes = list(self.pool.warnings)
        self.reached = {}  # page address -> inode number
        self.links = {}  # inode number -> names that lead to it
        self.subdirectories = {}
        self.used = set()

    def run(self) -> list:
        self.attempt("chunks", self.check_chunks)
        self.attempt("chunk maps", self.check_chunk_maps)
        self.attempt("inodes", self.check_inodes)
        self.attempt("names", self.check_names)
        self.attempt("links", self.check_links)
        self.attempt("bitmaps", self.check_inode_bitmaps)
        self.attempt("allocation", self.check_allocation)
        return self.problems

    def fault(self, text: str) -> None:
        self.problems.append(text)

    def attempt(self, what: str, step, *arguments):
        try:
            return step(*arguments)
        except (FormatError, struct.error) as error:
            self.fault(f"{what}: {error}")
            return None

    def check_chunks(self) -> None:
        self.bitmaps = {}
        total = slot_sum = 0
        for chunk in self.pool.chunks:
            here = [column for column in range(chunk.redundancy + 1) if self.pool.is_here(chunk, column)]
            copies = [self.check_header_area(chunk, column) for column in here]
            found = [copy for copy in copies if copy is not None]
            if any(copy != found[0] for copy in found):
                self.fault(f"chunk {chunk.base:#x}: copies of the bitmap differ")
            if found:
                self.bitmaps[chunk.base] = found[0][0]
                total += found[0][1]
                slot_sum += found[0][2]
        if total != self.pool.superblock.page_used:
            self.fault(f"bitmaps have {total} pages allocated, the superblock {self.pool.superblock.page_used}")
        if slot_sum % (1 << 64) != self.pool.superblock.slot_sum:
            self.fault("the sum of the slots' checksums is not the superblock's: a slot was lost")

    def check_descriptors(self, chunk, column: int) -> None:
        """Checks every page of descriptors of one copy."""
        for index, entry in enumerate(self.pool.table(chunk)[: chunk.descriptor_pages]):
            if self.pool.descriptors_in(chunk, column, index, entry) is None:
                self.fault(f"chunk {chunk.base:#x}: column {column}: page {index} of the descriptors: checksum")
        if any(self.pool.table(chunk)[chunk.descriptor_pages :]):
            self.fault(f"chunk {chunk.base:#x}: words behind the descriptor table's end")

    def check_header_area(self, chunk, column: int):
        """Checks one copy of a chunk's header area; returns its bitmap and number of pages in use."""
        index, offset = chunk.columns[column]
        page = self.pool.read_area(chunk, 0, 1, column)
        magic, version, own, checksum, uuid, base, size, epoch = struct.unpack_from("<4sHHQ16sQQQ", page)
        right = (b"G4CH", 1, column, self.pool.superblock.pool_uuid, chunk.base, chunk.size, chunk.epoch_created)
        if (magic, version, own, uuid, base, size, epoch) != right or not is_zero(page[56:]):
            self.fault(f"chunk {chunk.base:#x}: header of column {column}")
        if checksum != unsealed_hash(page, 8, chunk.base):
            self.fault(f"chunk {chunk.base:#x}: checksum of the header of column {column}")
        self.attempt(f"chunk {chunk.base:#x}", self.check_descriptors, chunk, column)
        return self.attempt(
            f"chunk {chunk.base:#x}",
            self.pool.read_bitmap,
            self.pool.devices[index][0],
            offset + PAGE,
            chunk.bitmap_pages,
            chunk.base,
            chunk.page_count,
            chunk.table_pages,
        )

    def check_chunk_maps(self) -> None:
        for index, (device, part) in enumerate(self.pool.devices):
            if device is None:
                continue
            expected = 0
            for chunk in self.pool.chunks:
                for device_index, offset in chunk.columns:
                    if device_index == index:
                        first = (offset - part.chunk_area_offset) // GRANULE
                        expected |= ((1 << -(-chunk.column_bytes // GRANULE)) - 1) << first
            found = self.attempt(
                f"chunk map of {device.path}",
                self.pool.read_bitmap,
                device,
                part.chunk_map_offset,
                part.chunk_map_pages,
                index,
                part.chunk_area_granules,
            )
            if found is not None and int.from_bytes(found[0], "little") != expected:
                self.fault(f"{device.path}: the chunk map is not the set of columns")

    def check_inodes(self) -> None:
        self.check_blocks(self.fs.inode(INODE_FILE))
        for first in range(0, self.fs.inode_count, 16):
            if self.fs.find_page(self.fs.inode(INODE_FILE), first // 16) is None:
                continue
            for number in range(max(first, 1), first + 16):
                self.attempt(f"inode {number}", self.check_inode, number)

    def check_inode(self, number: int) -> None:
        inode = self.fs.inode(number)
        if inode.mode == 0:
            if 4 <= number < FIRST_FREE and not inode.is_blank:
                self.fault(f"inode {number}: reserved and not zero")
            return
        if 4 <= number < FIRST_FREE:
            self.fault(f"inode {number}: reserved and in use")
        self.used.add(number)
        has_content = inode.is_directory or stat.S_ISREG(inode.mode) or stat.S_ISLNK(inode.mode)
        if not has_content and (inode.size != 0 or any(inode.slots)):
            self.fault(f"inode {number}: content in a file of this type")
        self.check_blocks(inode)
        self.attempt(f"inode {number}", self.fs.attributes, inode)

    def claim(self, inode, address: int, count: int) -> None:
        chunk = self.pool.chunk_of(address)
        if address + count * PAGE > chunk.base + chunk.size:
            self.fault(f"inode {inode.number}: block {address:#x} crosses its chunk's end")
        for page in range(address, address + count * PAGE, PAGE):
            if page in self.reached:
                self.fault(f"page {page:#x}: of inode {inode.number} and of inode {self.reached[page]}")
            self.reached[page] = inode.number

    def check_blocks(self, inode) -> None:
        """Claims every block of an inode, verifies its pages and counts them."""
        count = 0
        verified = self.fs.needs_checksum(inode)
        for block in self.fs.blocks(inode):
            count += block.page_count
            self.claim(inode, block.address, block.page_count)
            if block.level > 0 or block.unwritten:
                continue  # indirect blocks were verified when they were read
            for page in range(block.page_count):
                where = f"inode {inode.number} page {block.index + page}"
                self.attempt(where, self.check_page, inode, block, page, verified)
        for _, _, address in self.fs.attribute_blocks(inode):
            count += 1
            self.claim(inode, address, 1)
        if count != inode.page_count:
            self.fault(f"inode {inode.number}: {count} pages found, {inode.page_count} counted")

    def check_page(self, inode, block, page: int, verified: bool) -> None:
        data = self.pool.read_page(block.address + page * PAGE, verified)
        end = inode.size - (block.index + page) * PAGE
        if 0 < end < PAGE and not is_zero(data[end:]):
            self.fault(f"inode {inode.number}: bytes behind the end of the file are not zero")
        birth = self.pool.descriptor(block.address + page * PAGE)[1]
        if verified and birth > self.pool.superblock.epoch & 0xFFFFFFFF:
            self.fault(f"inode {inode.number}: page of epoch {birth}, which is in the future")

    def check_names(self) -> None:
        """Checks every directory in use, reachable or not, so one fault does not hide others."""
        for number in sorted(self.used):
            inode = self.fs.inode(number)
            if inode.is_directory:
                self.attempt(f"directory {number}", self.check_directory, inode)

    def check_directory(self, directory) -> None:
        reader = DirectoryReader(self.fs, directory)
        self.check_unreached_pages(directory, reader.pages)
        names = reader.names
        if len(names) != directory.entry_count:
            self.fault(f"directory {directory.number}: {len(names)} names, {directory.entry_count} counted")
        if [(n.hash, n.name) for n in names] != sorted((n.hash, n.name) for n in names):
            self.fault(f"directory {directory.number}: enumeration is not in hash order")
        for entry in names:
            if entry.inode not in self.used or entry.inode < FIRST_FREE:
                self.fault(f"directory {directory.number}: {entry.name} leads to inode {entry.inode}, not in use")
                continue
            child = self.fs.inode(entry.inode)
            if entry.type != child.mode >> 12:
                self.fault(f"directory {directory.number}: type {entry.type} of {entry.name}")
            self.links[entry.inode] = self.links.get(entry.inode, 0) + 1
            if child.is_directory:
                self.subdirectories[directory.number] = self.subdirectories.get(directory.number, 0) + 1
                if child.parent != directory.number:
                    self.fault(f"directory {entry.inode}: parent {child.parent}, named in {directory.number}")

    def check_unreached_pages(self, directory, pages: set) -> None:
        for block in self.fs.blocks(directory):
            if block.level == 0 and block.index not in pages and block.index * PAGE < directory.size:
                self.notes.append(f"directory {directory.number}: page {block.index} is in no node")

    def check_links(self) -> None:
        root = self.fs.inode(ROOT)
        if not root.is_directory or root.parent != ROOT or ROOT in self.links:
            self.fault("the root is no directory, has a name or a parent")
        self.orphans = set()
        for number in sorted(self.used):
            inode = self.fs.inode(number)
            names = self.links.get(number, 0)
            if inode.is_directory:
                expected = 2 + self.subdirectories.get(number, 0)
                if names == 0 and number != ROOT:
                    expected = 0
                if names > 1:
                    self.fault(f"directory {number}: {names} names")
            else:
                expected = names
            if number < FIRST_FREE and number != ROOT:
                continue
            if expected == 0:
                self.orphans.add(number)
            if inode.link_count != expected:
                self.fault(f"inode {number}: {inode.link_count} links counted, {expected} found")
        self.check_cycles()

    def check_cycles(self) -> None:
        """Reports directories with a name whose parents do not lead to the root."""
        for number in self.used:
            seen, current = set(), number
            while current != ROOT and current not in seen and current in self.used:
                seen.add(current)
                inode = self.fs.inode(current)
                if not inode.is_directory or self.links.get(current, 0) == 0:
                    break
                current = inode.parent
            if current in seen and self.links.get(current, 0) > 0 and self.fs.inode(current).is_directory:
                self.fault(f"directory {number}: its parents form a ring")

    def check_inode_bitmaps(self) -> None:
        bits = self.fs.bitmap_bits(INODE_BITMAP)
        expected = self.used | set(range(FIRST_FREE))
        self.compare("inode bitmap", bits, expected)
        if len(bits) != self.pool.superblock.inode_used:
            self.fault(f"superblock: {self.pool.superblock.inode_used} inodes used, {len(bits)} bits set")
        self.compare("orphan bitmap", self.fs.bitmap_bits(ORPHAN_BITMAP), self.orphans)

    def compare(self, what: str, bits: set, expected: set) -> None:
        for number in sorted(bits - expected):
            self.fault(f"{what}: bit {number} is set without reason")
        for number in sorted(expected - bits):
            self.fault(f"{what}: bit {number} is not set")

    def check_allocation(self) -> None:
        for chunk in self.pool.chunks:
            if chunk.base not in self.bitmaps:
                continue
            expected = bytearray(chunk.bitmap_pages * PAGE)
            for page in range(chunk.page_count):
                if chunk.base + page * PAGE in self.reached:
                    expected[page // 8] |= 1 << page % 8
            if self.bitmaps[chunk.base] == expected:
                continue
            self.compare_pages(chunk, self.bitmaps[chunk.base], expected)

    def compare_pages(self, chunk, bitmap: bytes, expected: bytes) -> None:
        """One line for each run of pages with the same fault."""
        runs = []  # [first address, page count, state]
        for page in range(chunk.page_count):
            allocated = bitmap[page // 8] >> page % 8 & 1
            if allocated == expected[page // 8] >> page % 8 & 1:
                continue
            address = chunk.base + page * PAGE
            state = "allocated and not reached" if allocated else "reached and not allocated"
            if runs and runs[-1][0] + runs[-1][1] * PAGE == address and runs[-1][2] == state:
                runs[-1][1] += 1
            else:
                runs.append([address, 1, state])
        for address, count, state in runs:
            self.fault(f"{count} pages from {address:#x}: {state}")
