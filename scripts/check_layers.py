#!/usr/bin/env python3
"""Includes point down: checks src/ and include/ against the order in cmake/layers.cmake.

The same holds for the folders of a layer that has an order of them. Also keeps the compiler's CUDA
macros inside src/base/config.hpp, and keeps what a kernel cannot use (virtual calls, exceptions,
std containers and atomics) out of host+device headers.
"""
import argparse
import pathlib
import re
import sys
import tempfile

SOURCE_SUFFIXES = {".hpp", ".h", ".cpp", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
CUDA_MACRO = re.compile(r"\b__CUDA(?:CC|_ARCH)__\b")
CUDA_MACRO_HOME = "src/base/config.hpp"
HOST_DEVICE = re.compile(r"\bGPU4FS_FN\b")
HOST_DEVICE_LAYERS = {"base", "format", "wire", "device", "cache", "raid", "space", "fs", "ring", "engine"}
# EmulatedWarp carries the mark of host+device code so that kernels' templates accept it.
HOST_ONLY_NAME = re.compile(r"emulated|fiber|to_text")
NOT_IN_KERNELS = re.compile(
    r"\bvirtual\b|\bthrow\b|\bstd::(?:atomic|vector|string|map|unordered_map|function|mutex)\b"
)


def read_sets(root: pathlib.Path) -> dict[str, list[str]]:
    text = (root / "cmake/layers.cmake").read_text(encoding="utf-8")
    return {name: words.split() for name, words in re.findall(r"^set\((\w+)([^)]*)\)", text, re.M)}


def read_layers(root: pathlib.Path) -> tuple[list[str], dict[str, list[str]]]:
    sets = read_sets(root)
    order = sets["GPU4FS_LAYERS"]
    names = order + ["public"]
    return order, {name: sets.get(f"GPU4FS_{name}_INCLUDES", []) for name in names}


def read_folders(root: pathlib.Path) -> dict[str, list[str]]:
    """The folders of the layers that have an order of them."""
    sets = read_sets(root)
    found = {name: sets.get(f"GPU4FS_{name}_FOLDERS", []) for name in sets["GPU4FS_LAYERS"]}
    return {layer: folders for layer, folders in found.items() if folders}


def check_table(order: list[str], allowed: dict[str, list[str]]) -> list[str]:
    faults = []
    for position, layer in enumerate(order):
        for lower in allowed[layer]:
            if lower not in order[:position]:
                faults.append(f"cmake/layers.cmake: {layer} may include {lower}, which is not below it")
    return faults


def strip_comments(text: str) -> str:
    """Blanks out comments, keeping the lines."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)

    def blank(match: re.Match) -> str:
        found = match.group(0)
        return found if found.startswith('"') else re.sub(r"[^\n]", " ", found)

    return pattern.sub(blank, text)


def layer_of(path: pathlib.PurePosixPath) -> str:
    return path.parts[1] if path.parts[0] == "src" else "public"


def check_include(root, path, layer, mark, target, order, allowed) -> str | None:
    first = target.split("/")[0]
    if first == "gpu4fs" and "/" in target:
        above_client = layer == "public" or order.index(layer) >= order.index("client")
        return None if above_client else f"{layer} includes the public header {target}"
    if first in order and "/" in target:
        if first != layer and first not in allowed[layer]:
            return f"{layer} may not include {first} ({target})"
        if not (root / "src" / target).is_file():
            return f"no such header: src/{target}"
        return None
    if mark == '"' and ("/" not in target or target.startswith(".")):
        return f'includes are written from src/: "{target}"'
    return None


def check_file(root, path, order, allowed) -> list[str]:
    relative = pathlib.PurePosixPath(path.relative_to(root).as_posix())
    layer = layer_of(relative)
    if layer not in allowed:
        return [f"{relative}: folder {layer} is not a layer of cmake/layers.cmake"]
    text = strip_comments(path.read_text(encoding="utf-8", errors="replace"))
    is_kernel_header = (
        path.suffix in {".hpp", ".cuh"}
        and layer in HOST_DEVICE_LAYERS
        and HOST_DEVICE.search(text) is not None
        and not HOST_ONLY_NAME.search(path.name)
    )
    faults = []
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{relative}:{number}: "
        include = INCLUDE.match(line)
        if include:
            fault = check_include(root, path, layer, *include.groups(), order, allowed)
            if fault:
                faults.append(where + fault)
            continue
        if str(relative) != CUDA_MACRO_HOME and CUDA_MACRO.search(line):
            faults.append(where + f"{CUDA_MACRO.search(line).group(0)} outside {CUDA_MACRO_HOME}")
        if is_kernel_header and NOT_IN_KERNELS.search(line):
            faults.append(where + f"'{NOT_IN_KERNELS.search(line).group(0)}' in host+device code")
    return faults


def folder_of(name: str) -> str | None:
    """The folder, inside of its layer, of a file whose name begins with the layer."""
    parts = name.split("/")
    return parts[1] if len(parts) > 2 else None


def includes_in_layer(root: pathlib.Path, layer: str) -> dict[str, list[tuple[int, str]]]:
    found = {}
    for path in source_files(root, (f"src/{layer}",)):
        lines = strip_comments(path.read_text(encoding="utf-8", errors="replace")).splitlines()
        targets = [(number, INCLUDE.match(line)) for number, line in enumerate(lines, 1)]
        found[path.relative_to(root / "src").as_posix()] = [
            (number, match.group(2)) for number, match in targets if match and match.group(2).startswith(layer + "/")
        ]
    return found


def check_folders(root: pathlib.Path, layer: str, folders: list[str]) -> list[str]:
    """Files outside of folders are passed through: they belong to no place in the order."""
    includes = includes_in_layer(root, layer)
    faults = []
    for name in includes:
        folder = folder_of(name)
        if folder is None:
            continue
        if folder not in folders:
            faults.append(f"src/{name}:1: cmake/layers.cmake gives folder {folder} of {layer} no place")
            continue
        for number, target in includes[name]:
            seen = {target}
            paths = [(target,)]
            while paths:
                path = paths.pop()
                reached = folder_of(path[-1])
                if reached in folders and folders.index(reached) > folders.index(folder):
                    faults.append(f"src/{name}:{number}: {folder} may not lead to {reached} ({' > '.join(path)})")
                    break
                if reached is not None:
                    continue
                further = [t for _, t in includes.get(path[-1], []) if t not in seen]
                seen.update(further)
                paths += [path + (t,) for t in further]
    return faults


def check_tree(root: pathlib.Path) -> tuple[list[str], int]:
    order, allowed = read_layers(root)
    faults = check_table(order, allowed)
    files = source_files(root, ("src", "include"))
    for path in files:
        faults += check_file(root, path, order, allowed)
    for layer, folders in read_folders(root).items():
        faults += check_folders(root, layer, folders)
    others = source_files(root, ("tests", "bench", "examples"))
    for path in others:
        text = strip_comments(path.read_text(encoding="utf-8", errors="replace"))
        for macro in CUDA_MACRO.finditer(text):
            number = text.count("\n", 0, macro.start()) + 1
            where = f"{path.relative_to(root).as_posix()}:{number}: "
            faults.append(where + f"{macro.group(0)} outside {CUDA_MACRO_HOME}")
    return faults, len(files) + len(others)


def source_files(root: pathlib.Path, folders: tuple[str, ...]) -> list[pathlib.Path]:
    return [
        path
        for folder in folders
        for path in sorted((root / folder).rglob("*"))
        if path.is_file() and path.suffix in SOURCE_SUFFIXES
    ]


CANARIES = {
    "src/base/up.hpp": ('#include "ring/ring.hpp"\n', "base may not include ring"),
    "src/client/side.cpp": ('#include "server/pool.hpp"\n', "client may not include server"),
    "src/fs/relative.hpp": ('#include "../base/a.hpp"\n', "written from src/"),
    "src/fs/missing.hpp": ('#include "base/nowhere.hpp"\n', "no such header"),
    "src/fs/macro.hpp": ("#ifdef __CUDACC__\n#endif\n", "outside src/base/config.hpp"),
    "src/raid/kernel.hpp": ("GPU4FS_FN int f() { throw 1; }\n", "in host+device code"),
    "src/raid/public.hpp": ("#include <gpu4fs/gpu4fs.h>\n", "includes the public header"),
    "tests/base/macro_test.cpp": ("#if __CUDA_ARCH__\n#endif\n", "outside src/base/config.hpp"),
    "src/elsewhere/a.hpp": ("\n", "is not a layer"),
    "src/engine/optimistic/up.hpp": (
        '#include "engine/handlers/a.hpp"\n',
        "optimistic may not lead to handlers",
    ),
    "src/engine/handlers/around.hpp": (
        '#include "engine/passed_through.hpp"\n',
        "handlers may not lead to poll (engine/passed_through.hpp > engine/poll/a.hpp)",
    ),
    "src/engine/unplaced/a.hpp": ("\n", "no place"),
}
CLEAN = {
    "src/base/a.hpp": "// virtual, throw, __CUDACC__ and #include \"tools/x.hpp\" in a comment\n",
    "src/base/config.hpp": "#if defined(__CUDACC__)\n#endif\n",
    "src/engine/passed_through.hpp": '#include "engine/poll/a.hpp"\n#include "engine/passed_through.hpp"\n',
    "src/engine/poll/a.hpp": '#include "engine/handlers/a.hpp"\n#include "engine/passed_through.hpp"\n',
    "src/engine/handlers/a.hpp": '#include "engine/optimistic/a.hpp"\n',
    "src/engine/optimistic/a.hpp": "\n",
    "src/ring/ring.hpp": '#include <string>\n#include "base/a.hpp"\n',
    "src/server/pool.hpp": '#include "ring/ring.hpp"\n#include "base/a.hpp"\n',
}


def self_test(root: pathlib.Path) -> int:
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder)
        contents = dict(CLEAN) | {path: text for path, (text, _) in CANARIES.items()}
        contents["cmake/layers.cmake"] = (root / "cmake/layers.cmake").read_text(encoding="utf-8")
        for path, text in contents.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_text(text, encoding="utf-8")
        faults, _ = check_tree(tree)
    failed = 0
    for path, (_, expected) in CANARIES.items():
        found = [fault for fault in faults if fault.startswith(path + ":")]
        if len(found) != 1 or expected not in found[0]:
            print(f"canary {path}: expected one fault with '{expected}', found {found}")
            failed += 1
    for path in CLEAN:
        if any(fault.startswith(path + ":") for fault in faults):
            print(f"clean file {path} was reported: {faults}")
            failed += 1
    bad_table = check_table(["a", "b"], {"a": ["b"], "b": []})
    failed += len(bad_table) != 1
    print(f"self-test: {len(CANARIES) + 1} canaries, {len(CLEAN)} clean files, {failed} failed")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent)
    parser.add_argument("--self-test", action="store_true", help="report a violating tree, or fail")
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    if arguments.self_test:
        return self_test(root)
    faults, file_count = check_tree(root)
    print("\n".join(faults + [f"{file_count} files, {len(faults)} faults"]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
