#!/usr/bin/env python3
"""Runs xfstests on gpu4fs mounts and compares the results with expected.txt.

The suite is not part of this repository. XFSTESTS_DIR names a built checkout of it, GPU4FS the program. It needs root,
because the suite mounts. `make xfstests` does the rest.

    run.py                       the group generic/quick
    run.py generic/013 -g attr   tests, groups and other words as the suite's `check` takes them

Exits with 0 if all results are as expected, otherwise prints those that are not.
"""

import argparse
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
HELPERS = ("/sbin/mount.fuse.gpu4fs", "/sbin/umount.fuse.gpu4fs")
# Run with the option idmap, with which the kernel provides too little for other tests (docs/manual/pools.md).
IDMAPPED = tuple(f"generic/{number}" for number in (644, 645, 689, 698, 699))
USERS = ("fsgqa", "fsgqa2", "123456-fsgqa")
WAY_TO_GET = """
    git clone https://git.kernel.org/pub/scm/fs/xfs/xfstests-dev.git && make -C xfstests-dev
    XFSTESTS_DIR=$PWD/xfstests-dev make xfstests
Debian's packages for it: acl attr automake bc dbench e2fsprogs fio gawk gcc libacl1-dev libaio-dev libattr1-dev
libcap-dev libgdbm-dev libtool-bin liburing-dev libuuid1 make psmisc python3 quota sqlite3 uuid-dev uuid-runtime
xfslibs-dev xfsprogs. Its users: useradd -m fsgqa; useradd fsgqa2; useradd 123456-fsgqa"""
# `varies`: depends on the machine or its kernel.
EXPECTED_KINDS = ("fails", "not-run", "varies")
LINE = re.compile(r"^(generic/\d+)\s+(.*)$")


class Problem(Exception):
    """The reason why the suite cannot run."""


def parse_expected(text):
    """{test: (kind, reason)}"""
    expected = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        words = line.split(None, 2)
        if len(words) != 3 or words[1] not in EXPECTED_KINDS or words[0] in expected:
            raise Problem(f"expected.txt, line {number}: not 'TEST {'|'.join(EXPECTED_KINDS)} REASON', or twice")
        expected[words[0]] = (words[1], words[2])
    return expected


def parse_results(text):
    """{test: (outcome, reason)} from what `check` prints; outcome: passes, fails, not-run."""
    results = {}
    for line in text.splitlines():
        found = LINE.match(line)
        if not found:
            continue
        test, rest = found.groups()
        if "[not run]" in rest:
            results[test] = ("not-run", rest.split("[not run]", 1)[1].strip())
        elif "[failed" in rest or "output mismatch" in rest or "_check_" in rest:
            results[test] = ("fails", rest)
        elif "[expunged]" in rest:
            continue
        else:
            results[test] = ("passes", rest)
    return results


def surprises(expected, results):
    """Lines about unexpected results."""
    lines = []
    for test, (outcome, reason) in sorted(results.items()):
        wanted, why = expected.get(test, ("passes", ""))
        if outcome != wanted and wanted != "varies":
            lines.append(f"{test}: {outcome}, expected: {wanted}{' (' + why + ')' if why else ''}: {reason}")
    return lines


def summary(results):
    count = {kind: sum(1 for outcome, _ in results.values() if outcome == kind)
             for kind in ("passes", "fails", "not-run")}
    run = count["passes"] + count["fails"]
    return f"{run} tests were run: {count['passes']} passed, {count['fails']} failed; {count['not-run']} were not run"


def find_suite():
    folder = os.environ.get("XFSTESTS_DIR", "")
    if not folder:
        raise Problem("XFSTESTS_DIR names no folder. It is to name a built checkout of xfstests:" + WAY_TO_GET)
    if not os.access(os.path.join(folder, "ltp/fsstress"), os.X_OK):
        raise Problem(f"XFSTESTS_DIR={folder}: there is no built xfstests. To get it:" + WAY_TO_GET)
    return os.path.abspath(folder)


def require_machine():
    if os.geteuid() != 0:
        raise Problem("the suite mounts file systems: run it as root")
    if not os.path.exists("/dev/fuse"):
        raise Problem("/dev/fuse: not there; the kernel has no FUSE")
    for user in USERS:
        try:
            pwd.getpwnam(user)
        except KeyError:
            raise Problem(f"the user '{user}' is missing; the suite needs:" + WAY_TO_GET) from None


def add_helpers(program):
    """Creates the links by which mount(8) and umount(8) find the program. Returns the new ones."""
    made = []
    for helper in HELPERS:
        if os.path.lexists(helper):
            if os.path.realpath(helper) != os.path.realpath(program):
                remove_files(made)
                raise Problem(f"{helper}: leads to another program than {program}; the suite would test that one")
            continue
        os.symlink(program, helper)
        made.append(helper)
    return made


def remove_files(paths):
    for path in paths:
        os.unlink(path)


def add_df(folder):
    """The suite compares the type that df shows with FSTYP, without FUSE_SUBTYP. Returns PATH."""
    place = os.path.join(folder, "bin")
    os.mkdir(place)
    wrapper = os.path.join(place, "df")
    with open(wrapper, "w", encoding="utf-8") as file:
        file.write(f"#!/bin/sh\n{shutil.which('df')} \"$@\" | sed 's/ fuse[.]gpu4fs / fuse /'\n")
    os.chmod(wrapper, 0o755)
    return place + ":" + os.environ["PATH"]


def set_options(environment, options):
    for name in ("TEST_FS_MOUNT_OPTS", "FUSE_MOUNT_OPTIONS", "MOUNT_OPTIONS"):
        environment[name] = "-o " + options


def make_pools(program, folder, size):
    """The pools, and the suite's environment with them."""
    environment = dict(os.environ, FSTYP="fuse", FUSE_SUBTYP=".gpu4fs", RESULT_BASE=os.path.join(folder, "results"),
                       GPU4FS_CONTROL_FOLDER=os.path.join(folder, "run"), HOST_OPTIONS="/dev/null", PATH=add_df(folder))
    set_options(environment, "allow_other,engine=cpu")
    for name in ("test", "scratch"):
        device = os.path.join(folder, name + ".device")
        subprocess.run([program, "mkfs", "--quiet", "--size", size, device], check=True)
        place = os.path.join(folder, name)
        os.mkdir(place)
        environment["TEST_DEV" if name == "test" else "SCRATCH_DEV"] = device
        environment["TEST_DIR" if name == "test" else "SCRATCH_MNT"] = place
    os.chmod(folder, 0o755)
    return environment


def children():
    """{parent: [(process, command line)]}"""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read().decode(errors="replace").split("\0")
        except OSError:
            continue  # it ended meanwhile
        found.setdefault(parent, []).append((int(name), words))
    return found


def descendants(root, tree):
    for process, words in tree.get(root, []):
        yield process, words
        yield from descendants(process, tree)


class Watch(threading.Thread):
    """Ends tests that take too long, with all their child processes."""

    def __init__(self, root, limit_s):
        super().__init__(daemon=True)
        self.root = root
        self.limit_s = limit_s
        self.ended = threading.Event()
        self.since = {}

    def run(self):
        while not self.ended.wait(1):
            tree = children()
            running = {}
            for process, words in descendants(self.root, tree):
                if any(re.search(r"/tests/[a-z]+/\d+$", word) for word in words):
                    running[process] = self.since.get(process, time.monotonic())
            self.since = running
            for process, since in running.items():
                if time.monotonic() - since > self.limit_s:
                    self.kill(process, tree)

    def kill(self, root, tree):
        print(f"\n(took longer than {self.limit_s} s: ended)", flush=True)
        for process in [root, *(process for process, _ in descendants(root, tree))]:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass


def run_suite(suite, environment, words, limit_s):
    process = subprocess.Popen(["./check", "-fuse", *words], cwd=suite, env=environment, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace")
    watch = Watch(process.pid, limit_s)
    watch.start()
    printed = []
    for line in process.stdout:
        print(line, end="", flush=True)
        printed.append(line)
    process.wait()
    watch.ended.set()
    watch.join()
    return "".join(printed)


def run(arguments, rest):
    suite = find_suite()
    require_machine()
    program = os.path.realpath(os.environ.get("GPU4FS", "build/release/gpu4fs"))
    if not os.access(program, os.X_OK):
        raise Problem(f"GPU4FS={program}: no program")
    with open(arguments.expected, encoding="utf-8") as file:
        expected = parse_expected(file.read())
    folder = tempfile.mkdtemp(prefix="gpu4fs-xfstests-", dir=arguments.folder)
    made = add_helpers(program)
    try:
        environment = make_pools(program, folder, arguments.size)
        results = parse_results(run_suite(suite, environment, rest or ["-g", "generic/quick"], arguments.timeout))
        again = [test for test in IDMAPPED if test in results]
        if again:
            set_options(environment, "allow_other,engine=cpu,idmap")
            results.update(parse_results(run_suite(suite, environment, again, arguments.timeout)))
    finally:
        for place in ("test", "scratch"):
            subprocess.run(["umount", "-l", os.path.join(folder, place)], stderr=subprocess.DEVNULL)
        remove_files(made)
        if arguments.keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    lines = surprises(expected, results)
    print(summary(results))
    for line in lines:
        print(line)
    return 1 if lines or not results else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--expected", default=os.path.join(HERE, "expected.txt"), help="the list of expected results")
    parser.add_argument("--folder", default="/dev/shm", help="where pools, mounts and results are put")
    parser.add_argument("--size", default="3G", help="of each of the two pools")
    parser.add_argument("--timeout", type=int, default=900, help="seconds for one test")
    parser.add_argument("--keep", action="store_true", help="keep the folder with the suite's results")
    arguments, rest = parser.parse_known_args()
    try:
        sys.exit(run(arguments, rest))
    except Problem as problem:
        print(f"xfstests: {problem}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
