#!/usr/bin/env python3
"""Runs nvcc and sorts what it prints: run_nvcc.py REPORT COMMAND...

The resource report of ptxas goes to the file REPORT, everything else to stderr.
"""
import re
import subprocess
import sys

REPORT_LINE = re.compile(
    r"^ptxas info\s|bytes stack frame|^\s+\d+ bytes (spill|cumulative)|^\s*Used \d+ registers"
)


def main() -> int:
    report_path, command = sys.argv[1], sys.argv[2:]
    result = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace")
    report, rest = [], []
    for line in result.stderr.splitlines(keepends=True):
        (report if REPORT_LINE.search(line) else rest).append(line)
    sys.stderr.writelines(rest)
    if result.returncode == 0:
        with open(report_path, "w", encoding="utf-8") as file:
            file.writelines(report)
    return result.returncode


if __name__ == "__main__":
    sys.exit(main())
