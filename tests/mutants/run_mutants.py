#!/usr/bin/env python3
"""Enables the mutants of src/base/mutant_list.hpp one by one, and runs the tests that have to notice each.

A mutant is killed if its tests fail with it, end by a signal, or do not end in time. It survives if they pass; if they
did not reach the mutated expression, it is reported as not reached. Before that the tests run without a mutant and have
to pass (the canary), so a failure is caused by the mutant. Exits with 0 if all chosen mutants were killed.
"""
import argparse
import dataclasses
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
ROW = re.compile(r'X\(\s*(\w+)\s*,\s*(\w+)\s*,\s*"((?:[^"\\]|\\.)*)"\s*,\s*"((?:[^"\\]|\\.)*)"\s*\)')
USE = re.compile(r"\bGPU4FS_MUTANT\(\s*(\w+)\s*,")
RAN = re.compile(r"^\[=+\] (\d+) tests? from \d+ test suites? ran", re.M)
FAILED_CASE = re.compile(r"^\[  FAILED  \] ([\w/.]+)", re.M)


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str
    program: str  # gpu4fs_<program>_test
    tests: str  # a filter of gtest
    breaks: str


@dataclasses.dataclass
class Outcome:
    kind: str  # passed, failed, late, none
    text: str
    seconds: float
    was_reached: bool = False


def read_list(text: str) -> list[Mutant]:
    return [Mutant(*found) for found in ROW.findall(text.replace("\\\n", "\n"))]


def gtest_filter(tests: str) -> str:
    """Tests with parameters have a prefix before the name and the parameter after it."""
    parts = tests.split(":")
    return ":".join([*parts, *(f"*/{part}" for part in parts), *(f"*/{part}/*" for part in parts)])


def program_path(build: pathlib.Path, program: str) -> pathlib.Path:
    return build / f"gpu4fs_{program}_test"


# Tests without a mutant are only stopped if they hang: a busy machine may need many times as long for them.
CANARY_LIMIT_S = 300


def run_tests(build: pathlib.Path, program: str, tests: str, mutant: str, limit_s: float) -> Outcome:
    """`mutant`: empty for none."""
    # Files of a program that ends suddenly are removed with the folder.
    with tempfile.TemporaryDirectory(prefix="gpu4fs_mutant_", dir=MEMORY) as folder:
        reached = pathlib.Path(folder) / "reached"
        environment = dict(os.environ, GPU4FS_MUTANT=mutant, GPU4FS_MUTANT_REACHED=str(reached), TMPDIR=folder,
                           GPU4FS_TEST_MEMORY=folder)
        environment["GPU4FS_TEST_SCALE"] = "10"
        environment["ASAN_OPTIONS"] = "detect_leaks=0:abort_on_error=0"
        command = [str(program_path(build, program)), f"--gtest_filter={gtest_filter(tests)}", "--gtest_color=no"]
        if mutant:
            command.append("--gtest_fail_fast")
        began = time.monotonic()
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, start_new_session=True)
        try:
            output, _ = process.communicate(timeout=limit_s)
            late = False
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            late = True
        text = output.decode(errors="replace")
        seconds = time.monotonic() - began
        ran = RAN.search(text)
        if late:
            kind = "late"
        elif process.returncode != 0:
            kind = "failed"
        elif ran is None or int(ran[1]) == 0:
            kind = "none"
        else:
            kind = "passed"
        return Outcome(kind, text, seconds, reached.exists())


def has_tests(build: pathlib.Path, mutant: Mutant) -> bool:
    """A build may have only a part of the tests."""
    program = program_path(build, mutant.program)
    if not program.exists():
        return False
    command = [str(program), "--gtest_list_tests", f"--gtest_filter={gtest_filter(mutant.tests)}"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    return any(line.startswith("  ") for line in listed.stdout.splitlines())


def killer(outcome: Outcome) -> str:
    if outcome.kind == "late":
        return "the time limit"
    found = FAILED_CASE.search(outcome.text)
    if found:
        return found[1]
    started = re.findall(r"^\[ RUN      \] ([\w/.]+)", outcome.text, re.M)
    return f"the end of the program in {started[-1]}" if started else "the end of the program"


class Runner:
    def __init__(self, build: pathlib.Path, limit_s: float, verbose: bool):
        self.build, self.limit_s, self.verbose = build, limit_s, verbose
        self.canaries: dict[tuple[str, str], Outcome] = {}
        self.counts = {"killed": 0, "survived": 0, "not reached": 0, "did not run": 0}

    def canary(self, mutant: Mutant) -> Outcome:
        key = (mutant.program, mutant.tests)
        if key not in self.canaries:
            self.canaries[key] = run_tests(self.build, *key, "", CANARY_LIMIT_S)
        return self.canaries[key]

    def judge(self, mutant: Mutant) -> tuple[str, str]:
        if not program_path(self.build, mutant.program).exists():
            return "did not run", f"there is no {program_path(self.build, mutant.program)}"
        canary = self.canary(mutant)
        if canary.kind == "none":
            return "did not run", f"no test of gpu4fs_{mutant.program}_test is called {mutant.tests}"
        if canary.kind != "passed":
            return "did not run", f"its tests do not pass without it: {killer(canary)}\n{canary.text[-3000:]}"
        limit_s = max(self.limit_s, 3 * canary.seconds)
        outcome = run_tests(self.build, mutant.program, mutant.tests, mutant.name, limit_s)
        if "there is no such mutant" in outcome.text:
            return "did not run", "the program was built without it"
        if outcome.kind in ("failed", "late"):
            if not outcome.was_reached:
                return "did not run", f"its tests failed before they came to it\n{outcome.text[-3000:]}"
            return "killed", f"by {killer(outcome)}, {outcome.seconds:.1f} s"
        if not outcome.was_reached:
            return "not reached", f"{mutant.tests} of gpu4fs_{mutant.program}_test never came to it"
        return "survived", f"{mutant.tests} of gpu4fs_{mutant.program}_test passed"

    def run(self, mutants: list[Mutant]) -> bool:
        for mutant in mutants:
            verdict, why = self.judge(mutant)
            self.counts[verdict] += 1
            if verdict != "killed" or self.verbose:
                print(f"{verdict}: {mutant.name}: {why}", flush=True)
                if verdict in ("survived", "not reached"):
                    print(f"    {mutant.breaks}", flush=True)
        print("mutants: " + ", ".join(f"{count} {kind}" for kind, count in self.counts.items()))
        return self.counts["killed"] == len(mutants) and bool(mutants)


def check_list(mutants: list[Mutant], sources: dict[str, str]) -> list[str]:
    """Every row is used in the source once, and has a sentence."""
    uses: dict[str, list[str]] = {}
    for path, text in sources.items():
        for name in USE.findall(text):
            uses.setdefault(name, []).append(path)
    faults = [f"{name} is twice in the list" for name in {m.name for m in mutants}
              if sum(m.name == name for m in mutants) > 1]
    for mutant in mutants:
        places = uses.pop(mutant.name, [])
        if len(places) != 1:
            faults.append(f"{mutant.name}: {len(places)} places in the source: {' '.join(places)}")
        if not mutant.breaks.endswith(".") or len(mutant.breaks) < 20:
            faults.append(f"{mutant.name}: a sentence says what it breaks")
    return faults + [f"{path[0]}: {name} is not in the list" for name, path in uses.items()]


def read_sources() -> dict[str, str]:
    paths = [path for path in (ROOT / "src").rglob("*") if path.suffix in (".hpp", ".cpp", ".cu", ".cuh")]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths
            if path.name not in ("mutant.hpp", "mutant_list.hpp")}


def has_mutants(program: pathlib.Path) -> bool:
    """The name of the environment variable that enables one."""
    return b"GPU4FS_MUTANT" in program.read_bytes()


# A test program for the self-test: gtest's output, and a mutant that behaves as its name says.
FAKE = r"""#!/bin/sh
touch_it() { [ -n "$GPU4FS_MUTANT_REACHED" ] && : >"$GPU4FS_MUTANT_REACHED"; }
case "$1" in *None*) echo "[==========] 0 tests from 0 test suites ran. (0 ms total)"; exit 0;; esac
case "$1" in *Broken*) echo "[  FAILED  ] A.B"; exit 1;; esac
case "$GPU4FS_MUTANT" in
  killed) touch_it; echo "[  FAILED  ] A.B"; exit 1;;
  crashes) touch_it; kill -SEGV $$;;
  hangs) touch_it; exec sleep 60;;
  survives) touch_it;;
  fails_elsewhere) exit 1;;
esac
echo "[==========] 1 test from 1 test suite ran. (0 ms total)"
"""


def self_test() -> int:
    expected = {"killed": "killed", "crashes": "killed", "hangs": "killed", "survives": "survived",
                "unreached": "not reached", "fails_elsewhere": "did not run"}
    faults = []
    with tempfile.TemporaryDirectory() as folder:
        program = program_path(pathlib.Path(folder), "fake")
        program.write_text(FAKE, encoding="utf-8")
        program.chmod(0o755)
        if not has_mutants(program) or has_mutants(pathlib.Path("/bin/sh")):
            faults.append("programs with mutants and without are not told apart")
        runner = Runner(pathlib.Path(folder), 1, False)
        cases = [(Mutant(name, "fake", "A.*", ""), verdict) for name, verdict in expected.items()]
        cases.append((Mutant("killed", "fake", "None", ""), "did not run"))
        cases.append((Mutant("killed", "fake", "Broken", ""), "did not run"))
        cases.append((Mutant("killed", "missing", "A.*", ""), "did not run"))
        for mutant, verdict in cases:
            found, why = runner.judge(mutant)
            if found != verdict:
                faults.append(f"{mutant}: {found} instead of {verdict}: {why}")
    rows = read_list('#define L(X) \\\n  X(one, raid, "A.*:B.*", \\\n    "It breaks a thing or two.") \\\n'
                     '  X(two, fs, "C.*", "It breaks a thing or two.")\n')
    if [row.name for row in rows] != ["one", "two"] or rows[0].tests != "A.*:B.*":
        faults.append(f"the list is read as {rows}")
    good = {"a.hpp": "GPU4FS_MUTANT(one, a, b) GPU4FS_MUTANT(two, a, b)"}
    if check_list(rows, good):
        faults.append("a sound list is refused")
    for bad in ({"a.hpp": "GPU4FS_MUTANT(one, a, b)"}, {**good, "b.hpp": "GPU4FS_MUTANT(two, a, b)"},
                {**good, "b.hpp": "GPU4FS_MUTANT(three, a, b)"}):
        if not check_list(rows, bad):
            faults.append(f"not noticed: {bad}")
    if not check_list([*rows, rows[0]], good):
        faults.append("a name that is twice in the list is not noticed")
    print("\n".join(faults) or "run_mutants.py: self-test ok")
    return 1 if faults else 0


def choose(mutants: list[Mutant], arguments: argparse.Namespace, build: pathlib.Path) -> list[Mutant]:
    if arguments.only:
        wanted = re.compile(arguments.only)
        return [mutant for mutant in mutants if wanted.fullmatch(mutant.name)]
    if arguments.sample == 0:
        return mutants
    here = [mutant for mutant in mutants if has_tests(build, mutant)]
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"mutants: {arguments.sample} of {len(here)}, chosen by --seed {seed}")
    return random.Random(seed).sample(here, min(arguments.sample, len(here)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/mutants", help="folder of a build with GPU4FS_MUTANTS")
    parser.add_argument("--only", help="a regular expression of names")
    parser.add_argument("--sample", type=int, default=0, help="so many, by chance; 0: all")
    parser.add_argument("--seed", type=int, help="of the sample; printed if it is not given")
    parser.add_argument("--limit", type=float, default=20, help="seconds for tests with a mutant, at least")
    parser.add_argument("--quiet", action="store_true", help="only those that were not killed")
    parser.add_argument("--list", action="store_true", help="names, tests and what is broken")
    parser.add_argument("--targets", action="store_true", help="of the build: the programs of all tests")
    parser.add_argument("--check-list", action="store_true", help="whether list and source fit, and nothing else")
    parser.add_argument("--absent-from", metavar="PROGRAM", help="whether the program has no mutants, and nothing else")
    parser.add_argument("--self-test", action="store_true", help="whether this program notices what it should")
    arguments = parser.parse_args()
    if arguments.self_test:
        return self_test()
    if arguments.absent_from:
        if not has_mutants(pathlib.Path(arguments.absent_from)):
            return 0
        print(f"{arguments.absent_from}: its environment can turn mutants on")
        return 1
    mutants = read_list((ROOT / "src/base/mutant_list.hpp").read_text(encoding="utf-8"))
    faults = check_list(mutants, read_sources())
    if faults or arguments.check_list:
        print("\n".join(faults) or f"{len(mutants)} mutants, each in one place")
        return 1 if faults else 0
    if arguments.targets:
        print(" ".join(sorted({f"gpu4fs_{mutant.program}_test" for mutant in mutants})))
        return 0
    if arguments.list:
        for mutant in mutants:
            print(f"{mutant.name}: {mutant.program} {mutant.tests}\n    {mutant.breaks}")
        return 0
    build = (pathlib.Path.cwd() / arguments.build).resolve()
    chosen = choose(mutants, arguments, build)
    return 0 if Runner(build, arguments.limit, not arguments.quiet).run(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
