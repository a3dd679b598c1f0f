"""A kernel of PTX text, on GPU 0, through the CUDA driver API: what the programs of these tests run.

Source: CUDA Driver API reference 13.0 (cuModuleLoadData, cuModuleGetFunction, cuLaunchKernel, cuCtxSynchronize).
"""

from __future__ import annotations

import ctypes

from healthd.probe.cuda_driver import Cuda, load


class Kernel:
    """The entry ``kernel`` of the text, with one thread and no arguments."""

    def __init__(self, ptx: bytes) -> None:
        Cuda().use(0)
        self._library = load("libcuda.so.1")
        module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self._must("cuModuleLoadData", ctypes.byref(module), ptx)
        self._must("cuModuleGetFunction", ctypes.byref(self._function), module, b"kernel")

    def run(self) -> int:
        """Start it and wait for its end. Returns the code of the waiting: 0, or why the driver ended it (CUresult)."""
        one, none = ctypes.c_uint(1), ctypes.c_void_p()
        grid_and_block = [one] * 6
        self._must("cuLaunchKernel", self._function, *grid_and_block, ctypes.c_uint(0), none, none, none)
        return int(self._library.cuCtxSynchronize())

    def _must(self, call: str, *arguments: object) -> None:
        code = int(getattr(self._library, call)(*arguments))
        if code:
            raise RuntimeError(f"{call}: {code}")
