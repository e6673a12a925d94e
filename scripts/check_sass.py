#!/usr/bin/env python3
"""Looks in machine code of sm_90 for values that the wait of a diverged warp destroys.

usage: check_sass.py CUOBJDUMP FILE...    # objects or programs; exits with 1 if there is such a place
       check_sass.py --self-test

If the lanes of a warp may have diverged, ptxas translates __syncwarp() and the shuffles twice. Converged lanes continue
at once. The others branch to a copy that puts the mask of all lanes into a register, R15 in relocatable code, and
waits:

    MOV R15, 0xffffffff
    WARPSYNC.COLLECTIVE R15, 0x1da0

If a call follows, ptxas moves the instructions that put its arguments into registers into both copies. R15 may be one
of these registers. In the second copy the mask then overwrites the argument (seen with ptxas 13.0, 13.2 and 13.5), and
the called function gets 0xffffffff in a half of a 64-bit argument. The source does not show it, and only diverging
warps are affected. The sign is a value in the register that is not read before the mask overwrites it. To avoid such a
place, change the source: fewer words of arguments (R15 is the twelfth word), or no wait directly before the call.
"""
import re
import shutil
import subprocess
import sys

SKIPPED = 77  # exit status of a test that cannot run here; ctest knows it
FUNCTION = re.compile(r"Function : (\S+)")
INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?(\S+)\s*(.*?)\s*;")
GUARDED = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+@")
REGISTER = re.compile(r"(?<![A-Z0-9])R(\d+)(\.64)?")
TARGET = re.compile(r"0x([0-9a-f]+)$")
# The first operand of these is not a register that they write.
WITHOUT_RESULT = ("ST", "RED", "BRA", "BSSY", "BSYNC", "WARPSYNC", "CALL", "RET", "EXIT", "NOP", "R2UR", "BMOV",
                  "ISETP", "FSETP", "PLOP3", "MEMBAR", "CCTL", "BPT", "YIELD", "ERRBAR", "R2P")
ALL_LANES = re.compile(r"(0xffffffff|-0x1|-1)$")


def registers(operands, name):
    """Numbers of the registers in the operands; a wide instruction includes those after them."""
    width = 4 if ".128" in name else 2 if ".64" in name or ".WIDE" in name else 1
    found = set()
    for number, wide in REGISTER.findall(operands):
        found |= set(range(int(number), int(number) + max(width, 2 if wide else 1)))
    return found


def split_result(name, operands):
    """The operand that the instruction writes, '' without one, and the others."""
    if name.startswith(WITHOUT_RESULT):
        return "", operands
    head, _, rest = operands.partition(",")
    while re.match(r"^!?U?P[T\d]", head.strip()) and rest:  # predicates come first
        head, _, rest = rest.partition(",")
    return (head, rest) if re.match(r"^R\d+", head.strip()) else ("", operands)


def read_functions(text):
    """Pairs of a function's name and its instructions (address, guarded, name, operands)."""
    name, rows = None, []
    for line in text.splitlines():
        if match := FUNCTION.search(line):
            if name:
                yield name, rows
            name, rows = match.group(1), []
        elif match := INSTRUCTION.match(line):
            rows.append((int(match.group(1), 16), bool(GUARDED.match(line)), match.group(2), match.group(3)))
    if name:
        yield name, rows


def destroyed_values(rows):
    """Addresses of instructions whose result a mask overwrites before it is read."""
    targets = set()
    for _, _, name, operands in rows:
        if name.startswith(("BRA", "BSSY", "WARPSYNC")) and (match := TARGET.search(operands)):
            targets.add(int(match.group(1), 16))
    unread = {}  # register: where it was written in this stretch without branches
    masks = {}   # register that holds a mask: address of the value that the mask destroyed, None without one
    for address, is_guarded, name, operands in rows:
        if address in targets:
            unread, masks = {}, {}
        result, sources = split_result(name, operands)
        if name.startswith("WARPSYNC"):
            for register in registers(sources.partition(",")[0], name):
                if masks.get(register) is not None:
                    yield masks[register]
            continue
        for register in registers(sources, name):
            unread.pop(register, None)
            masks.pop(register, None)
        is_mask = result and ALL_LANES.search(sources.strip())
        for register in registers(result, name):
            masks.pop(register, None)
            if is_mask and not is_guarded:
                masks[register] = unread.get(register)
            if not is_guarded:
                unread[register] = address
        if name.startswith(("BRA", "CALL", "RET", "EXIT", "BSYNC")):
            unread, masks = {}, {}


def check(text):
    """Number of functions, and a line for each destroyed value."""
    count, found = 0, []
    for name, rows in read_functions(text):
        count += 1
        found += [f"{name}: the value of {address:#x} is lost where the warp is diverged"
                  for address in destroyed_values(rows)]
    return count, found


BROKEN = """
\t\tFunction : broken
        /*1cc0*/                   HFMA2.MMA R12, -RZ, RZ, 0, 0 ;
        /*1cd0*/                   BSSY B0, 0x1db0 ;
        /*1ce0*/                   MOV R15, RZ ;
        /*1cf0*/                   IMAD.MOV.U32 R6, RZ, RZ, R16 ;
        /*1d40*/                   MOV R15, 0xffffffff ;
        /*1d60*/                   IMAD.MOV.U32 R14, RZ, RZ, R36 ;
        /*1d70*/                   WARPSYNC.COLLECTIVE R15, 0x1da0 ;
        /*1d80*/                   NOP ;
        /*1d90*/                   ENDCOLLECTIVE ;
        /*1da0*/                   BSYNC B0 ;
        /*1db0*/                   MOV R20, 0x0 ;
        /*1dd0*/                   CALL.ABS.NOINC 0x0 ;
"""
SOUND = [
    BROKEN.replace("MOV R15, RZ", "MOV R13, RZ"),
    BROKEN.replace("IMAD.MOV.U32 R6, RZ, RZ, R16", "IMAD.MOV.U32 R6, RZ, RZ, R15"),
    BROKEN.replace("MOV R15, 0xffffffff", "IMAD.MOV.U32 R13, RZ, RZ, -0x1"),
]
ALSO_BROKEN = [
    BROKEN.replace("MOV R15, RZ", "LD.E.64 R14, desc[UR4][R10.64]"),
    BROKEN.replace("MOV R15, 0xffffffff", "IMAD.MOV.U32 R15, RZ, RZ, -0x1"),
]


def self_test():
    """The checker finds what it has to find, and nothing else."""
    for text in [BROKEN, *ALSO_BROKEN]:
        if len(check(text)[1]) != 1:
            print("check_sass: a lost value is not found:\n" + text)
            return 1
    for text in SOUND:
        if check(text)[1]:
            print("check_sass: nothing is lost here:\n" + text)
            return 1
    print("check_sass: the checker works")
    return 0


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    if len(arguments) < 2:
        print("usage: check_sass.py CUOBJDUMP FILE... | --self-test", file=sys.stderr)
        return 2
    if not shutil.which(arguments[0]):
        print(f"check_sass: skipped: there is no cuobjdump here ({arguments[0]})")
        return SKIPPED
    total, found = 0, []
    for path in arguments[1:]:
        done = subprocess.run([arguments[0], "--dump-sass", path], capture_output=True, text=True)
        count, lines = check(done.stdout)
        if done.returncode != 0 or count == 0:
            print(f"check_sass: {path}: no machine code can be read: {done.stderr.strip()}", file=sys.stderr)
            return 1
        total += count
        found += [f"{path}: {line}" for line in lines]
    for line in found:
        print("check_sass:", line)
    print(f"check_sass: {total} functions, {len(found)} values lost")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
