#!/usr/bin/env python3
"""Keeps docs/measurements.md and the figures of README.md equal to the results in bench/results.

usage: check_measurements.py            # reports each difference; exits with 1 if there is one
       check_measurements.py --write    # makes the tables of docs/measurements.md anew
       check_measurements.py --self-test

docs/measurements.md is text with tables between two comments, of which the first says what the table shows:

    <!-- table RESULT [without NAME...] -->      all rows of a result, except rows of these names; NAME* stands for all
                                                names that begin so, of which there may be none
    <!-- compare RESULT RESULT... -->            the same rows of several results side by side
    <!-- sweep RESULT KIND COUNT -->             bandwidth by level and size, for COUNT files; KIND: write, sync, read
    <!-- sizes RESULT VERB -->                   bandwidth of the NVMe driver by size; VERB: read, write
    <!-- size-latency RESULT VERB -->            its latency by size
    <!-- summary -->                             how many requirements are met, and all rows that fall short;
                                                results in folders of their own are experiments and do not count
    <!-- end -->

RESULT is a path below bench/results. Each result there has to be shown by at least one table.
"""
import argparse
import json
import pathlib
import re
import shutil
import sys
import tempfile

PAGE = "docs/measurements.md"
DURABILITY = "docs/internals/durability.md"
RESULTS = "bench/results"
BLOCK = re.compile(r"^<!-- (table|compare|sweep|sizes|size-latency|summary)([^\n]*) -->\n(.*?)^<!-- end -->$",
                   re.M | re.S)

# Phrases that other texts must have word for word, after the results: file, phrase, and its values as
# (result, row, field).
PHRASES = [
    ("README.md", "{:.2f} to {:.2f} of a bare copy kernel",
     [("run-cuda-h200.json", "write-one", "ratio"), ("run-cuda-h200.json", "write-many", "ratio")]),
    ("README.md", "{:.3f} s a GB", [("run-cuda-h200.json", "write-cpu", "median")]),
    ("README.md", "{:.0f} us for a read of 4 KiB", [("small-cuda-h200.json", "read-4k-p50", "median")]),
    ("README.md", "{:.0f} us for a create", [("small-cuda-h200.json", "create-p50", "median")]),
    ("README.md", "writes {:.2f} GB/s and reads {:.2f} GB/s",
     [("fuse-cpu.json", "fuse-write-passthrough", "median"), ("fuse-cpu.json", "fuse-read-passthrough", "median")]),
    (DURABILITY, "{:.0f} us on the GPU engine", [("run-cuda-h200.json", "append-fsync-p50", "median")]),
    (DURABILITY, "{:.0f} times the rate of one", [("run-cuda-h200.json", "append-fsync-rate", "ratio")]),
    (DURABILITY, "{:.2f} of the host-to-VRAM limit", [("run-cuda-h200.json", "scrub", "ratio")]),
    (DURABILITY, "{:.2f} s", [("run-cuda-h200.json", "recovery-256m", "median")]),
]


class BadPage(Exception):
    """The page, or a result, is not what this program can work with."""


def number_text(value: float) -> str:
    """Three significant digits, thousands apart."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        digits = len(str(int(abs(value))))
        return f"{round(value, 3 - digits):,.0f}"
    text = f"{value:.3g}"
    return f"{value:.5f}".rstrip("0") if "e" in text else text


def judged_value(row: dict) -> float:
    return row["median"] / row["limit"] if "limit" in row else row["median"]


def verdict(row: dict, where: str) -> str:
    """Judges anew; a result that calls itself met and is not has been edited by hand."""
    value = judged_value(row)
    is_met = None
    if row["requirement"] != "none":
        is_met = value >= row["required"] if row["requirement"] == "at_least" else value <= row["required"]
    if is_met != row.get("met") or ("ratio" in row and abs(row["ratio"] - value) > 1e-4 * abs(value)):
        raise BadPage(f"{where}: row {row['name']}: 'ratio' or 'met' do not follow from median, limit and required")
    return {None: "", True: "met", False: "**short**"}[is_met]


def required_text(row: dict) -> str:
    if row["requirement"] == "none":
        return ""
    return f"{'at least' if row['requirement'] == 'at_least' else 'at most'} {number_text(row['required'])}"


def measured_text(row: dict) -> str:
    return f"{number_text(row['median'])} {row['unit']}"


def limit_text(row: dict) -> str:
    if "limit" not in row:
        return ""
    return f"{number_text(judged_value(row))} of {number_text(row['limit'])} {row['unit']} ({row['limit_what']})"


class Results:
    def __init__(self, root: pathlib.Path):
        self.folder = root / RESULTS
        self.names = sorted(path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*.json"))
        self.content = {}
        for name in self.names:
            try:
                self.content[name] = json.loads((self.folder / name).read_text(encoding="utf-8"))
            except ValueError as error:
                raise BadPage(f"{RESULTS}/{name}: {error}") from error

    def result(self, name: str) -> dict:
        if name not in self.content:
            raise BadPage(f"{PAGE}: no result {RESULTS}/{name}")
        return self.content[name]

    def row(self, name: str, row_name: str) -> dict:
        found = [row for row in self.result(name)["rows"] if row["name"] == row_name]
        if len(found) != 1:
            raise BadPage(f"{RESULTS}/{name}: {len(found)} rows '{row_name}'")
        return found[0]


def machine_text(result: dict) -> str:
    machine = result["machine"]
    gpu = f"{machine['gpu']}, " if machine["gpu"] else ""
    return f"engine {result['engine']}, {gpu}{machine['cpu_count']} CPU cores, {result['date'][:10]}, " \
           f"commit {result['commit']}"


def make_table(results: Results, arguments: list[str]) -> list[str]:
    name, without = arguments[0], arguments[1:]
    if without[:1] == ["without"]:
        without = without[1:]
    elif without:
        raise BadPage(f"{PAGE}: table {name}: 'without' expected, found '{without[0]}'")
    result = results.result(name)
    for left_out in without:
        if not left_out.endswith("*"):
            results.row(name, left_out)
    starts = tuple(left_out[:-1] for left_out in without if left_out.endswith("*"))
    lines = [f"`{name}`: {machine_text(result)}.", "", "| what | measured | of a limit | required | |",
             "| --- | --- | --- | --- | --- |"]
    for row in result["rows"]:
        if row["name"] not in without and not row["name"].startswith(starts):
            cells = [row["what"], measured_text(row), limit_text(row), required_text(row), verdict(row, name)]
            lines.append("| " + " | ".join(cells) + " |")
    return lines + [f"\nNot measured: {text}." for text in result["left_out"]]


def make_comparison(results: Results, arguments: list[str]) -> list[str]:
    columns = [{row["name"]: row for row in results.result(name)["rows"]} for name in arguments]
    lines = [f"`{name}`: {machine_text(results.result(name))}." for name in arguments]
    lines += ["", "| what | " + " | ".join(f"`{name}`" for name in arguments) + " |",
              "| --- |" + " --- |" * len(arguments)]
    for name, row in columns[0].items():
        cells = [measured_text(column[name]) if name in column else "" for column in columns]
        lines.append("| " + " | ".join([row["what"], *cells]) + " |")
    return lines


def bytes_text(count: int) -> str:
    return f"{count} B" if count < 1024 else size_text(count >> 10)


def size_text(kibibytes: int) -> str:
    return f"{kibibytes >> 10} MiB" if kibibytes >= 1024 else f"{kibibytes} KiB"


def make_sweep(results: Results, arguments: list[str]) -> list[str]:
    name, kind, count = arguments
    levels, sizes = {}, set()
    for row in results.result(name)["rows"]:
        found = re.fullmatch(rf"sweep-{kind}:([^:]+):(\d+):{count}", row["name"])
        if found:
            sizes.add(int(found[2]))
            levels.setdefault(found[1], {})[int(found[2])] = row["median"]
    if not levels:
        raise BadPage(f"{PAGE}: {name} has no rows of sweep {kind} with {count} files")
    lines = [f"`{name}`: {machine_text(results.result(name))}. GB/s.", "",
             "| level | " + " | ".join(size_text(size) for size in sorted(sizes)) + " |",
             "| --- |" + " --- |" * len(sizes)]
    for level, values in levels.items():
        cells = [number_text(values[size]) if size in values else "" for size in sorted(sizes)]
        lines.append("| " + " | ".join([level, *cells]) + " |")
    return lines


def size_table(lines: dict[str, dict[int, str]]) -> list[str]:
    """A line for each key, a column for each size."""
    sizes = sorted({size for line in lines.values() for size in line})
    return ["", "| | " + " | ".join(bytes_text(size) for size in sizes) + " |", "| --- |" + " --- |" * len(sizes),
            *("| " + " | ".join([what, *(line.get(size, "") for size in sizes)]) + " |"
              for what, line in lines.items())]


def size_arguments(arguments: list[str], part: str) -> tuple[str, str]:
    if len(arguments) != 2 or arguments[1] not in ("read", "write"):
        raise BadPage(f"{PAGE}: {part}: a result and read or write expected, found '{' '.join(arguments)}'")
    return arguments[0], arguments[1]


def one_limit(name: str, rows: list[dict]) -> dict:
    """A row of rows that all have the same limit, as rows of one run."""
    if len({(row.get("limit"), row.get("limit_what")) for row in rows}) != 1 or "limit" not in rows[0]:
        raise BadPage(f"{name}: rows {rows[0]['name']} to {rows[-1]['name']} do not have one limit")
    return rows[0]


def make_sizes(results: Results, arguments: list[str]) -> list[str]:
    name, verb = size_arguments(arguments, "sizes")
    lines, rows = {}, []
    for row in results.result(name)["rows"]:
        found = re.fullmatch(rf"nvme-sizes-{verb}-(random|sequential)-(raw|shared|mapped)-(\d+)-(\d+)", row["name"])
        if found:
            verdict(row, name)
            rows.append(row)
            users = {"raw": "without the driver", "shared": "shared", "mapped": "mapped"}[found[2]]
            queues = f"{found[3]} queue{'' if found[3] == '1' else 's'}"
            cell = f"{number_text(row['median'])} ({number_text(judged_value(row))})"
            lines.setdefault(f"{found[1]}, {queues}, {users}", {})[int(found[4])] = cell
    if not rows:
        return [f"`{name}` has no rows of the part `sizes`."]
    limit = one_limit(name, rows)
    return [f"`{name}`: {machine_text(results.result(name))}. {limit['unit']}, and in brackets the share of "
            f"{number_text(limit['limit'])} {limit['unit']} ({limit['limit_what']}).", *size_table(lines)]


def make_size_latency(results: Results, arguments: list[str]) -> list[str]:
    name, verb = size_arguments(arguments, "size-latency")
    users = {"raw": "one lane without the driver", "one": "one lane", "many": "many lanes"}
    lines, rows = {}, []
    for row in results.result(name)["rows"]:
        found = re.fullmatch(rf"nvme-size-latency-{verb}-(raw|one|many)-(\d+)-(p50|p99)", row["name"])
        if found:
            verdict(row, name)
            rows.append(row)
            lines.setdefault((found[1], found[3]), {})[int(found[2])] = number_text(row["median"])
    if not rows:
        return [f"`{name}` has no rows of the part `size-latency`."]
    limit = one_limit(name, rows)
    order = sorted(lines, key=lambda key: (list(users).index(key[0]), key[1]))
    return [f"`{name}`: {machine_text(results.result(name))}. {limit['unit']}; {limit['limit_what']} is "
            f"{number_text(limit['limit'])} {limit['unit']}.",
            *size_table({f"{users[key[0]]}, {key[1]}": lines[key] for key in order})]


def make_summary(results: Results, _: list[str]) -> list[str]:
    short, count = [], 0
    for name in results.names:
        for row in [] if "/" in name else results.result(name)["rows"]:
            if row["requirement"] != "none":
                count += 1
                if verdict(row, name) != "met":
                    short.append((name, row))
    lines = [f"{count - len(short)} of {count} requirements are met. Short of theirs:", "",
             "| what | measured | of a limit | required | result |", "| --- | --- | --- | --- | --- |"]
    for name, row in short:
        cells = [row["what"], measured_text(row), limit_text(row), required_text(row), f"`{name}`"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


MAKERS = {"table": make_table, "compare": make_comparison, "sweep": make_sweep, "sizes": make_sizes,
          "size-latency": make_size_latency, "summary": make_summary}


def make_page(results: Results, text: str) -> str:
    """The page with its tables made anew."""
    def fill(match: re.Match) -> str:
        lines = MAKERS[match[1]](results, match[2].split())
        return f"<!-- {match[1]}{match[2]} -->\n" + "\n".join(lines) + "\n<!-- end -->"

    shown = {word for match in BLOCK.finditer(text) for word in match[2].split()}
    missing = [name for name in results.names if name not in shown]
    if missing:
        raise BadPage(f"{PAGE}: no table shows {', '.join(missing)}")
    return BLOCK.sub(fill, text)


def check_phrases(root: pathlib.Path, results: Results) -> list[str]:
    faults = []
    for path, phrase, values in PHRASES:
        expected = phrase.format(*[results.row(name, row)[field] for name, row, field in values])
        text = " ".join((root / path).read_text(encoding="utf-8").split())
        if expected not in text:
            faults.append(f"{path}: '{expected}' expected, as {RESULTS}/{values[0][0]} says")
    return faults


def check(root: pathlib.Path) -> list[str]:
    try:
        results = Results(root)
        text = (root / PAGE).read_text(encoding="utf-8")
        faults = check_phrases(root, results)
        lines, expected = text.split("\n"), make_page(results, text).split("\n")
    except BadPage as error:
        return [str(error)]
    for number, (line, wanted) in enumerate(zip(lines, expected), 1):
        if line != wanted:
            faults.append(f"{PAGE}:{number}: is '{line}', the results say '{wanted}'; run {sys.argv[0]} --write")
            break
    if len(lines) != len(expected) and not faults:
        faults.append(f"{PAGE}: {len(lines)} lines, {len(expected)} from the results; run {sys.argv[0]} --write")
    return faults


def copy_tree(root: pathlib.Path, folder: pathlib.Path) -> None:
    shutil.copytree(root / RESULTS, folder / RESULTS)
    for path in sorted({PAGE} | {path for path, _, _ in PHRASES}):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / path, folder / path)


def change_row(folder: pathlib.Path, name: str, row_name: str, **fields) -> None:
    path = folder / RESULTS / name
    result = json.loads(path.read_text(encoding="utf-8"))
    for row in result["rows"]:
        if row["name"] == row_name:
            row.update(fields)
    path.write_text(json.dumps(result), encoding="utf-8")


def drop_rows(folder: pathlib.Path, name: str, start: str) -> None:
    path = folder / RESULTS / name
    result = json.loads(path.read_text(encoding="utf-8"))
    result["rows"] = [row for row in result["rows"] if not row["name"].startswith(start)]
    path.write_text(json.dumps(result), encoding="utf-8")


def replace_once(path: pathlib.Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text, f"{path}: no '{old}'"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def self_test(root: pathlib.Path) -> int:
    run, nvme = "run-cuda-h200.json", "nvme-cpu.json"
    size_row = "nvme-sizes-read-random-mapped-2-4096"
    canaries = {
        "another figure": (lambda f: change_row(f, run, "noop-p50", median=2.5), "2.5 us"),
        "another figure of the README": (lambda f: change_row(f, "small-cuda-h200.json", "read-4k-p50", median=77),
                                         "README.md: '77 us"),
        "a requirement that is not met": (lambda f: change_row(f, run, "noop-p50", median=4), "'met' do not follow"),
        "a ratio that is none": (lambda f: change_row(f, run, "scrub", ratio=0.99), "'ratio' or 'met'"),
        "a changed table": (lambda f: replace_once(f / PAGE, "| no-op, p50 | ", "| no-op, p50 | 1"),
                            "is '| no-op, p50"),
        "a dropped row": (lambda f: replace_once(f / PAGE, "| no-op, p99 |", "<!-- | no-op"), "is '<!-- | no-op"),
        "another bandwidth": (lambda f: change_row(f, nvme, size_row, median=1e3), "'ratio' or 'met'"),
        "a limit of another run": (lambda f: change_row(f, nvme, size_row, median=1, limit=2, ratio=0.5),
                                   "do not have one limit"),
        "a changed latency": (lambda f: replace_once(f / PAGE, "| one lane, p50 | ", "| one lane, p50 | 1"),
                              "is '| one lane, p50 | 1"),
        "no rows by size": (lambda f: drop_rows(f, nvme, "nvme-sizes-"), "no rows of the part `sizes`"),
        "no rows of latency": (lambda f: drop_rows(f, nvme, "nvme-size-latency-"),
                               "no rows of the part `size-latency`"),
        "sizes of neither reads nor writes": (
            lambda f: replace_once(f / PAGE, "<!-- sizes nvme-cpu.json read -->", "<!-- sizes nvme-cpu.json -->"),
            "read or write expected"),
        "a result without a table": (
            lambda f: shutil.copy(f / RESULTS / run, f / RESULTS / "other.json"), "no table shows other.json"),
        "a table without a result": (lambda f: (f / RESULTS / "first-cuda-h200.json").unlink(), "no result"),
    }
    failed = 0
    for name, (change, expected) in {"clean": (lambda f: None, None), **canaries}.items():
        with tempfile.TemporaryDirectory() as folder:
            tree = pathlib.Path(folder)
            copy_tree(root, tree)
            change(tree)
            faults = check(tree)
        if (expected is None and faults) or (expected and not any(expected in fault for fault in faults)):
            print(f"{name}: expected {expected}, found {faults}")
            failed += 1
    print(f"self-test: {len(canaries)} canaries, {failed} failed")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--self-test", action="store_true", help="report trees that do not fit, or fail")
    options = parser.parse_args()
    if options.self_test:
        return self_test(options.root)
    if options.write:
        page = options.root / PAGE
        try:
            page.write_text(make_page(Results(options.root), page.read_text(encoding="utf-8")), encoding="utf-8")
        except BadPage as error:
            print(error)
            return 1
    faults = check(options.root)
    print("\n".join([*faults, f"{PAGE}: {len(faults)} faults"]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
