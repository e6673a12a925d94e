"""Devices, superblocks, the chunk tree and translation, according to docs/internals/format.md sections 2 to 5."""
import dataclasses
import functools
import os
import struct

from xxh3 import xxh3_64

PAGE = 4096
ZERO_PAGE = bytes(PAGE)
GRANULE = 65536
FEATURE_DATA_CHECKSUMS = 1
FEATURE_STALE_DEVICES = 4
FEATURE_MIXED_PROFILES = 8
FEATURE_REMOVED_DEVICES = 16
FEATURE_PHYSICAL = 32
SUPERBLOCK_OFFSETS = (65536, 131072)


class FormatError(Exception):
    """The medium contradicts docs/internals/format.md."""


class SlotPassedOver(FormatError):
    """A superblock slot that is blank or torn: the other one may be valid."""


def require(condition, message: str) -> None:
    if not condition:
        raise FormatError(message)


def is_zero(data: bytes) -> bool:
    return not any(data)


def unsealed_hash(page: bytes, offset: int, seed: int) -> int:
    """Hash of a page whose own checksum of 8 bytes at `offset` counts as zero."""
    return xxh3_64(page[:offset] + bytes(8) + page[offset + 8 :], seed)


class Device:
    def __init__(self, path: str):
        self.path = path
        self.fd = os.open(path, os.O_RDONLY)
        self.size = os.lseek(self.fd, 0, os.SEEK_END)

    def read(self, offset: int, length: int) -> bytes:
        data = os.pread(self.fd, length, offset)
        require(len(data) == length, f"{self.path}: ends before byte {offset + length}")
        return data


@dataclasses.dataclass
class DevicePart:
    uuid: bytes
    size_bytes: int
    tree_offset: int
    tree_pages: int
    chunk_map_offset: int
    chunk_map_pages: int
    log_offset: int
    log_bytes: int
    chunk_area_offset: int
    chunk_area_granules: int
    index: int

    @staticmethod
    def parse(data: bytes) -> "DevicePart":
        require(is_zero(data[92:128]), "reserved bytes of the device part")
        return DevicePart(data[0:16], *struct.unpack_from("<9QI", data, 16))

    def check(self, device_size: int) -> None:
        require(self.size_bytes <= device_size, f"device of {device_size} bytes, {self.size_bytes} used")
        areas = (
            (self.tree_offset, self.tree_pages * PAGE),
            (self.chunk_map_offset, 2 * (1 + self.chunk_map_pages) * PAGE),
            (self.log_offset, self.log_bytes),
            (self.chunk_area_offset, self.chunk_area_granules * GRANULE),
        )
        end = 262144
        for offset, length in areas:
            require(offset >= end and offset % PAGE == 0, f"area at {offset} overlaps or is not aligned")
            end = offset + length
        require(end <= self.size_bytes, f"areas end at {end} of {self.size_bytes}")
        require(self.chunk_area_offset % GRANULE == 0, "chunk area is not aligned")
        require(self.chunk_map_pages * 32768 >= self.chunk_area_granules, "chunk map is too short")


class Superblock:
    NAMES = (
        "magic version slot checksum epoch pool_uuid feature_compatible feature_read_only_compatible "
        "feature_incompatible chunk_size_bytes name_hash_seed creation_time checkpoint_time device_count "
        "chunk_count tree_root tree_height tree_replica_count clean reserved0 tree_node_count page_total "
        "page_used inode_used data_profile metadata_profile reserved1"
    ).split()

    def __init__(self, page: bytes, slot: int, device_size: int):
        for name, value in zip(self.NAMES, struct.unpack_from("<QIIQQ16s7Q3I4B4Q2HI", page)):
            setattr(self, name, value)
        if is_zero(page):
            raise SlotPassedOver("no superblock")
        if self.magic != int.from_bytes(b"!GPU4FS1", "little"):
            raise SlotPassedOver("superblock magic")
        if self.checksum != unsealed_hash(page, 16, SUPERBLOCK_OFFSETS[slot]):
            raise SlotPassedOver("superblock checksum")
        require(self.version == 2, f"format version {self.version}")
        require(self.slot == slot and self.epoch % 2 == slot and 1 <= self.epoch <= 1 << 62, "slot or epoch")
        require(self.feature_incompatible & ~63 == 0, f"features {self.feature_incompatible:#x}")
        require(1 <= self.device_count <= 64, f"{self.device_count} devices")
        size = self.chunk_size_bytes
        require(size & (size - 1) == 0 and 1 << 23 <= size <= 1 << 30, f"chunk size {size}")
        if self.feature_compatible == 0 and self.feature_read_only_compatible == 0:
            reserved = page[119:120] + page[156:160] + page[256:480] + page[2400:]
            require(is_zero(reserved), "reserved bytes of the superblock")
        self.is_mixed = bool(self.feature_incompatible & FEATURE_MIXED_PROFILES)
        self.has_physical_chunks = bool(self.feature_incompatible & FEATURE_PHYSICAL)
        require(self.is_mixed or not self.has_physical_chunks, "chunks of devices in a pool of one profile")
        known = range(1, 9 if self.is_mixed else 7)
        require(self.data_profile in known and self.metadata_profile in known, "unknown profile")
        require(self.is_mixed or self.data_profile == self.metadata_profile, "profiles differ")
        require(1 <= self.tree_height <= 8, f"tree height {self.tree_height}")
        require(1 <= self.tree_replica_count <= self.device_count, "tree replicas")
        require(self.page_used <= self.page_total and self.clean <= 1, "page counts or clean flag")
        self.label = page[160:224].rstrip(b"\0").decode("utf-8", "replace")
        self.device = DevicePart.parse(page[480:608])
        self.device.check(device_size)
        self.inode_file = page[608:864]
        self.uuids = [page[864 + 16 * i : 880 + 16 * i] for i in range(64)]
        require(is_zero(b"".join(self.uuids[self.device_count :])), "UUIDs beyond the device count")
        named = [uuid for uuid in self.uuids[: self.device_count] if not is_zero(uuid)]
        require(len(set(named)) == len(named), "doubled device UUIDs")
        has_gaps = len(named) < self.device_count
        require(has_gaps == bool(self.feature_incompatible & FEATURE_REMOVED_DEVICES), "removed devices")
        require(not any(is_zero(uuid) for uuid in self.uuids[: self.tree_replica_count]),
                "a removed device with the tree")
        require(not is_zero(self.device.uuid), "a device without UUID")
        require(self.device.index < self.device_count, "device index")
        require(self.device.uuid == self.uuids[self.device.index], "device UUID")
        self.check_later_fields(page)
        self.common = page[:16] + page[24:480] + page[608:]
        self.page = page


    def check_later_fields(self, page: bytes) -> None:
        self.log_capacity, self.slot_sum = struct.unpack_from("<QQ", page, 240)
        holds_log = self.device.index < self.tree_replica_count
        require(self.log_capacity % PAGE == 0, "log capacity")
        require(not holds_log or self.log_capacity <= self.device.log_bytes, "log capacity")
        self.stale_since = struct.unpack_from("<64Q", page, 1888)
        members = [not is_zero(uuid) for uuid in self.uuids]
        require(not any(since and not here for since, here in zip(self.stale_since, members)),
                "a stale device that is none")
        require(max(self.stale_since) <= self.epoch, "a device that is stale since a later epoch")
        require(self.stale_since[self.device.index] == 0, "a device that says it is stale")
        require(any(self.stale_since) == bool(self.feature_incompatible & FEATURE_STALE_DEVICES), "stale devices")


SINGLE, RAID0, RAID1 = 1, 2, 3
PARITIES = {4: 1, 5: 2, 6: 3}  # by level: raid5, raid6, raid7
REGION = 512  # pages that rows do not cross


@functools.lru_cache(maxsize=None)
def times_power(exponent: int) -> bytes:
    """Every byte times 2^exponent in GF(2^8) with the polynomial 0x11d."""
    table = list(range(256))
    for _ in range(exponent):
        table = [value << 1 ^ (0x11D if value & 0x80 else 0) for value in table]
    return bytes(table)


@functools.lru_cache(maxsize=None)
def times(factor: int) -> bytes:
    """Every byte times `factor` in the same field."""
    powers = [times_power(bit) for bit in range(8) if factor >> bit & 1]
    return bytes(functools.reduce(lambda sum, power: sum ^ power[value], powers, 0) for value in range(256))


@dataclasses.dataclass
class Chunk:
    base: int
    size: int
    flags: int
    epoch_created: int
    level: int  # 1 single, 2 raid0, 3 raid1, 4 raid5, 5 raid6, 6 raid7
    redundancy: int
    stripe: int  # bytes
    columns: list  # (device index, byte offset)

    def __post_init__(self):
        self.page_count = self.size // PAGE
        self.bitmap_pages = -(-self.page_count // 32768)
        self.descriptor_pages = -(-self.page_count // 256)
        self.table_pages = -(-self.descriptor_pages // 512)
        self.descriptors_page = 3 + 2 * (self.bitmap_pages + self.table_pages)
        self.header_pages = (self.descriptors_page + 2 * self.descriptor_pages + 15) // 16 * 16
        self.parity_count = PARITIES.get(self.level, 0)
        if self.parity_count:
            self.slot_count = len(self.columns) - self.parity_count
            self.region_rows = -(-REGION // self.slot_count)
            self.unit = min(self.stripe // PAGE, self.region_rows)
            self.full_stripes = REGION // (self.unit * self.slot_count)
            column_pages = self.page_count // REGION * self.region_rows
        else:
            column_pages = self.page_count // (len(self.columns) if self.level == RAID0 else 1)
        self.column_bytes = (self.header_pages + column_pages) * PAGE

    def row_of(self, page: int) -> tuple:
        """(row, pages of its slots, column of slot 0) of the row that holds a logical page."""
        region, inside = divmod(page, REGION)
        full_pages = self.unit * self.slot_count
        stripe = min(inside // full_pages, self.full_stripes)
        begin = stripe * full_pages
        is_last = stripe == self.full_stripes
        unit = self.region_rows - self.full_stripes * self.unit if is_last else self.unit
        end = REGION if is_last else begin + full_pages
        at = (inside - begin) % unit
        pages = [region * REGION + other for other in range(begin + at, end, unit)]
        stripes = self.full_stripes + (self.region_rows > self.full_stripes * self.unit)
        row = region * self.region_rows + stripe * self.unit + at
        return row, pages[: self.slot_count], (region * stripes + stripe) % len(self.columns)

    def places(self, page: int) -> list:
        """(column, page of its data area) of each copy of a logical page."""
        if self.level == RAID0:
            length = self.stripe // PAGE
            row, column = divmod(page // length, len(self.columns))
            return [(column, row * length + page % length)]
        if self.parity_count:
            row, pages, shift = self.row_of(page)
            return [((pages.index(page) + shift) % len(self.columns), row)]
        return [(column, page) for column in range(self.redundancy + 1)]


class Pool:
    """An opened pool. `warnings` lists what was skipped without harm."""

    def __init__(self, paths: list):
        self.warnings = []
        members = [self.read_member(Device(path)) for path in paths]
        newest = max((superblock for _, superblock in members), key=lambda s: s.epoch)
        self.superblock = newest
        self.devices = self.order_members(members, newest)
        self.chunks = ChunkTree(self).chunks
        self.check_columns()
        self.granules = {}
        for chunk in self.chunks:
            for base in range(chunk.base, chunk.base + chunk.size, newest.chunk_size_bytes):
                self.granules[base // newest.chunk_size_bytes] = chunk
        self.descriptor_pages = {}
        self.tables = {}
        self.rows_checked = set()

    def read_member(self, device: Device):
        found, problems = [], []
        for slot, offset in enumerate(SUPERBLOCK_OFFSETS):
            try:
                found.append(Superblock(device.read(offset, PAGE), slot, device.size))
            except SlotPassedOver as error:
                problems.append(f"{device.path}: slot {'AB'[slot]}: {error}")
        require(found, "; ".join(problems))
        self.warnings += [text for text in problems if "no superblock" not in text]
        return device, max(found, key=lambda superblock: superblock.epoch)

    def order_members(self, members: list, newest: Superblock) -> list:
        """A device that is missing or stale is (None, None)."""
        ordered = [(None, None)] * newest.device_count
        for device, own in members:
            require(own.pool_uuid == newest.pool_uuid, f"{device.path}: of another pool")
            index = own.device.index
            if own.device.uuid != newest.uuids[index]:
                self.warnings.append(f"{device.path}: is no member any more")
                continue
            since = newest.stale_since[index]
            require(since == 0 or own.epoch < since, f"{device.path}: was written without the others")
            if since != 0 or own.epoch + 1 < newest.epoch:
                self.warnings.append(f"{device.path}: is stale")
                continue
            if own.epoch == newest.epoch:
                require(own.common == newest.common, f"{device.path}: superblocks of one epoch differ")
            else:
                self.warnings.append(f"{device.path}: lacks epoch {newest.epoch}")
            require(ordered[index][0] is None, f"{device.path}: device {index} is there twice")
            ordered[index] = (device, own.device)
        for index, (device, _) in enumerate(ordered):
            if device is None and not is_zero(newest.uuids[index]):
                self.warnings.append(f"device {index} is not here: {newest.uuids[index].hex()}")
        return ordered

    def is_here(self, chunk, column: int) -> bool:
        return self.devices[chunk.columns[column][0]][0] is not None

    def header_column(self, chunk) -> int:
        """The first with a copy of the header area."""
        here = [column for column in range(chunk.redundancy + 1) if self.is_here(chunk, column)]
        require(here, f"chunk {chunk.base:#x}: too many of its devices are missing")
        return here[0]

    def check_columns(self) -> None:
        extents = []
        for chunk in self.chunks:
            members = [index for index, _ in chunk.columns]
            require(len(set(members)) == len(members), f"chunk {chunk.base:#x}: two columns on one device")
            absent = [index for index in members if index < len(self.devices) and self.devices[index][0] is None]
            require(
                len(absent) <= chunk.redundancy,
                f"device {absent[0] if absent else 0} is missing, and chunk {chunk.base:#x} cannot do without it",
            )
            for index, offset in chunk.columns:
                require(index < len(self.devices), f"chunk {chunk.base:#x}: device {index}")
                device, part = self.devices[index]
                if device is None:
                    require(offset % GRANULE == 0, f"chunk {chunk.base:#x}: column at {offset}")
                    extents.append((index, offset, offset + chunk.column_bytes))
                    continue
                end = part.chunk_area_offset + part.chunk_area_granules * GRANULE
                inside = part.chunk_area_offset <= offset and offset + chunk.column_bytes <= end
                require(inside and offset % GRANULE == 0, f"chunk {chunk.base:#x}: column at {offset}")
                extents.append((index, offset, offset + chunk.column_bytes))
        extents.sort()
        for (device, _, end), (other, begin, _) in zip(extents, extents[1:]):
            require(device != other or begin >= end, f"columns overlap on device {device} at {begin}")

    def chunk_of(self, address: int) -> Chunk:
        chunk = self.granules.get(address // self.superblock.chunk_size_bytes)
        require(chunk is not None, f"address {address:#x} lies in no chunk")
        return chunk

    def read_area(self, chunk: Chunk, first_page: int, page_count: int, column=None) -> bytes:
        column = self.header_column(chunk) if column is None else column
        index, offset = chunk.columns[column]
        return self.devices[index][0].read(offset + first_page * PAGE, page_count * PAGE)

    def descriptor(self, address: int) -> tuple:
        """(checksum, birth epoch, flags) of the page at a logical address."""
        chunk = self.chunk_of(address)
        number = (address - chunk.base) // PAGE
        key = (chunk.base, number // 256)
        if key not in self.descriptor_pages:
            self.descriptor_pages[key] = self.read_descriptors(chunk, number // 256)
        return struct.unpack_from("<QII", self.descriptor_pages[key], number % 256 * 16)

    def read_descriptors(self, chunk: Chunk, index: int) -> bytes:
        """Page `index` of the chunk's descriptors, from the first column that has it."""
        entry = self.table(chunk)[index]
        for column in range(chunk.redundancy + 1):
            if self.is_here(chunk, column):
                page = self.descriptors_in(chunk, column, index, entry)
                if page is not None:
                    return page
        raise FormatError(f"chunk {chunk.base:#x}: page {index} of the descriptors: checksum")

    def descriptors_in(self, chunk: Chunk, column: int, index: int, entry: int):
        """The same as one column has it, or None; `entry` is the table's word."""
        if entry == 0:
            return ZERO_PAGE
        page = self.read_area(chunk, chunk.descriptors_page + entry % 2 * chunk.descriptor_pages + index, 1, column)
        return page if entry == table_word(page, chunk, index, entry % 2) else None

    def table(self, chunk: Chunk) -> tuple:
        """The descriptor table of the current slot, from the first column that has it."""
        if chunk.base not in self.tables:
            slots = []
            for column in range(chunk.redundancy + 1):
                if self.is_here(chunk, column):
                    index, offset = chunk.columns[column]
                    slots.append(self.find_slot(self.devices[index][0], offset + PAGE, chunk))
            require(any(slots), f"chunk {chunk.base:#x}: no valid bitmap slot")
            epoch = max(slot.epoch for slot in slots if slot is not None)
            found = [slot for slot in slots if slot is not None and slot.epoch == epoch and slot.table is not None]
            require(found, f"chunk {chunk.base:#x}: the descriptor table's checksum")
            # Without a page in use the words have no meaning.
            self.tables[chunk.base] = found[0].table if found[0].count else (0,) * len(found[0].table)
        return self.tables[chunk.base]

    def find_slot(self, device: Device, offset: int, chunk: Chunk):
        """The current slot of a chunk's copy, or None."""
        best = None
        for number in (0, 1):
            slot = Slot(device, offset, number, chunk.base, chunk.page_count, chunk.bitmap_pages, chunk.table_pages)
            if slot.is_valid and slot.epoch <= self.superblock.epoch and (best is None or slot.epoch > best.epoch):
                best = slot
        return best

    def read_page(self, address: int, verified: bool = True) -> bytes:
        """The page at a logical address; a checksum that does not match is an error."""
        chunk = self.chunk_of(address)
        number = (address - chunk.base) // PAGE
        pages = [
            self.read_area(chunk, chunk.header_pages + place, 1, column)
            for column, place in chunk.places(number)
            if self.is_here(chunk, column)
        ]
        if not pages and chunk.parity_count:
            pages = [self.page_from_row(chunk, number)]
        require(pages, f"page {address:#x}: its devices are missing")
        if not verified:
            return pages[0]
        checksum, _, flags = self.descriptor(address)
        right = (1 if chunk.parity_count else 0, 2)
        require(flags in right, f"page {address:#x}: flags of its descriptor")
        if chunk.parity_count and flags != 2:
            self.check_row(chunk, (address - chunk.base) // PAGE)
        good = [page for page in pages if xxh3_64(page, address) == checksum]
        require(good, f"page {address:#x}: checksum does not match")
        if len(good) != len(pages):
            self.warnings.append(f"page {address:#x}: {len(pages) - len(good)} of {len(pages)} copies are damaged")
        return good[0]

    def read_row(self, chunk: Chunk, page: int) -> tuple:
        """(row, sums of its present pages by parity, missing slots, parities or None each)"""
        row, pages, shift = chunk.row_of(page)
        sums, missing, parities = [0] * chunk.parity_count, [], []
        for slot, other in enumerate(pages):
            flags = self.descriptor(chunk.base + other * PAGE)[2]
            if flags & 3 == 0:
                continue
            column = (slot + shift) % len(chunk.columns)
            if not self.is_here(chunk, column) or flags & 2:
                missing.append(slot)
                continue
            content = self.read_area(chunk, chunk.header_pages + row, 1, column)
            for j in range(chunk.parity_count):
                sums[j] ^= int.from_bytes(content.translate(times_power(j * slot)), "little")
        for j in range(chunk.parity_count):
            column = (chunk.slot_count + j + shift) % len(chunk.columns)
            here = self.is_here(chunk, column)
            content = self.read_area(chunk, chunk.header_pages + row, 1, column) if here else None
            parities.append(content and int.from_bytes(content, "little"))
        return row, sums, missing, parities

    def check_row(self, chunk: Chunk, page: int) -> None:
        """The parities of the page's row are the sums of the pages that are marked as included."""
        row, sums, missing, parities = self.read_row(chunk, page)
        if missing or (chunk.base, row) in self.rows_checked:
            return
        self.rows_checked.add((chunk.base, row))
        for j, parity in enumerate(parities):
            same = parity is None or parity == sums[j]
            require(same, f"row {row} of chunk {chunk.base:#x}: parity {j} does not match")

    def page_from_row(self, chunk: Chunk, page: int) -> bytes:
        """Computes a page whose device is missing from the rest of its row: elimination over the missing slots."""
        row, sums, missing, parities = self.read_row(chunk, page)
        pages = chunk.row_of(page)[1]
        target = pages.index(page)
        require(target in missing, f"page {page} of chunk {chunk.base:#x} is in no parity")
        order = [slot for slot in missing if slot != target] + [target]
        equations = [
            ([times_power(j * slot)[1] for slot in order], (parity ^ sums[j]).to_bytes(PAGE, "little"))
            for j, parity in enumerate(parities)
            if parity is not None
        ]
        require(len(equations) >= len(order), f"row {row} of chunk {chunk.base:#x}: too many devices are missing")
        for i in range(len(order)):
            pivot = next(k for k in range(i, len(equations)) if equations[k][0][i])
            equations[i], equations[pivot] = equations[pivot], equations[i]
            factors, content = equations[i]
            scale = times(next(x for x in range(256) if times(x)[factors[i]] == 1))
            factors, content = [scale[factor] for factor in factors], content.translate(scale)
            equations[i] = factors, content
            for k in range(i + 1, len(equations)):
                other, rest = equations[k]
                table = times(other[i])
                mixed = int.from_bytes(rest, "little") ^ int.from_bytes(content.translate(table), "little")
                equations[k] = [a ^ table[b] for a, b in zip(other, factors)], mixed.to_bytes(PAGE, "little")
        return equations[len(order) - 1][1]

    @property
    def has_data_checksums(self) -> bool:
        return bool(self.superblock.feature_incompatible & FEATURE_DATA_CHECKSUMS)

    def read_bitmap(self, device: Device, offset: int, pages: int, base: int, bit_count: int, table_pages: int = 0):
        """The bitmap (as bytes), the set count and the header's checksum of the current slot."""
        best = None
        for number in (0, 1):
            slot = Slot(device, offset, number, base, bit_count, pages, table_pages)
            if slot.is_valid and slot.epoch <= self.superblock.epoch and (best is None or slot.epoch > best.epoch):
                best = slot
        require(best is not None, f"{device.path}: no valid bitmap slot at {offset}")
        bitmap = best.bitmap
        require(xxh3_64(bitmap, base) == best.bitmap_checksum, f"{device.path}: bitmap at {best.begin}: checksum")
        require(best.table is not None, f"{device.path}: descriptor table of the slot at {best.begin}: checksum")
        set_count = int.from_bytes(bitmap, "little").bit_count()
        require(set_count == best.count, f"{device.path}: bitmap at {best.begin}: {set_count} bits, not {best.count}")
        require(int.from_bytes(bitmap, "little") >> bit_count == 0, "bits beyond the bitmap's end")
        return bitmap, set_count, best.checksum


def table_word(page: bytes, chunk: Chunk, index: int, place: int) -> int:
    """The descriptor table's word for a page of descriptors."""
    return (xxh3_64(page, chunk.base + index) & ~1 or 2) | place


class Slot:
    """A bitmap slot: its header, the bitmap and, in a chunk, the descriptor table."""

    def __init__(self, device: Device, offset: int, number: int, base: int, bits: int, pages: int, table_pages: int):
        self.begin = offset + number * (1 + pages + table_pages) * PAGE
        page = device.read(self.begin, PAGE)
        head = struct.unpack_from("<4sHHQQQQQQQ", page)
        self.checksum, self.bitmap_checksum = head[3:5]
        self.epoch, own_bits, self.count, table_checksum = head[6:]
        self.is_valid = head[:3] == (b"G4CB", 2, number) and head[5] == base
        self.is_valid = self.is_valid and self.checksum == unsealed_hash(page, 8, base ^ number)
        if not self.is_valid:
            return
        require(own_bits == bits and is_zero(page[64:]), f"bitmap header at {self.begin}: bit count")
        self.bitmap = device.read(self.begin + PAGE, pages * PAGE)
        table = device.read(self.begin + (1 + pages) * PAGE, table_pages * PAGE)
        if table_pages == 0:
            require(table_checksum == 0, f"bitmap header at {self.begin}: a table's checksum")
            self.table = ()
        elif xxh3_64(table, ~base & (1 << 64) - 1) == table_checksum:
            self.table = struct.unpack(f"<{len(table) // 8}Q", table)
        else:
            self.table = None


class ChunkTree:
    def __init__(self, pool: Pool):
        self.pool = pool
        self.superblock = pool.superblock
        self.chunks = []
        self.node_count = 0
        self.walk(self.superblock.tree_root, self.superblock.tree_height - 1, None)
        require(len(self.chunks) == self.superblock.chunk_count, "chunk count of the superblock")
        pages = sum(chunk.page_count for chunk in self.chunks)
        require(pages == self.superblock.page_total, "page_total of the superblock")
        require(self.node_count == self.superblock.tree_node_count, "node count of the superblock")

    def read_node(self, number: int, level: int) -> tuple:
        problems = []
        newest = None  # of the valid replicas
        for device, part in self.pool.devices[: self.superblock.tree_replica_count]:
            if device is None:
                continue
            try:
                require(number < part.tree_pages, f"node {number} outside the tree area")
                page = device.read(part.tree_offset + number * PAGE, PAGE)
                magic, version, own_level, reserved, checksum, epoch, count, used = struct.unpack_from(
                    "<4sHBBQQII", page
                )
                require(magic == b"G4CT" and version == 1 and reserved == 0, f"node {number}: magic")
                require(checksum == unsealed_hash(page, 8, number), f"node {number}: checksum")
                require(own_level == level, f"node {number}: level {own_level}")
                require(1 <= epoch <= self.superblock.epoch, f"node {number}: epoch {epoch}")
                require(count >= 1 and used <= PAGE - 32, f"node {number}: entry count")
                if newest is None or epoch > newest[0]:
                    newest = epoch, count, page[32 : 32 + used]
            except FormatError as error:
                problems.append(f"{device.path}: chunk tree: {error}")
        require(newest is not None, "; ".join(problems))
        self.pool.warnings += problems
        return newest[1:]

    def walk(self, number: int, level: int, first_key) -> None:
        self.node_count += 1
        require(self.node_count <= self.superblock.tree_node_count, "too many chunk tree nodes")
        count, entries = self.read_node(number, level)
        offset = 0
        for i in range(count):
            size = 16 if level > 0 else 40
            require(offset + size <= len(entries), f"node {number}: entry {i} is cut off")
            key = struct.unpack_from("<Q", entries, offset)[0]
            require(i > 0 or first_key in (None, key), f"node {number}: first key {key:#x}")
            if level > 0:
                child, reserved = struct.unpack_from("<II", entries, offset + 8)
                require(reserved == 0, f"node {number}: reserved bytes")
                self.walk(child, level - 1, key)
                offset += 16
            else:
                offset = self.add_chunk(entries, offset)
        require(offset == len(entries), f"node {number}: used bytes")

    def add_chunk(self, entries: bytes, offset: int) -> int:
        base, size, level, redundancy, columns, stripe, flags, device, epoch = struct.unpack_from(
            "<QQBBHIIIQ", entries, offset
        )
        granule = self.superblock.chunk_size_bytes
        end = self.chunks[-1].base + self.chunks[-1].size if self.chunks else granule
        require(base >= end and base % granule == 0, f"chunk {base:#x}: order or alignment")
        require(size > 0 and size % granule == 0, f"chunk {base:#x}: size {size}")
        require(base + size <= granule << 24, f"chunk {base:#x}: beyond the logical space")
        self.check_shape(base, size, level, redundancy, columns, stripe)
        require(flags & ~7 == 0 and flags & 3 != 0, f"chunk {base:#x}: flags or reserved bytes")
        is_physical = flags & 4 != 0
        require(is_physical or device == 0, f"chunk {base:#x}: flags or reserved bytes")
        require(1 <= epoch <= self.superblock.epoch, f"chunk {base:#x}: epoch")
        end = offset + 40 + 8 * columns
        require(end <= len(entries), f"chunk {base:#x}: column is cut off")
        words = struct.unpack_from(f"<{columns}Q", entries, offset + 40)
        places = [(word >> 48, (word & (1 << 48) - 1) * PAGE) for word in words]
        if is_physical:
            fits = self.superblock.has_physical_chunks and flags & 2 == 0 and level == SINGLE and device < 56
            require(fits and places[0][0] == device, f"chunk {base:#x}: device that it belongs to")
        self.chunks.append(Chunk(base, size, flags, epoch, level, redundancy, stripe, places))
        return end

    @staticmethod
    def check_shape(base: int, size: int, level: int, redundancy: int, columns: int, stripe: int) -> None:
        if level == RAID0:
            fits = redundancy == 0 and 2 <= columns <= 64
            fits = fits and stripe in (1 << n for n in range(12, 21)) and size % (stripe * columns) == 0
        elif level == RAID1:
            fits = redundancy == columns - 1 and 2 <= columns <= 4 and stripe == 0
        elif level in PARITIES:
            fits = redundancy == PARITIES[level] and PARITIES[level] < columns <= 64
            fits = fits and stripe in (1 << n for n in range(12, 21)) and size % (REGION * PAGE) == 0
        else:
            fits = (level, redundancy, columns, stripe) == (SINGLE, 0, 1, 0)
        require(fits, f"chunk {base:#x}: profile")
