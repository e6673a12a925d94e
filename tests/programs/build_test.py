"""A C compiler and make on the mount: a generated project, built in parallel, run, touched, rebuilt."""

import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from mounted_pool import MountedPool, in_own_namespace, scale  # noqa: E402


def generate(folder, units):
    os.makedirs(os.path.join(folder, "include"))
    for i in range(units):
        with open(os.path.join(folder, "include", f"unit{i}.h"), "w") as file:
            file.write(f"int unit{i}(int value);\n")
        with open(os.path.join(folder, f"unit{i}.c"), "w") as file:
            callee = f"unit{i - 1}(value) + " if i > 0 else ""
            include = f'#include "include/unit{i - 1}.h"\n' if i > 0 else ""
            file.write(f'#include "include/unit{i}.h"\n{include}'
                       f"int unit{i}(int value) {{ return {callee}value * {i}; }}\n")
    with open(os.path.join(folder, "main.c"), "w") as file:
        file.write(f'#include <stdio.h>\n#include "include/unit{units - 1}.h"\n'
                   f'int main(void) {{ printf("%d\\n", unit{units - 1}(3)); return 0; }}\n')
    with open(os.path.join(folder, "Makefile"), "w") as file:
        file.write("OBJECTS := $(patsubst %.c,%.o,$(wildcard *.c))\n"
                   "program: $(OBJECTS)\n\t$(CC) -o $@ $^\n"
                   "%.o: %.c\n\t$(CC) -O1 -g -MMD -c -o $@ $<\n-include $(OBJECTS:.o=.d)\n")


def make(folder):
    done = subprocess.run(["make", "-j4", "-C", folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def main():
    if shutil.which("make") is None or shutil.which("cc") is None:
        raise AssertionError("make and cc are needed")
    units = scale(60)
    expected = str(sum(3 * i for i in range(units)))
    with MountedPool(device_mib=128) as pool:
        folder = pool.path("project")
        generate(folder, units)
        make(folder)
        program = os.path.join(folder, "program")
        assert subprocess.run([program], capture_output=True, text=True).stdout.strip() == expected
        assert "up to date" in make(folder)
        with open(os.path.join(folder, "unit1.c"), "a") as file:
            file.write("/* changed */\n")
        rebuilt = make(folder)
        assert "unit1.o" in rebuilt and "unit2.o" not in rebuilt.replace("unit2.o ", ""), rebuilt
        pool.remount()
        assert "up to date" in make(folder)
        assert subprocess.run([program], capture_output=True, text=True).stdout.strip() == expected
    print(f"C build: {units + 1} files, run, partial rebuild, up to date after a remount")


if __name__ == "__main__":
    in_own_namespace()
    main()
