#!/usr/bin/env python3
"""Every place that a text names exists: links of documents, source files, and documents that sources name.

- A relative link in Markdown, [text](place), leads to a file. `#part` leads to a heading of it.
- `maintenance/rebuilder.hpp` in a document is a file below src or the root of the repository; a last part without its
  ending, or a pattern with * or {a,b}, has to match something.
- The commands that docs/wire.md lists are those of src/wire, with their numbers.
- docs/x.md in a source file or a script is a file, and "docs/x.md, section 4" has that section.
"""
import argparse
import pathlib
import re
import sys
import tempfile

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*)$", re.M)
CODE_PATH = re.compile(r"(?<![\w/.~-])((?:[a-z_0-9]+/)+(?:[a-z_0-9*{},.]*[a-z_0-9*}])?)(?![\w/])")
DOCUMENT = re.compile(r"docs/[\w/]+\.md(?:,?\s(?://\s|#\s)?section\s(\d+))?")
SOURCES = ("src", "tests", "scripts", "cmake", "packaging")
SOURCE_SUFFIXES = {".hpp", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake", ".8"}
FOLDERS = {*"base format wire cache device replay block nvme raid fs ring engine pool session maintenance".split(),
           *"server fsck route client frontend daemon cli tools bench".split(),
           *"src tests scripts cmake docs packaging bench".split()}


def anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def expand(path: str) -> list[str]:
    """Braces as in a shell."""
    found = re.search(r"\{([^{}]*)\}", path)
    if not found:
        return [path]
    return [one for part in found[1].split(",") for one in expand(path[: found.start()] + part + path[found.end():])]


def exists(root: pathlib.Path, path: str) -> bool:
    path = path.rstrip("/")
    for base in (root, root / "src"):
        if any(base.glob(path)) or any(base.glob(path + ".*")) or any(base.glob(path + "_*")):
            return True
    return False


def check_document(root: pathlib.Path, path: pathlib.Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```$", lambda match: "\n" * match[0].count("\n"), text, flags=re.M | re.S)
    faults = []
    for match in LINK.finditer(prose):
        place, _, part = match[1].partition("#")
        if "://" in place:
            continue
        target = path if place == "" else path.parent / place
        line = prose[: match.start()].count("\n") + 1
        if not target.exists():
            faults.append(f"{path.relative_to(root)}:{line}: no file {match[1]}")
        elif part and part not in map(anchor, HEADING.findall(target.read_text(encoding="utf-8"))):
            faults.append(f"{path.relative_to(root)}:{line}: no part {match[1]}")
    for match in CODE_PATH.finditer(LINK.sub("", prose)):
        if match[1].split("/")[0] not in FOLDERS or match[1].startswith("tests/") and match[1].endswith("/*"):
            continue
        for one in expand(match[1]):
            if not exists(root, one):
                faults.append(f"{path.relative_to(root)}:{prose[:match.start()].count(chr(10)) + 1}: no file {one}")
    return faults


def check_source(root: pathlib.Path, path: pathlib.Path) -> list[str]:
    faults = []
    text = path.read_text(encoding="utf-8", errors="replace")
    for match in DOCUMENT.finditer(text):
        target = root / (match[0].split(".md")[0] + ".md")
        line = text[: match.start()].count("\n") + 1
        if not target.exists():
            faults.append(f"{path.relative_to(root)}:{line}: no document {match[0]}")
        elif match[1] and not re.search(rf"^## {match[1]}\. ", target.read_text(encoding="utf-8"), re.M):
            faults.append(f"{path.relative_to(root)}:{line}: no section {match[0]}")
    return faults


def listed_commands(root: pathlib.Path) -> list[tuple[int, str]]:
    """Number and name of every command, from the sources."""
    rows = root / "src/wire/command_list.hpp"
    if rows.exists():
        return [(int(number), name) for number, name in re.findall(r"^ *X\((\d+), (\w+),", rows.read_text(), re.M)]
    text = (root / "src/wire/ring_format.hpp").read_text(encoding="utf-8")
    body = text[text.index("enum class Opcode"):]
    names = re.findall(r"^  (\w+)(?: = 0)?,", body[: body.index("};")], re.M)
    return list(enumerate(names))[1:-1]  # between `none` and `count`


def check_commands(root: pathlib.Path) -> list[str]:
    """A row each in docs/wire.md, except for those of the server, which are in one sentence, in order."""
    page = root / "docs/wire.md"
    if not page.exists():
        return []
    text = page.read_text(encoding="utf-8")
    section = text[text.index("## 6. Commands"): text.index("## 7. ")]
    found = [(int(number), name) for number, name in re.findall(r"^\| (\d+) \| (\w+) \|", section, re.M)]
    server = re.search(r"Opcodes from (\d+) on are for the server: ([\w,\s]+)\.", section)
    if server:
        found += list(enumerate(re.findall(r"\w+", server[2]), int(server[1])))
    expected = listed_commands(root)
    wrong = [f"{number} {name}" for number, name in sorted(set(found) ^ set(expected))]
    return [f"docs/wire.md: other commands than src/wire: {', '.join(wrong)}"] if wrong else []


def check(root: pathlib.Path) -> list[str]:
    faults = check_commands(root)
    for path in sorted([*root.glob("*.md"), *root.glob("docs/**/*.md")]):
        faults += check_document(root, path)
    for folder in SOURCES:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SOURCE_SUFFIXES and path.name != pathlib.Path(__file__).name:
                faults += check_source(root, path)
    return faults


def self_test() -> int:
    wire = "## 6. Commands\n| 1 | noop | |\n\nOpcodes from 2 on are for the server: check, grow.\n\n## 7. Records\n"
    enumeration = "enum class Opcode {\n  none = 0,\n  noop,  // does nothing\n  check,\n  grow,\n  count,\n};\n"
    sources = {"src/base/a.hpp": "// docs/x.md, section 1\n", "docs/x.md": "# X\n\n## 1. One two\n",
               "docs/wire.md": wire, "src/wire/ring_format.hpp": enumeration}
    canaries = {
        "a link to nothing": ("docs/y.md", "[x](z.md)\n", "docs/y.md:1: no file z.md"),
        "a link to no part": ("docs/y.md", "\n[x](x.md#three)\n", "docs/y.md:2: no part x.md#three"),
        "a source that is not there": ("README.md", "see `base/b.hpp`.\n", "README.md:1: no file base/b.hpp"),
        "one of two that is not there": ("README.md", "`base/a.{hpp,cpp}`\n", "README.md:1: no file base/a.cpp"),
        "a document that is not there": (
            "src/base/c.hpp", "\n// docs/z.md\n", "src/base/c.hpp:2: no document docs/z.md"),
        "a section that is not there": (
            "src/base/c.hpp", "// (docs/x.md,\n// section 2)\n", "src/base/c.hpp:1: no section"),
        "another command": (
            "docs/wire.md", wire.replace("| 1 | noop", "| 2 | noop"), "docs/wire.md: other commands than src/wire"),
        "a command that is not listed": ("docs/wire.md", wire.replace(", grow", ""), "docs/wire.md: other commands"),
    }
    clean = {"a clean tree": ("docs/y.md", "[x](x.md#1-one-two), `base/a`, base/*.hpp, base/a.hpp\n", None)}
    failed = 0
    for name, (path, text, expected) in {**canaries, **clean}.items():
        with tempfile.TemporaryDirectory() as folder:
            tree = pathlib.Path(folder)
            for place, content in {**sources, path: text}.items():
                (tree / place).parent.mkdir(parents=True, exist_ok=True)
                (tree / place).write_text(content, encoding="utf-8")
            faults = check(tree)
        if len(faults) != (expected is not None) or (expected and not faults[0].startswith(expected)):
            print(f"{name}: expected {expected}, found {faults}")
            failed += 1
    print(f"self-test: {len(canaries)} canaries, {len(clean)} clean tree, {failed} failed")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--self-test", action="store_true", help="report trees with faults, or fail")
    options = parser.parse_args()
    if options.self_test:
        return self_test()
    faults = check(options.root)
    print("\n".join([*faults, f"{len(faults)} faults"]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
