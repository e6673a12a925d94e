"""The operation log, according to docs/internals/format.md section 11."""
import dataclasses
import struct

from medium import PAGE, FormatError, Pool, require
from xxh3 import xxh3_64

GRANULE = 64
RECORD_MAX = 69632
HEADER = 128
CAPACITY_MIN = 512 * 1024
FEATURE_LOG = 2
MASK = (1 << 64) - 1
OPCODES = (
    "none filler mknod mkdir symlink tmpfile link unlink rmdir rename write_bytes write_extents allocate set_size "
    "zero_range set_inode set_attribute remove_attribute reclaim row fallocate"
).split()


@dataclasses.dataclass
class Extent:
    address: int
    digest: int
    page_count: int
    flags: int

    @property
    def is_unwritten(self) -> bool:
        return bool(self.flags & 2)


class Record:
    def __init__(self, data: bytes):
        (self.lsn, self.checksum, self.length, self.opcode, self.flags, self.durable_lsn, self.time, self.inode,
         self.second_inode, self.offset, self.size, self.device, self.number, self.uid, self.gid, self.mode, self.mask,
         self.umask_bits, self.data_length, name_length, second_length, extent_count, self.reserved,
         self.epoch) = struct.unpack_from("<QQIHHQQQQQQQQIIIIIIHHHHQ", data)
        self.kind = OPCODES[self.opcode] if self.opcode < len(OPCODES) else str(self.opcode)
        self.names = [data[HEADER : HEADER + name_length],
                      data[HEADER + name_length : HEADER + name_length + second_length]]
        data_at = up(HEADER + name_length + second_length, 16)
        self.data = data[data_at : data_at + self.data_length]
        extents_at = up(data_at + self.data_length, 16)
        self.adds_up = up(extents_at + 32 * extent_count, GRANULE) == self.length
        self.extents = []
        if self.adds_up:
            self.extents = [Extent(*struct.unpack_from("<QQII", data, extents_at + 32 * i))
                            for i in range(extent_count)]


def row_adds_up(record: Record) -> bool:
    """The pages that are written and at least one parity are the record's data, and the parities sum up these pages."""
    pages = len(record.data) // PAGE
    fits = len(record.data) % PAGE == 0 and record.offset % PAGE == 0 and not record.extents
    return fits and 0 < record.number.bit_count() < pages and record.number & ~record.second_inode == 0


def generation_fits(record: Record) -> bool:
    makes_whiteout = record.kind == "rename" and record.mask & 4
    makes_inode = record.kind in ("mknod", "mkdir", "symlink", "tmpfile") or makes_whiteout
    return not makes_inode or record.size < 1 << 32


def up(value: int, granule: int) -> int:
    return -(-value // granule) * granule


def escaped(name: bytes) -> str:
    return "".join(chr(c) if 32 <= c < 127 and c != 92 else f"\\x{c:02x}" for c in name)


def mixed(value: int) -> int:
    """The finaliser of MurmurHash3."""
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & MASK
    return value ^ value >> 33


class Log:
    def __init__(self, pool: Pool):
        self.pool = pool
        superblock = pool.superblock
        # Two words of the superblock that only the log needs.
        page = superblock.page
        self.start, self.seed = struct.unpack_from("<QQ", page, 224)
        members = pool.devices[: superblock.tree_replica_count]
        self.capacity = superblock.log_capacity
        if self.capacity == 0:
            require(all(device is not None for device, _ in members), "a device with the operation log is missing")
            self.capacity = min(part.log_bytes for _, part in members) // PAGE * PAGE
        members = [(device, part) for device, part in members if device is not None]
        if superblock.feature_incompatible & 3 != FEATURE_LOG | 1 or self.capacity < CAPACITY_MIN:
            self.capacity = 0
        self.members = members
        self.records = []
        self.end = self.start
        self.durable = 0
        self.scan()

    def read_record(self, lsn: int):
        """The valid record with this number from the first device that has it, or None."""
        room = min(self.capacity - lsn % self.capacity, RECORD_MAX)
        for device, part in self.members:
            data = device.read(part.log_offset + lsn % self.capacity, room)
            own, checksum, length, opcode = struct.unpack_from("<QQIH", data)
            if own != lsn or length % GRANULE or not GRANULE <= length <= room:
                continue
            hashed = data[: GRANULE if opcode == 1 else length]
            if xxh3_64(hashed[:8] + bytes(8) + hashed[16:], self.seed ^ lsn) != checksum:
                continue
            if opcode == 1:
                return Record(hashed + bytes(HEADER))
            record = Record(data[:length])
            if (record.kind == "row" and not row_adds_up(record)) or not generation_fits(record):
                continue
            if record.adds_up and record.flags == 0 and record.reserved == 0 and record.durable_lsn <= lsn:
                return record
        return None

    def scan(self) -> None:
        if self.capacity == 0:
            return
        while self.end - self.start < self.capacity:
            record = self.read_record(self.end)
            if record is None:
                break
            require(1 <= record.opcode < len(OPCODES), f"record of unknown kind {record.opcode}")
            self.end += record.length
            if record.kind != "filler":
                self.durable = max(self.durable, record.durable_lsn)
                self.records.append(record)
        if not self.pool.superblock.clean:
            self.look_behind()

    def look_behind(self) -> None:
        """Valid records after the end may show that missing records were durable."""
        areas = [device.read(part.log_offset, self.capacity) for device, part in self.members]
        for lsn in range(self.end + GRANULE, self.start + self.capacity, GRANULE):
            if all(struct.unpack_from("<Q", area, lsn % self.capacity)[0] != lsn for area in areas):
                continue
            record = self.read_record(lsn)
            if record is not None and record.kind != "filler":
                self.durable = max(self.durable, record.durable_lsn)

    def pages_match(self, record: Record) -> bool:
        """Whether the pages that the record names have the content that was written for it."""
        for extent in record.extents:
            if extent.is_unwritten:
                continue
            digest = 0
            for i in range(extent.page_count):
                address = extent.address + i * PAGE
                try:
                    page = self.pool.read_page(address, verified=False)
                except FormatError:
                    return False
                digest += mixed(xxh3_64(page, address) + (i + 1) * 0x9E3779B97F4A7C15 & MASK)
            if digest & MASK != extent.digest:
                return False
        return True

    def describe(self, record: Record) -> str:
        names = " ".join(f'"{escaped(name)}"' for name in record.names if name)
        pages = sum(extent.page_count for extent in record.extents)
        parts = [
            f"{record.lsn:#x}: {record.kind}, {record.length} bytes, epoch {record.epoch}, "
            f"durable {record.durable_lsn:#x}",
            f"inode {record.inode}, second {record.second_inode}, number {record.number}, offset {record.offset}, "
            f"size {record.size}, data {record.data_length}, pages {pages}",
        ]
        line = ", ".join(parts) + (f", names {names}" if names else "")
        return line if self.pages_match(record) else line + ", its pages were not written"
