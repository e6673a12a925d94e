#!/usr/bin/env python3
"""Pools on NVMe drives that gpu4fs drives itself through VFIO, in a guest of QEMU (vfio_test.py)."""
import sys

import vfio_test

IMAGE_BYTES = 192 << 20
DEVICES = [
    "-device intel-iommu,intremap=on,caching-mode=on",
    "-device nvme,drive=a,serial=first,addr=4",
    "-device pcie-root-port,id=plug,bus=pcie.0,addr=5,chassis=1",
    "-device nvme,drive=b,serial=second,id=second,bus=plug",
    "-device nvme,drive=c,serial=third,addr=6",
]

# Of a drive that was reset behind the driver's back.
EXPECTED = "doorbell write for nonexistent queue"

if __name__ == "__main__":
    sys.exit(vfio_test.run_checks("vfio-pool-check", vfio_test.SCRIPTS / "pool_checks.sh", DEVICES, IMAGE_BYTES,
                                  EXPECTED))
