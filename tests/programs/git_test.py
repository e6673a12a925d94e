"""git on the mount: clone, commit, branch, merge, gc, fsck."""

import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from mounted_pool import MountedPool, in_own_namespace  # noqa: E402

ENVIRONMENT = dict(os.environ, GIT_CONFIG_NOSYSTEM="1", GIT_CONFIG_GLOBAL="/dev/null",
                   GIT_AUTHOR_NAME="test", GIT_AUTHOR_EMAIL="test@example.org",
                   GIT_COMMITTER_NAME="test", GIT_COMMITTER_EMAIL="test@example.org")


def git(folder, *words):
    done = subprocess.run(["git", "-c", "safe.directory=*", "-C", folder, *words],
                          env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, f"git {' '.join(words)}: {done.stderr}"
    return done.stdout.strip()


def has_commits(folder):
    done = subprocess.run(["git", "-c", "safe.directory=*", "-C", folder, "rev-parse", "HEAD"],
                          env=ENVIRONMENT, capture_output=True)
    return done.returncode == 0


def main():
    source = os.environ.get("GPU4FS_SOURCE", os.path.join(os.path.dirname(__file__), "..", ".."))
    with MountedPool(device_mib=256) as pool:
        work = pool.path("work")
        if has_commits(source):
            git(pool.mountpoint, "clone", "--no-hardlinks", "--quiet", source, "work")
        else:
            # A source archive: its files become the first commit.
            os.mkdir(work)
            git(work, "init", "--quiet")
            subprocess.run(f"tar -C '{source}' --exclude=./build --exclude=./.git -cf - . "
                           f"| tar -C '{work}' -xf -", shell=True, check=True)
            git(work, "add", "--all")
            git(work, "commit", "--quiet", "-m", "files")
        first = git(work, "rev-parse", "HEAD")
        git(work, "checkout", "--quiet", "-b", "side")
        for i in range(200):
            with open(os.path.join(work, f"file{i}.txt"), "w") as file:
                file.write(f"line {i}\n" * (i + 1))
        git(work, "add", "--all")
        git(work, "commit", "--quiet", "-m", "two hundred files")
        git(work, "checkout", "--quiet", first)
        assert not os.path.exists(os.path.join(work, "file7.txt"))
        git(work, "checkout", "--quiet", "-b", "other")
        git(work, "merge", "--quiet", "--no-ff", "-m", "merge", "side")
        git(work, "gc", "--quiet", "--aggressive")
        git(work, "fsck", "--full", "--strict")
        assert git(work, "status", "--porcelain") == ""
        head = git(work, "rev-parse", "HEAD^{tree}")
        pool.remount()
        git(work, "fsck", "--full", "--strict")
        assert git(work, "status", "--porcelain") == ""
        assert git(work, "rev-parse", "HEAD^{tree}") == head
    print("git: clone, commits, merge, gc, fsck, and again after a remount")


if __name__ == "__main__":
    in_own_namespace()
    main()
