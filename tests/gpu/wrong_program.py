"""A CUDA program that is wrong on purpose: it writes to an address that it does not have. The driver ends it and
reports XID 31; the GPU and other programs go on. Run by test_gpu_xid.py in a process of its own.

Source: PTX ISA 7.0 (st.global).
"""

from __future__ import annotations

import sys

from tests.gpu.kernels import Kernel

ILLEGAL_ADDRESS = 700  # cuda.h, CUDA_ERROR_ILLEGAL_ADDRESS
PTX = b"""
.version 7.0
.target sm_50
.address_size 64
.visible .entry kernel() {
  .reg .u64 %address;
  .reg .u32 %word;
  mov.u64 %address, 16;
  mov.u32 %word, 1;
  st.global.u32 [%address], %word;
  ret;
}
"""


def main() -> int:
    """Exit 0 where the driver ended the kernel for its address, as it must."""
    code = Kernel(PTX).run()
    sys.stdout.write(f"cuCtxSynchronize: {code}\n")
    return 0 if code == ILLEGAL_ADDRESS else 1


if __name__ == "__main__":
    sys.exit(main())
