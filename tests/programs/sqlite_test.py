"""SQLite on the mount: every journal mode, several connections, integrity after a remount."""

import os
import sqlite3
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from mounted_pool import MountedPool, in_own_namespace, scale  # noqa: E402


def fill(path, mode, rows):
    database = sqlite3.connect(path, timeout=60)
    got = database.execute(f"PRAGMA journal_mode={mode}").fetchone()[0]
    assert got == mode, f"journal mode {got}, wanted {mode}"
    database.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, part INTEGER, text BLOB)")
    database.execute("CREATE INDEX by_part ON t(part)")
    database.commit()
    for begin in range(0, rows, 100):
        with database:
            database.executemany("INSERT INTO t VALUES(?,?,?)",
                                 ((i, i % 7, os.urandom(i % 500)) for i in range(begin, begin + 100)))
        if begin % 300 == 0:
            with database:
                database.execute("DELETE FROM t WHERE part = ? AND id < ?", (begin % 7, begin // 2))
    total = database.execute("SELECT count(*), sum(length(text)) FROM t").fetchone()
    database.close()
    return total


def write_together(path, threads, rows):
    """Several connections that insert at the same time; SQLite's locks must separate them."""
    failures = []

    def insert(part):
        try:
            database = sqlite3.connect(path, timeout=60)
            for i in range(rows):
                with database:
                    database.execute("INSERT INTO t(part, text) VALUES(?,?)", (100 + part, str(i)))
            database.close()
        except sqlite3.Error as error:
            failures.append(error)

    workers = [threading.Thread(target=insert, args=(part,)) for part in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures, failures


def check(path, total):
    database = sqlite3.connect(path)
    assert database.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    got = database.execute("SELECT count(*), sum(length(text)) FROM t WHERE part < 100").fetchone()
    assert got == total, (got, total)
    count = database.execute("SELECT count(*) FROM t WHERE part >= 100").fetchone()[0]
    database.close()
    return count


def main():
    modes = ("delete", "truncate", "persist", "wal")
    rows = 100 * scale(12)
    with MountedPool(device_mib=128) as pool:
        totals = {}
        for mode in modes:
            totals[mode] = fill(pool.path(mode + ".db"), mode, rows)
            write_together(pool.path(mode + ".db"), 3, 20)
            assert check(pool.path(mode + ".db"), totals[mode]) == 60
        pool.remount()
        for mode in modes:
            assert check(pool.path(mode + ".db"), totals[mode]) == 60
    print(f"SQLite: {len(modes)} journal modes, {rows} rows each, integrity ok after a remount")


if __name__ == "__main__":
    in_own_namespace()
    main()
