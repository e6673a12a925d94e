#!/usr/bin/env python3
"""Plans how every header is compiled alone with little parsing: plan_header_check.py PRECOMPILED...

Each argument is what one precompiled header consists of, separated by commas: a header of the project ("fs/change.hpp")
or headers of the system ("<string>,<vector>"). Prints one line a translation unit, "number header...": the number of
the precompiled header, counted from 0 ("none" for none), and the headers that the unit includes, in this order.

A unit includes before a header only what that header includes anyway, itself or through others: what is missing in a
header is missing there too. Includes that a condition surrounds do not count for this.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("src", "include")
DIRECTIVE = re.compile(r'^[ \t]*#[ \t]*(if|endif|include[ \t]*("[^"]+"|<[^>]+>))', re.M)


def includes_of(text: str) -> set[str]:
    """What a header includes whatever is defined: names of the project's headers, <names> of others."""
    depth, found = 0, set()
    for directive, name in DIRECTIVE.findall(text):
        if directive == "if":
            depth += 1
        elif directive == "endif":
            depth -= 1
        elif depth == 0:
            found.add(name.strip('"'))
    return found


def read_headers() -> dict[str, set[str]]:
    headers = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".hpp", ".h"):
                name = path.relative_to(ROOT / folder).as_posix()
                headers[name] = includes_of(path.read_text(encoding="utf-8"))
    return headers


def all_includes(headers: dict[str, set[str]]) -> dict[str, set[str]]:
    """What each header includes, itself or through others."""
    reached: dict[str, set[str]] = {}

    def reach(name: str) -> set[str]:
        if name not in reached:
            reached[name] = set()
            direct = headers.get(name, set())
            reached[name] = direct.union(*(reach(include) for include in direct))
        return reached[name]

    for name in headers:
        reach(name)
    return reached


def plan(headers: dict[str, set[str]], precompiled: list[set[str]]) -> list[tuple[str, list[str]]]:
    """Units: the number of a precompiled header and the headers in it."""
    reached = all_includes(headers)
    units: list[tuple[str, list[str]]] = []
    # Those that include little come first. Each continues the unit that has most of what it includes.
    for name in sorted(headers, key=lambda name: (len(reached[name]), name)):
        fitting = [number for number, parts in enumerate(precompiled) if parts <= reached[name]]
        used = str(fitting[0]) if fitting else "none"
        continued = [unit for unit in units if unit[0] == used and unit[1][-1] in reached[name]]
        if continued:
            max(continued, key=lambda unit: len(reached[unit[1][-1]]))[1].append(name)
        else:
            units.append((used, [name]))
    return units


def self_test() -> None:
    assert includes_of('#include "a.hpp"\n#if X\n#include "b.hpp"\n#endif\n#  include <c>\n') == {"a.hpp", "<c>"}
    headers = {"a": set(), "b": {"a"}, "c": {"b", "<s>"}, "d": {"a"}, "e": {"c"}}
    units = plan(headers, [{"<s>"}])
    assert units == [("none", ["a", "b"]), ("none", ["d"]), ("0", ["c", "e"])], units
    reached = all_includes(read_headers())
    for used, unit in plan(read_headers(), [{"<string>"}]):
        assert used == "none" or all("<string>" in reached[name] for name in unit), unit
        for position, name in enumerate(unit):
            assert set(unit[:position]) <= reached[name], unit


def main() -> int:
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return 0
    for used, unit in plan(read_headers(), [set(argument.split(",")) for argument in sys.argv[1:]]):
        print(used, *unit)
    return 0


if __name__ == "__main__":
    sys.exit(main())
