"""A pool of memory files, made, mounted, unmounted and checked by the gpu4fs program.

GPU4FS names the program. The devices are in /dev/shm if it has room, otherwise in the temporary folder. A test may name
other devices, which exist already.
"""

import filecmp
import os
import shutil
import signal
import subprocess
import sys
import tempfile

PROGRAM = os.environ.get("GPU4FS", "gpu4fs")
SKIPPED = 77  # exit status of a test that cannot run here; ctest knows it


def require_fuse():
    """Ends the test as skipped if the kernel has no FUSE."""
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        print(f"skipped: /dev/fuse cannot be opened: {error.strerror}")
        sys.exit(SKIPPED)


def in_own_namespace(is_needed=False):
    """Starts the test again in a mount namespace of its own, where unmounts of other processes still take effect.

    If this test's mounts were in the first namespace, a namespace that another test creates would contain them as well.
    Without shared mounts their servers would then continue until that test ends, and the devices would stay in use.
    """
    if os.environ.get("GPU4FS_OWN_NAMESPACE") == "1":
        return
    if os.geteuid() != 0:
        if not is_needed:
            return
        print("skipped: only root has namespaces of mounts")
        sys.exit(SKIPPED)
    os.environ["GPU4FS_OWN_NAMESPACE"] = "1"
    os.execvp("unshare", ["unshare", "--mount", "--propagation", "slave", sys.executable, *sys.argv])


def gpu4fs(*words):
    """The program's exit status and its output."""
    return subprocess.run([PROGRAM, *words], capture_output=True, text=True)


def same_tree(left, right):
    """Whether two folders have the same names and bytes."""
    compared = filecmp.dircmp(left, right)
    if compared.left_only or compared.right_only or compared.funny_files:
        return False
    _, mismatch, errors = filecmp.cmpfiles(left, right, compared.common_files, shallow=False)
    if mismatch or errors:
        return False
    return all(same_tree(os.path.join(left, name), os.path.join(right, name)) for name in compared.common_dirs)


def scale(count):
    """A length of a random test, shortened by GPU4FS_TEST_SCALE percent."""
    return max(1, count * int(os.environ.get("GPU4FS_TEST_SCALE", "100")) // 100)


def memory_folder(needed_bytes):
    shm = "/dev/shm"
    if os.path.isdir(shm) and shutil.disk_usage(shm).free > 2 * needed_bytes:
        return shm
    return None


class MountedPool:
    """Use as a context manager: makes and mounts the pool, and unmounts and checks it at the end."""

    def __init__(self, device_mib=128, device_count=2, options="", check=True, parent=None, mkfs=(), devices=None):
        require_fuse()
        self.folder = tempfile.mkdtemp(
            prefix="gpu4fs-test-", dir=parent or memory_folder(device_mib * device_count << 20))
        self.devices = devices or [os.path.join(self.folder, f"device{i}") for i in range(device_count)]
        self.mountpoint = os.path.join(self.folder, "mount")
        self.options = options
        self.check = check
        self.is_mounted = False
        os.environ["GPU4FS_CONTROL_FOLDER"] = os.path.join(self.folder, "run")
        os.mkdir(self.mountpoint)
        os.chmod(self.folder, 0o755)
        try:
            run("mkfs", "--quiet", "--size", f"{device_mib}M", *mkfs, *self.devices)
        except BaseException:
            self.remove()
            raise

    def __enter__(self):
        try:
            self.mount()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, kind, value, trace):
        try:
            if self.is_mounted:
                self.umount()
            if self.check and kind is None:
                self.fsck()
        finally:
            self.remove()

    def path(self, *names):
        return os.path.join(self.mountpoint, *names)

    def mount(self, options=None):
        options = self.options if options is None else options
        words = ["-o", options] if options else []
        run("mount", *words, ":".join(self.devices), self.mountpoint)
        self.is_mounted = True

    def umount(self):
        run("umount", self.mountpoint)
        self.is_mounted = False

    def remount(self, options=None):
        self.umount()
        self.mount(options)

    def server_pid(self):
        return int(os.getxattr(self.mountpoint, "user.gpu4fs.server.pid"))

    def kill_server(self):
        """Kills the server with SIGKILL and detaches the directory: the state after a crash."""
        handle = os.pidfd_open(self.server_pid())
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        wait_for_exit(handle)
        os.close(handle)
        subprocess.run(["umount", "-l", self.mountpoint], check=True)
        self.is_mounted = False

    def fsck(self):
        done = subprocess.run([PROGRAM, "fsck", *self.devices], capture_output=True, text=True)
        if done.returncode != 0:
            raise AssertionError(
                f"fsck found damage, status {done.returncode}:\n{done.stdout}{done.stderr}")

    def end_server(self):
        for process in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{process}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
                if os.fsencode(self.mountpoint) in words:
                    os.kill(int(process), signal.SIGKILL)
            except OSError:
                pass  # it ended meanwhile

    def remove(self):
        if self.is_mounted:
            # A failed test: files may still be open, so do not wait for the server.
            subprocess.run(["umount", "-l", self.mountpoint])
            self.end_server()
        shutil.rmtree(self.folder, ignore_errors=True)


def wait_for_exit(handle):
    import select
    poller = select.poll()
    poller.register(handle, select.POLLIN)
    poller.poll()


def run(*words):
    done = subprocess.run([PROGRAM, *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"gpu4fs {' '.join(words)}: status {done.returncode}\n{done.stderr}")
    return done.stdout
