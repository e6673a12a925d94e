#!/usr/bin/env python3
"""An independent reader of gpu4fs pools, written from docs/internals/format.md.

usage: gpu4fs_reader.py info|list|log|verify DEVICE...
       gpu4fs_reader.py extract FOLDER DEVICE...

The devices of the pool are given in any order, at least as many as its redundancy requires. `list` prints one JSON
object a line, parents first; `log` the records after the newest checkpoint.
Exit status: 0 good, 1 damaged, 2 usage.
"""
import base64
import json
import os
import stat
import sys

from files import ROOT, FileSystem, open_file_system
from log import Log
from medium import FormatError
from verify import Checker


def text_of(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def time_of(encoded: int) -> str:
    return f"{(encoded >> 30) - (1 << 31)}.{encoded & (1 << 30) - 1:09}"


def print_info(fs: FileSystem) -> None:
    superblock = fs.pool.superblock
    uuid = superblock.pool_uuid.hex()
    print(
        json.dumps(
            {
                "pool_uuid": "-".join((uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:])),
                "label": superblock.label,
                "epoch": superblock.epoch,
                "clean": bool(superblock.clean),
                "devices": [device.path if device else None for device, _ in fs.pool.devices],
                "chunk_size": superblock.chunk_size_bytes,
                "chunks": len(fs.pool.chunks),
                "page_total": superblock.page_total,
                "page_used": superblock.page_used,
                "inode_used": superblock.inode_used,
                "data_checksums": fs.pool.has_data_checksums,
                "warnings": fs.pool.warnings,
            },
            indent=2,
        )
    )


def describe(fs: FileSystem, path: bytes, inode) -> dict:
    entry = {
        "path": text_of(path),
        "inode": inode.number,
        "mode": f"{inode.mode:07o}",
        "size": inode.size,
        "links": inode.link_count,
        "uid": inode.uid,
        "gid": inode.gid,
        "pages": inode.page_count,
        "access_time": time_of(inode.access_time),
        "modification_time": time_of(inode.modification_time),
        "change_time": time_of(inode.change_time),
        "birth_time": time_of(inode.birth_time),
    }
    if stat.S_ISLNK(inode.mode):
        entry["target"] = text_of(fs.read_content(inode))
    if stat.S_ISCHR(inode.mode) or stat.S_ISBLK(inode.mode):
        entry["device"] = [os.major(inode.parent), os.minor(inode.parent)]
    attributes = fs.attributes(inode)
    if attributes:
        entry["attributes"] = {
            text_of(name): base64.b64encode(value).decode() for name, value in sorted(attributes.items())
        }
    return entry


def walk(fs: FileSystem):
    """(path, inode) of everything below the root, parents first, names in order of their bytes."""
    pending = [(b"/", ROOT, {ROOT})]
    while pending:
        path, number, above = pending.pop()
        inode = fs.inode(number)
        yield path, inode
        if not inode.is_directory:
            continue
        for entry in sorted(fs.names(inode), key=lambda e: e.name, reverse=True):
            if entry.inode in above:
                raise FormatError(f"directory {entry.inode} is below itself")
            below = above | {entry.inode} if fs.inode(entry.inode).is_directory else above
            pending.append((path.rstrip(b"/") + b"/" + entry.name, entry.inode, below))


def print_list(fs: FileSystem) -> None:
    for path, inode in walk(fs):
        print(json.dumps(describe(fs, path, inode)))


def print_log(fs: FileSystem) -> None:
    log = Log(fs.pool)
    for record in log.records:
        print(log.describe(record))
    print(f"log: {len(log.records)} records from {log.start:#x} to {log.end:#x} of {log.capacity} bytes")
    if log.durable > log.end:
        print(f"log: damaged, was durable up to {log.durable:#x}")


def extract(fs: FileSystem, folder: str) -> None:
    """Regular files, directories and symbolic links; hard links stay links. Others are skipped."""
    os.makedirs(folder, exist_ok=True)
    first_names = {}
    for path, inode in walk(fs):
        target = os.fsencode(folder) + path.rstrip(b"/")
        if inode.number in first_names and not inode.is_directory:
            os.link(first_names[inode.number], target, follow_symlinks=False)
            continue
        if inode.is_directory:
            os.makedirs(target, exist_ok=True)
        elif stat.S_ISLNK(inode.mode):
            os.symlink(fs.read_content(inode), target)
        elif stat.S_ISREG(inode.mode):
            with open(target, "wb") as file:
                for offset, data in fs.content_runs(inode):
                    file.seek(offset)
                    file.write(data)
                file.truncate(inode.size)
            os.chmod(target, stat.S_IMODE(inode.mode) | stat.S_IRUSR)
        else:
            print(f"left out: {text_of(path)}", file=sys.stderr)
            continue
        first_names[inode.number] = target


def verify(fs: FileSystem) -> int:
    checker = Checker(fs)
    problems = checker.run()
    for note in checker.notes:
        print(f"note: {note}")
    for problem in problems:
        print(f"problem: {problem}")
    print(f"{len(checker.reached)} pages, {len(checker.used)} inodes, {len(problems)} problems")
    return 1 if problems else 0


def main(arguments: list) -> int:
    command = arguments[0] if arguments else ""
    devices = arguments[2:] if command == "extract" else arguments[1:]
    if command not in ("info", "list", "log", "verify", "extract") or not devices:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        fs = open_file_system(devices)
        if command == "info":
            print_info(fs)
        elif command == "list":
            print_list(fs)
        elif command == "log":
            print_log(fs)
        elif command == "extract":
            extract(fs, arguments[1])
        else:
            return verify(fs)
    except (FormatError, OSError) as error:
        print(f"problem: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
