"""fio writes, reads back and verifies: random and sequential, buffered, direct, mapped, several jobs."""

import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from mounted_pool import MountedPool, in_own_namespace, scale  # noqa: E402

JOBS = {
    "sequential": ["--rw=write", "--bs=1M"],
    "random": ["--rw=randwrite", "--bs=4k"],
    "odd": ["--rw=randrw", "--bsrange=512-70000", "--bs_unaligned=1"],
    "direct": ["--rw=randwrite", "--bs=16k", "--direct=1"],
    "mapped": ["--rw=randwrite", "--bs=4k", "--ioengine=mmap"],
    "synchronous": ["--rw=randwrite", "--bs=4k", "--fsync=16", "--io_size=1M"],
}


def run_job(folder, name, options, size_mib):
    command = ["fio", f"--name={name}", f"--directory={folder}", f"--size={size_mib}M",
               "--ioengine=psync", "--numjobs=2", "--thread", "--verify=xxhash", "--verify_fatal=1",
               "--do_verify=1", "--verify_state_save=0", "--randseed=7", "--group_reporting",
               "--output-format=json", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
    report = json.loads(done.stdout[done.stdout.index("{"):])
    errors = sum(job["error"] for job in report["jobs"])
    assert errors == 0, f"{name}: {errors} errors"
    return sum(job["write"]["total_ios"] for job in report["jobs"])


def main():
    with MountedPool(device_mib=192) as pool:
        for name, options in JOBS.items():
            count = run_job(pool.mountpoint, name, options, max(4, scale(16)))
            assert count > 0, name
            print(f"fio {name}: {count} writes verified")


if __name__ == "__main__":
    in_own_namespace()
    main()
