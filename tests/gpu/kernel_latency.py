"""Starts a kernel that does nothing and waits for its end, again and again: a program that feels every delay in the
driver. Prints percentiles in microseconds, as one JSON object. Run by test_gpu_costs.py.

Source: CUDA Driver API reference 13.0 (cuLaunchKernel, cuCtxSynchronize); PTX ISA 7.0.
"""

from __future__ import annotations

import json
import sys
import time

from tests.gpu.kernels import Kernel

PTX = b"""
.version 7.0
.target sm_50
.address_size 64
.visible .entry kernel() { ret; }
"""
WARM_UP = 1000


def main() -> None:
    """Run for the seconds that the first argument says."""
    kernel = Kernel(PTX)
    for _ in range(WARM_UP):
        kernel.run()
    took_us: list[float] = []
    last_s = began_s = time.perf_counter()
    while last_s - began_s < float(sys.argv[1]):
        kernel.run()
        now_s = time.perf_counter()
        took_us.append((now_s - last_s) * 1e6)
        last_s = now_s
    took_us.sort()
    shares = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
    json.dump({name: round(took_us[int(len(took_us) * share)], 1) for name, share in shares.items()}, sys.stdout)


if __name__ == "__main__":
    main()
