#!/usr/bin/env python3
"""The NVMe driver through VFIO, and drives that pass between it and the kernel's driver: in a guest of QEMU.

The guest has an emulated IOMMU and no network. Its processor is emulated too: KVM is not needed. It boots from
build/guest (scripts/setup_guest.sh) with the gpu4fs program and gpu4fs_nvme_vfio, and runs
tests/nvme/vfio/guest_checks.sh. Without build/guest this ends with status 77, which is a skipped test.
"""
import os
import pathlib
import re
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time

QEMU = "qemu-system-x86_64"
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("GPU4FS_BUILD", ROOT / "build/release"))
GUEST = ROOT / "build/guest"
SCRIPTS = ROOT / "tests/nvme/vfio"
PROGRAMS = [BUILD / "gpu4fs", BUILD / "gpu4fs_nvme_vfio"]
LIMIT_S = 400
IMAGE_BYTES = 32 << 20
SKIPPED = 77

DRIVE = "-drive file={folder}/{name}.img,if=none,id={name},format=raw,discard=unmap"
DEVICES = [
    "-device intel-iommu,intremap=on,caching-mode=on",
    "-device nvme,id=pair,serial=pair,addr=4",
    "-device nvme-ns,drive=a,bus=pair,nsid=1",
    "-device nvme-ns,drive=b,bus=pair,nsid=3,logical_block_size=4096,physical_block_size=4096",
    "-device nvme,drive=c,serial=used,addr=5",
    "-device nvme,drive=d,serial=first,addr=6.0,multifunction=on",
    "-device nvme,drive=e,serial=second,addr=6.1",
]


def libraries(program: pathlib.Path) -> set[str]:
    """The shared libraries of a program and its loader."""
    text = subprocess.run(["ldd", program], capture_output=True, text=True, check=True, timeout=60).stdout
    return set(re.findall(r"(/\S+) \(0x", text))


def make_archive(folder: pathlib.Path, checks: pathlib.Path) -> pathlib.Path:
    """The guest's file system, as the kernel unpacks it (cpio). The guest runs these checks."""
    root = folder / "root"
    for name in ("bin", "proc", "sys", "dev", "tmp", "modules", "mnt"):
        (root / name).mkdir(parents=True)
    shutil.copy(GUEST / "busybox", root / "bin/busybox")
    shutil.copytree(GUEST / "modules", root / "modules", dirs_exist_ok=True)
    shutil.copy(SCRIPTS / "guest_init.sh", root / "init")
    shutil.copy(SCRIPTS / "guest_functions.sh", root / "functions.sh")
    shutil.copy(checks, root / "checks.sh")
    os.chmod(root / "init", 0o755)
    for program in PROGRAMS:
        subprocess.run(["strip", "-o", root / program.name, program], check=True, timeout=120)
        for library in libraries(program):
            place = root / library.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, place)
    names = "\n".join(sorted(str(path.relative_to(root)) for path in root.rglob("*")))
    archive = folder / "archive"
    with open(archive, "wb") as output:
        subprocess.run(["cpio", "-o", "-H", "newc", "--quiet", "-R", "0:0"], cwd=root, input=names.encode(),
                       stdout=output, check=True, timeout=120)
    return archive


def command_line(folder: pathlib.Path, archive: pathlib.Path, devices: list[str], image_bytes: int) -> list[str]:
    command = [
        QEMU, "-accel", "tcg", "-cpu", "max", "-M", "q35", "-smp", "2", "-m", "1024", "-nodefaults", "-no-reboot",
        "-display", "none", "-serial", "stdio", "-kernel", str(GUEST / "vmlinuz"), "-initrd", str(archive),
        "-append", "console=ttyS0 quiet panic=-1 random.trust_cpu=1 intel_iommu=on iommu=nopt "
        "no_timer_check",
        "-trace", "pci_nvme_ub*", "-monitor", f"unix:{folder}/monitor,server=on,wait=off",
    ]
    for name in re.findall(r"drive=(\w+)", " ".join(devices)):
        with open(folder / f"{name}.img", "wb") as image:
            image.truncate(image_bytes)
        command += DRIVE.format(folder=folder, name=name).split(" ")
    for device in devices:
        command += device.split(" ")
    return command


def order_monitor(folder: pathlib.Path, order: str) -> None:
    """Gives an order to QEMU."""
    with socket.socket(socket.AF_UNIX) as monitor:
        monitor.settimeout(60)
        monitor.connect(str(folder / "monitor"))
        # It reads the order behind its prompt, and shows the next prompt when it has carried it out.
        for text in (order, "quit-this-connection"):
            while not monitor.recv(65536).endswith(b"(qemu) "):
                pass
            if text == order:
                monitor.sendall(order.encode() + b"\n")


def read_console(qemu: subprocess.Popen, folder: pathlib.Path) -> str:
    """What the guest prints until it ends or the time is over. A line "monitor: ORDER" is an order to QEMU."""
    end = time.monotonic() + LIMIT_S
    text = b""
    ordered = 0
    while time.monotonic() < end:
        ready, _, _ = select.select([qemu.stdout], [], [], 1)
        if not ready:
            continue
        piece = os.read(qemu.stdout.fileno(), 65536)
        if not piece:
            break
        text += piece
        orders = re.findall(rb"^monitor: (.*?)\r?\n", text, re.M)
        for order in orders[ordered:]:
            order_monitor(folder, order.decode())
        ordered = len(orders)
    return text.decode(errors="replace").replace("\r", "")


def run_guest(folder: pathlib.Path, checks: pathlib.Path, devices: list[str], image_bytes: int) -> tuple[str, str]:
    command = command_line(folder, make_archive(folder, checks), devices, image_bytes)
    with open(folder / "stderr", "wb") as stderr:
        qemu = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr)
    try:
        console = read_console(qemu, folder)
    finally:
        qemu.kill()
        qemu.wait()
    return console, (folder / "stderr").read_text(errors="replace")


def missing() -> str | None:
    if shutil.which(QEMU) is None or shutil.which("cpio") is None:
        return f"there is no {QEMU} or no cpio; 'make setup' installs them"
    for program in PROGRAMS:
        if not program.exists():
            return f"there is no {program}"
    return None


def run_checks(name: str, checks: pathlib.Path, devices: list[str], image_bytes: int, expected: str = "") -> int:
    """The status of a test: each check of the script has run and passed. `expected`: in messages of QEMU's trace that
    are no fault."""
    if missing() is not None:
        print(f"{name}: {missing()}", file=sys.stderr)
        return 1
    if not (GUEST / "version").exists():
        print(f"{name}: skipped: there is no guest; scripts/setup_guest.sh makes it", file=sys.stderr)
        return SKIPPED
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        console, messages = run_guest(pathlib.Path(place), checks, devices, image_bytes)
    print(console)
    passed = len(re.findall(r"^ok ", console, re.M))
    failed = len(re.findall(r"^FAILED ", console, re.M))
    # QEMU's trace of what the kernel's driver or ours does wrong.
    found = [line for line in messages.splitlines() if "pci_nvme_ub" in line
             and (not expected or expected not in line)]
    # Each line of the script that is a check has run.
    written = len(re.findall(r"^check ", checks.read_text(), re.M))
    if "guest: end" not in console or passed + failed != written:
        failed += 1
        print(f"FAILED the guest has not run all checks\n{messages[-3000:]}")
    if found:
        failed += 1
        print("FAILED the trace of the controllers:", *found[:20], sep="\n")
    print(f"{name}: {passed} passed, {failed} failed, {time.monotonic() - began:.0f} s")
    return 0 if failed == 0 and passed == written else 1


if __name__ == "__main__":
    sys.exit(run_checks("vfio-check", SCRIPTS / "guest_checks.sh", DEVICES, IMAGE_BYTES))
