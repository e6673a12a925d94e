#!/usr/bin/env python3
"""The NVMe driver on QEMU's controller, which others wrote. There is no guest: the processor of the machine halts.

Each test of gpu4fs_nvme_qtest gets a machine of its own. QEMU traces everything that its controller finds wrong with
the driver; there has to be nothing. Fails if there is no QEMU: make setup installs it.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

QEMU = "qemu-system-x86_64"
PROGRAM = pathlib.Path(os.environ.get("GPU4FS_BUILD", "build/release")) / "gpu4fs_nvme_qtest"
START_LIMIT_S = 60
TEST_LIMIT_S = 300
IMAGE_BYTES = 16 << 20

DRIVE = "-drive file={folder}/{name}.img,if=none,id={name},format=raw,discard=unmap"
NVME = "-device nvme,drive={name},serial={serial},addr={slot}"
BLKDEBUG = (
    "-drive driver=raw,file.driver=blkdebug,file.image.driver=file,file.image.filename={folder}/a.img,if=none,id=a,"
    "rerror=report,werror=report,file.inject-error.0.event=none,file.inject-error.0.iotype=read,"
    "file.inject-error.0.errno=5,file.inject-error.0.sector=2048"
)
ONE_DRIVE = [DRIVE.format(folder="{folder}", name="a"), NVME.format(name="a", serial="first", slot=4)]
NAMESPACES = [
    DRIVE.format(folder="{folder}", name="a"),
    DRIVE.format(folder="{folder}", name="b"),
    DRIVE.format(folder="{folder}", name="c"),
    "-device nvme,id=n0,serial=first,addr=4",
    "-device nvme-ns,drive=a,bus=n0,nsid=3",
    "-device nvme-ns,drive=b,bus=n0,nsid=7,logical_block_size=4096,physical_block_size=4096",
    NVME.format(name="c", serial="second", slot=5),
]
# Test, arguments of QEMU, and whether QEMU may be gone at the end.
TESTS = [
    ("RandomOperations", ONE_DRIVE, False),
    ("TwoNamespacesAndTwoControllers", NAMESPACES, False),
    ("SmallTransfers", [ONE_DRIVE[0], ONE_DRIVE[1] + ",mdts=1,max_ioqpairs=1,msix_qsize=2"], False),
    ("DataSurvivesAReset", ONE_DRIVE, False),
    ("AMediumErrorIsAnAnswer", [BLKDEBUG, ONE_DRIVE[1]], False),
    ("AbortsAreAnswered", ONE_DRIVE, False),
    ("WithoutQemuTheDriveIsLost", ONE_DRIVE, True),
]


def firmware() -> bytes:
    """64 KiB of hlt; at the reset vector: cli, hlt, and back to the hlt."""
    code = b"\xfa\xf4\xeb\xfd"
    return b"\xf4" * 0xFFF0 + code + b"\0" * (16 - len(code))


def start(folder: pathlib.Path, memory: str, arguments: list[str]) -> subprocess.Popen:
    (folder / "hlt.bin").write_bytes(firmware())
    for name in "abc":
        with open(folder / f"{name}.img", "wb") as image:
            image.truncate(IMAGE_BYTES)
    command = [
        QEMU, "-accel", "tcg", "-M", "q35", "-bios", str(folder / "hlt.bin"), "-nodefaults", "-display", "none",
        "-m", "64", "-object", f"memory-backend-file,id=ram,size=64M,mem-path={memory},share=on",
        "-machine", "memory-backend=ram", "-qtest", f"unix:{folder}/qtest,server=on,wait=off",
        "-qtest-log", "/dev/null", "-trace", "pci_nvme_ub*", "-trace", "pci_nvme_err*",
    ]
    for argument in arguments:
        command += argument.format(folder=folder).split(" ")
    with open(folder / "stderr", "wb") as stderr:
        qemu = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr)
    end = time.monotonic() + START_LIMIT_S
    while not (folder / "qtest").exists() and qemu.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    return qemu


def complaints(folder: pathlib.Path, expected: str | None) -> list[str]:
    """Lines of the trace that are not expected, or a note that the expected ones are missing."""
    text = (folder / "stderr").read_text(errors="replace")
    lines = [line for line in text.splitlines() if "pci_nvme_" in line]
    if expected is not None and not any(expected in line for line in lines):
        return [f"no line of the trace has {expected}"]
    return [line for line in lines if expected is None or expected not in line]


def run_one(name: str, arguments: list[str], may_be_gone: bool) -> bool:
    with tempfile.TemporaryDirectory() as place, tempfile.NamedTemporaryFile(dir="/dev/shm") as memory:
        folder = pathlib.Path(place)
        qemu = start(folder, memory.name, arguments)
        try:
            environment = dict(os.environ, GPU4FS_QTEST_SOCKET=f"{folder}/qtest", GPU4FS_QTEST_MEMORY=memory.name,
                               GPU4FS_QTEST_PID=str(qemu.pid))
            result = subprocess.run([PROGRAM, f"--gtest_filter=Qemu.{name}"], env=environment, timeout=TEST_LIMIT_S,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            passed = result.returncode == 0 and "[  PASSED  ] 1 test" in result.stdout
            is_gone = qemu.poll() is not None
        finally:
            qemu.kill()
            qemu.wait()
        # The injected error of the medium is in the trace too, which shows that there is a trace.
        found = complaints(folder, "status 0x281" if "MediumError" in name else None)
        passed = passed and not found and (may_be_gone or not is_gone)
        print(f"{'ok    ' if passed else 'FAILED'}  {name}")
        if not passed:
            print(result.stdout, "\n".join(found), (folder / "stderr").read_text(errors="replace")[-2000:], sep="\n")
        return passed


def main() -> int:
    if shutil.which(QEMU) is None:
        print(f"qemu-check: there is no {QEMU}; 'make setup' installs it", file=sys.stderr)
        return 1
    results = [run_one(*test) for test in TESTS]
    print(f"qemu-check: {sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
