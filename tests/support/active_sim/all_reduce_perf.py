"""A stand-in for nccl-tests' ``all_reduce_perf``; tests write it out as an executable.

Its output is constructed in the form of nccl-tests src/common.cu and src/util.cu. ACTIVE_SIM_FAULT: perf_slow,
perf_wrong, perf_hang, perf_crash, perf_nccl, perf_memory, perf_torn. ACTIVE_SIM_NOTE as in nccl_core.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

FAULT = os.environ.get("ACTIVE_SIM_FAULT", "")
options = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
size, gpus = int(options["-b"]), int(options["-g"])

if path := os.environ.get("ACTIVE_SIM_NOTE"):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    orphan = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    noted = {"environ": dict(os.environ), "pids": [os.getpid(), child.pid, orphan.pid], "guard": os.getppid()}
    with open(f"{path}.new", "w", encoding="utf-8") as note:
        json.dump(noted, note)
    os.rename(f"{path}.new", path)

say = sys.stdout.write
say(f"# nThread 1 nGpus {gpus} minBytes {size} maxBytes {size} step: 1048576(bytes) warmup iters: 5 iters: 20\n#\n")
say("# Using devices\n")
for rank in range(gpus):
    say(f"#  Rank {rank:2d} Group  0 Pid {os.getpid():6d} on  sim device {rank:2d} [0x{rank * 17:02x}] Sim\n")
sys.stderr.write("NCCL version 2.27.5+cuda12.9\nsim:1:1 [0] NCCL INFO Using network Libfabric\n")
if FAULT == "perf_hang":
    sys.stdout.flush()
    time.sleep(60)
if FAULT == "perf_crash":
    os.abort()
if FAULT == "perf_nccl":
    sys.stderr.write("sim:1:1 [0] transport.cc:42 NCCL WARN no transport between rank 0 and rank 1\n")
    say("sim: Test NCCL failure common.cu:1279 'unhandled system error / no transport'\n .. sim pid 1: Test failure\n")
    sys.exit(3)
if FAULT == "perf_memory":
    say("sim: Test CUDA failure common.cu:892 'out of memory'\n .. sim pid 1: Test failure common.cu:1100\n")
    sys.exit(2)
bandwidth = 93.21 if FAULT == "perf_slow" else 478.12
wrong = 3 if FAULT == "perf_wrong" else 0
say("#\n#                                                              out-of-place                       in-place\n")
say("#       size         count      type   redop    root     time   algbw   busbw #wrong ")
say("    time   algbw   busbw #wrong\n")
say("#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n")
half = f"  {62870.0:7.1f}  {bandwidth / 1.75:6.2f}  {bandwidth:6.2f}  {wrong:5d}"
say(f"{size:12d}  {size // 4:12d}     float     sum      -1{half}{half}\n")
if FAULT == "perf_torn":
    sys.exit(0)
say(f"# Out of bounds values : {int(wrong > 0)} {'FAILED' if wrong else 'OK'}\n")
say(f"# Avg bus bandwidth    : {bandwidth} \n#\n")
sys.exit(1 if wrong else 0)
