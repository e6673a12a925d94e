#!/usr/bin/env python3
"""Sizes, white space and banned words of everything under version control.

Source files have at most 800 lines of at most 120 columns, functions at most 70 (C++ by a brace scanner, Python by ast)
and those of C++ at most 6 parameters.
"""
import argparse
import ast
import pathlib
import re
import subprocess
import sys
import tempfile

FILE_LINES_MAX = 800
FUNCTION_LINES_MAX = 70
PARAMETERS_MAX = 6
COLUMNS_MAX = 120
# Functions that have more: callbacks of libfuse, and loops that are measured with each number in a register.
PARAMETERS_EXCEPTIONS = {
    ("src/frontend/fuse/fuse_control.cpp", "control"),
    ("src/frontend/fuse/fuse_files.cpp", "copy_file_range"),
    ("src/bench/rows.hpp", "copy_row"),
    ("src/bench/rows.hpp", "copy_rows"),
}
CPP_SUFFIXES = {".hpp", ".h", ".cpp", ".cu", ".cuh"}
SOURCE_SUFFIXES = CPP_SUFFIXES | {".py", ".sh", ".cmake"}
TEXT_SUFFIXES = SOURCE_SUFFIXES | {".md", ".txt", ".yml", ".yaml", ".toml", ".1", ".5", ".8"}
TEXT_NAMES = {"Makefile", "run"}
# Spelt in pieces, so that this file passes its own check.
BANNED = re.compile(
    r"\b(?:TO" r"DO|FIX" r"ME|X" r"XX|for n" r"ow)\b"
    r"|/wo" r"rk/(?:main|shared|\.library)|/tmp/bri" r"ef|/opt/cuda" r"venv|/ro" r"ot/"
)

COMMENT_OR_TEXT = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])\'(?:\\.|[^\'\\\n])+\'',
    re.S,
)
PREPROCESSOR = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)
CONTAINER = re.compile(
    r'^(?:(?:inline|export|typedef|static|constexpr)\s+)*'
    r'(?:namespace|class|struct|union|enum|extern\s*"")(?![\w])'
)
# Words before a parenthesis that look like the name of a function and are not.
NO_NAME = {"alignas", "decltype", "explicit", "noexcept", "requires", "__launch_bounds__", "__attribute__"}
CHECK = re.compile(r"\bGPU4FS_CHECK\w*\s*\(")
ENGINE_FOLDERS = ("cache", "raid", "space", "fs", "ring", "engine", "device")


def blank_cpp(text: str) -> str:
    """Replaces comments, literals and preprocessor lines with blanks, keeping the lines."""

    def blank(match: re.Match) -> str:
        found = match.group(0)
        newlines = "\n" * found.count("\n")
        return newlines if found.startswith("/") else '""' + newlines

    return PREPROCESSOR.sub(lambda m: "\n" * m.group(0).count("\n"), COMMENT_OR_TEXT.sub(blank, text))


def drop_template_heads(head: str) -> str:
    """Removes template<...> with balanced angle brackets, which hold the word class."""
    while match := re.match(r"\s*template\s*<", head):
        depth, end = 1, match.end()
        while end < len(head) and depth > 0:
            depth += {"<": 1, ">": -1}.get(head[end], 0)
            end += 1
        head = head[end:]
    return head.strip()


def is_function_head(head: str) -> bool:
    head = drop_template_heads(head)
    ends_as_function = re.search(r"\)\s*(?:const|noexcept|override|final|\s)*$", head) is not None
    if CONTAINER.match(head) and not ends_as_function:
        return False
    return "(" in head and not re.search(r"=\s*$", head)


def closing(text: str, begin: int) -> int:
    """Index of the parenthesis that closes the one at `begin`."""
    depth = 0
    for i in range(begin, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0:
            return i
    return len(text)


def count_list(text: str) -> int:
    """Entries of a list of parameters: commas outside of brackets, and one more."""
    depth = commas = 0
    for i, character in enumerate(text):
        if character == ">" and i > 0 and text[i - 1] == "-":
            continue
        depth += {"(": 1, "[": 1, "{": 1, "<": 1, ")": -1, "]": -1, "}": -1, ">": -1}.get(character, 0)
        commas += character == "," and depth == 0
    return 0 if text.strip() in ("", "void") else commas + 1


def parameters_of(head: str) -> tuple[str, int]:
    """Name and number of parameters of the function with this head."""
    head = drop_template_heads(head)
    begin = 0
    while (begin := head.find("(", begin)) >= 0:
        end = closing(head, begin)
        name = re.search(r"(operator\s*\S{0,3}|[\w~]+)\s*$", head[:begin])
        is_call_operator = name is not None and name.group(1) == "operator"
        if name is not None and name.group(1) not in NO_NAME and not is_call_operator:
            return name.group(1), count_list(head[begin + 1 : end])
        begin = end + 1
    return "", 0


def cpp_functions(text: str) -> list[tuple[int, int, str, int]]:
    """(first line, line count, name, parameters) of every function, from its name to its closing brace."""
    functions, containers = [], []
    head, head_line, line = "", 1, 1
    name, parameters = "", 0
    inside_depth, start_line, parentheses = 0, 0, 0
    for character in blank_cpp(text):
        if character == "\n":
            line += 1
        if inside_depth > 0:
            inside_depth += {"{": 1, "}": -1}.get(character, 0)
            if inside_depth == 0:
                functions.append((start_line, line - start_line + 1, name, parameters))
                head = ""
            continue
        parentheses = max(0, parentheses + {"(": 1, ")": -1}.get(character, 0))
        if character == "{":
            if is_function_head(head):
                inside_depth, start_line = 1, head_line
                name, parameters = parameters_of(head)
            else:
                containers.append(head)
            head, parentheses = "", 0
        elif character == "}" or (character == ";" and parentheses == 0):
            if character == "}" and containers:
                containers.pop()
            head, parentheses = "", 0
        else:
            if "(" not in head:
                head_line = line
            head += character
    return functions


def python_functions(text: str) -> list[tuple[int, int, str, int]]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
    return [(node.lineno, node.end_lineno - node.lineno + 1, node.name, 0) for node in nodes]


def check_file(path: pathlib.Path, name: str) -> list[str]:
    text = path.read_text(encoding="utf-8", errors="replace")
    lines = text.split("\n")
    faults = []
    if path.suffix in SOURCE_SUFFIXES and len(lines) - 1 > FILE_LINES_MAX:
        faults.append(f"{name}:1: {len(lines) - 1} lines, at most {FILE_LINES_MAX}")
    if text and not text.endswith("\n"):
        faults.append(f"{name}:{len(lines)}: no newline at the end")
    for number, line in enumerate(lines, 1):
        if line != line.rstrip():
            faults.append(f"{name}:{number}: white space at the end")
        if path.suffix in SOURCE_SUFFIXES and len(line) > COLUMNS_MAX:
            faults.append(f"{name}:{number}: {len(line)} columns, at most {COLUMNS_MAX}")
        if banned := BANNED.search(line):
            faults.append(f"{name}:{number}: banned word '{banned.group(0)}'")
    functions = []
    if path.suffix in CPP_SUFFIXES:
        functions = cpp_functions(text)
    elif path.suffix == ".py":
        functions = python_functions(text)
    for number, count, function, parameters in functions:
        if count > FUNCTION_LINES_MAX:
            faults.append(f"{name}:{number}: function of {count} lines, at most {FUNCTION_LINES_MAX}")
        if parameters > PARAMETERS_MAX and (name, function) not in PARAMETERS_EXCEPTIONS:
            faults.append(f"{name}:{number}: {function}() has {parameters} parameters, at most {PARAMETERS_MAX}")
    wide = {function for _, _, function, parameters in functions if parameters > PARAMETERS_MAX}
    for exception in (function for file, function in PARAMETERS_EXCEPTIONS if file == name and function not in wide):
        faults.append(f"{name}:1: {exception}() needs no exception any more")
    return faults


def list_files(root: pathlib.Path) -> list[str]:
    """What git tracks or would track; without git, all but the build folder."""
    command = ["git", "-C", str(root), "ls-files", "-co", "--exclude-standard"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        result = None
    if result is not None and result.returncode == 0:
        names = sorted(set(result.stdout.splitlines()))
    else:
        paths = sorted(path for path in root.rglob("*") if path.is_file())
        names = [path.relative_to(root).as_posix() for path in paths]
        names = [name for name in names if not name.startswith(("build/", ".git/"))]
    return [
        name
        for name in names
        if (root / name).is_file()
        and (pathlib.Path(name).suffix in TEXT_SUFFIXES or pathlib.Path(name).name in TEXT_NAMES)
    ]


def check_density(root: pathlib.Path, names: list[str]) -> str:
    checks = line_count = 0
    for name in names:
        parts = name.split("/")
        if parts[0] == "src" and parts[1] in ENGINE_FOLDERS and name.endswith((".hpp", ".cpp")):
            text = blank_cpp((root / name).read_text(encoding="utf-8", errors="replace"))
            checks += len(CHECK.findall(text))
            line_count += sum(1 for line in text.split("\n") if line.strip())
    return f"{checks} checks in {line_count} engine lines: {1000 * checks / max(1, line_count):.0f} per 1,000"


def check_tree(root: pathlib.Path) -> tuple[list[str], list[str]]:
    names = list_files(root)
    return [fault for name in names for fault in check_file(root / name, name)], names


def cpp_function_text(head: str, line_count: int) -> str:
    return head + " {\n" + "  step();\n" * (line_count - 2) + "}\n"


def self_test() -> int:
    long_struct = "struct A {\n" + "  int f() { return 1; }\n" * 100 + "};\n"
    canaries = {
        "long_file.hpp": ("int x;\n" * 801, "801 lines"),
        "long.cpp": (cpp_function_text("template <class Group>\nint f(Group g)", 71), "of 71 lines"),
        "member.cpp": ("struct A {\n" + cpp_function_text("int f() const", 80) + "};\n", "of 80 lines"),
        "wide.hpp": (
            "template <class A, class B>\nA f(A a, std::map<int, B> b, int c,\n"
            "    int (&d)[2], int e = g(1, 2), A x, A y) {\n}\n",
            "f() has 7 parameters",
        ),
        "wide_member.cpp": (
            "struct A {\n  bool operator()(int a, int b, int c, int d, int e, int f, int g) const { return a; }\n};\n",
            "has 7 parameters",
        ),
        "src/bench/rows.hpp": (
            "void copy_row(int a, int b, int c, int d, int e, int f, int g) {\n}\nvoid copy_rows(int a) {\n}\n",
            "copy_rows() needs no exception any more",
        ),
        "space.cpp": ("int a; \n", "white space"),
        "end.sh": ("true", "no newline"),
        "line.hpp": ("// " + "x" * 118 + "\n", "121 columns"),
        "word.md": ("later: TO" + "DO\n", "banned word"),
        "path.sh": ("cd /wo" + "rk/main\n", "banned word"),
        "long.py": ("def f():\n" + "    g()\n" * 70, "of 71 lines"),
    }
    clean = {
        "fits.cpp": cpp_function_text("template <class Group>\nint f(Group g)", 70) + long_struct,
        "tricky.cpp": "const char* s = \"{{{\"; // {\nchar c = '{'; int n = 1'000;\n" + long_struct,
        "narrow.cpp": "A::A(int a, std::map<int, B<C, D>> b, E e, F f = h(1, 2, 3), int c, int d)\n"
        "    : a_(1, 2, 3, 4, 5, 6, 7) {\n}\n"
        "__launch_bounds__(1) void k(void) {\n}\n",
        "table.cpp": "constexpr int table[] = {\n" + "  1,\n" * 200 + "};\n",
        "line.cpp": "// " + "x" * 117 + "\n",
        "fits.py": "def f():\n" + "    g()\n" * 69,
    }
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder)
        for name, text in (clean | {name: text for name, (text, _) in canaries.items()}).items():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_text(text, encoding="utf-8")
        faults, _ = check_tree(tree)
    failed = 0
    for name, (_, expected) in canaries.items():
        found = [fault for fault in faults if fault.startswith(name + ":")]
        if len(found) != 1 or expected not in found[0]:
            print(f"canary {name}: expected one fault with '{expected}', found {found}")
            failed += 1
    for name in clean:
        found = [fault for fault in faults if fault.startswith(name + ":")]
        if found:
            print(f"clean file {name} was reported: {found}")
            failed += 1
    print(f"self-test: {len(canaries)} canaries, {len(clean)} clean files, {failed} failed")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent)
    parser.add_argument("--self-test", action="store_true", help="report a violating tree, or fail")
    arguments = parser.parse_args()
    if arguments.self_test:
        return self_test()
    root = arguments.root.resolve()
    faults, names = check_tree(root)
    print("\n".join(faults + [check_density(root, names), f"{len(names)} files, {len(faults)} faults"]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
