"""tar, cp and rsync carry a tree to the mount and back; names, modes, times, links, owners,
attributes and bytes must be the same."""

import os
import stat
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from mounted_pool import MountedPool, in_own_namespace, memory_folder, scale  # noqa: E402


def generate(root):
    for i in range(scale(40)):
        folder = os.path.join(root, f"folder {i}", "ünïcode", "x" * (i % 200 + 1))
        os.makedirs(folder)
        for j in range(15):
            path = os.path.join(folder, f"file{j}")
            with open(path, "wb") as file:
                file.write(os.urandom((i * 977 + j * 4099) % 70000))
            os.chmod(path, (0o600, 0o644, 0o755, 0o4711)[j % 4])
        os.symlink(os.path.join("..", "..", "nowhere"), os.path.join(folder, "dangling"))
        os.link(os.path.join(folder, "file0"), os.path.join(root, f"hard link {i}"))
        os.setxattr(os.path.join(folder, "file1"), "user.note", b"value %d" % i)
    with open(os.path.join(root, "sparse"), "wb") as file:
        file.seek(50 << 20)
        file.write(b"end")
    os.mkfifo(os.path.join(root, "fifo"))
    os.mkdir(os.path.join(root, "empty"), 0o700)
    # Far from the current time: rsync considers times in the same second equal.
    moment = 10**18
    for folder, folders, files in os.walk(root, topdown=False):
        for name in files + folders + ["."]:
            moment += 123456789
            os.utime(os.path.join(folder, name), ns=(10**18, moment), follow_symlinks=False)


def describe(root):
    """Everything a copy must keep, by relative path."""
    links = {}
    result = {}
    for folder, folders, files in os.walk(root):
        for name in folders + files + [""]:
            path = os.path.join(folder, name) if name else folder
            status = os.lstat(path)
            relative = os.path.relpath(path, root)
            content = None
            attributes = ()
            if stat.S_ISREG(status.st_mode):
                with open(path, "rb") as file:
                    content = hash(file.read())
                attributes = tuple((key, os.getxattr(path, key)) for key in sorted(os.listxattr(path))
                                   if key.startswith("user."))
                links.setdefault(status.st_ino, []).append(relative)
            elif stat.S_ISLNK(status.st_mode):
                content = os.readlink(path)
            is_folder = stat.S_ISDIR(status.st_mode)
            result[relative] = (status.st_mode, status.st_uid, status.st_gid,
                                0 if is_folder else status.st_size,
                                0 if relative == "." else status.st_mtime_ns,
                                0 if is_folder else status.st_nlink, content, attributes)
    return result, sorted(sorted(names) for names in links.values())


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, f"{words}: {done.stderr}"


def compare(expected, root, what):
    got = describe(root)
    differing = [name for name in expected[0] if got[0].get(name) != expected[0][name]]
    assert not differing, (f"{what}: {len(differing)} differ, {differing[0]!r}: "
                           f"{expected[0][differing[0]]} became {got[0].get(differing[0])}")
    assert got == expected, f"{what}: other names or hard links"


def main():
    with MountedPool(device_mib=256) as pool, \
            tempfile.TemporaryDirectory(dir=memory_folder(128 << 20)) as outside:
        source = os.path.join(outside, "source")
        os.mkdir(source)
        generate(source)
        expected = describe(source)
        run("cp", "-a", "--sparse=always", source, pool.path("cp"))
        run("rsync", "-aHX", source + "/", pool.path("rsync"))
        os.mkdir(pool.path("tar"))
        run("sh", "-c", f"tar -C '{source}' --xattrs -Scf - . | tar -C '{pool.path('tar')}' --xattrs -xpf -")
        compare(expected, pool.path("cp"), "cp")
        compare(expected, pool.path("rsync"), "rsync")
        compare(expected, pool.path("tar"), "tar")
        assert os.stat(pool.path("cp", "sparse")).st_blocks * 512 < 1 << 20, "a hole was filled"
        pool.remount()
        for name in ("cp", "rsync", "tar"):
            compare(expected, pool.path(name), f"{name} after a remount")
        back = os.path.join(outside, "back")
        run("rsync", "-aHX", pool.path("rsync") + "/", back)
        compare(expected, back, "rsync back")
        done = subprocess.run(["rsync", "-aHXni", "--checksum", source + "/", pool.path("cp") + "/"],
                              capture_output=True, text=True)
        assert done.stdout == "", f"rsync finds differences:\n{done.stdout}"
    print(f"cp, rsync, tar: {len(expected[0])} entries each, equal, and equal after a remount")


if __name__ == "__main__":
    in_own_namespace()
    main()
