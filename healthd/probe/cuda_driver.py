"""The few calls of the CUDA driver API that active tests need, through ctypes. For their children only.

No CUDA toolkit and no Python package is needed: ``libcuda.so.1`` comes with the driver. Nothing is judged here, and
nothing may be loaded in healthd's own process: a call may block for ever.

Sources: CUDA Driver API reference 13.0 (signatures, and the ``_v2`` names behind cuda.h's macros); cuda.h, CUresult.
"""

from __future__ import annotations

import ctypes
from typing import Any

OUT_OF_MEMORY, NO_DEVICE, NOT_READY = 2, 100, 600  # cuda.h, CUresult
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_SYNC_MEMOPS = 6  # CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
_BUS_ID_BYTES = 32


class LibraryMissing(Exception):
    """A shared library that a test needs is not installed."""


class CudaError(Exception):
    """A call that CUDA refused: its name, the return code and CUDA's name for that."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call}: {name} ({code})")
        self.code = code


def load(*names: str) -> ctypes.CDLL:
    """The first of these shared libraries that the dynamic linker finds. Raises LibraryMissing."""
    errors = []
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            errors.append(str(error))
    raise LibraryMissing("; ".join(errors))


class Cuda:
    """The driver API, initialised. Sizes are bytes; device and host addresses are plain integers."""

    def __init__(self) -> None:
        try:
            self._library = load("libcuda.so.1")
        except LibraryMissing as error:
            raise LibraryMissing(f"NVIDIA's driver is not installed: {error}") from error
        self._call("cuInit", ctypes.c_uint(0))

    def count(self) -> int:
        """How many GPUs CUDA lets this process use."""
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        return count.value

    def pci(self, index: int) -> str:
        """The PCI address, as CUDA writes it."""
        text = ctypes.create_string_buffer(_BUS_ID_BYTES)
        self._call("cuDeviceGetPCIBusId", text, ctypes.c_int(_BUS_ID_BYTES), self._device(index))
        return text.value.decode()

    def use(self, index: int) -> None:
        """Make the GPU's primary context, which NCCL uses too, that of the calling thread."""
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device(index))
        self._call("cuCtxSetCurrent", context)

    def free_bytes(self) -> int:
        """The free memory of the current GPU."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def allocate(self, size: int) -> int:
        """Allocate memory of the current GPU; the end of this process frees it."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def synchronous(self, address: int) -> None:
        """Make memory operations on this allocation synchronous, as GPUDirect needs it."""
        yes = ctypes.c_uint(1)
        call = "cuPointerSetAttribute"
        self._call(call, ctypes.byref(yes), ctypes.c_int(_SYNC_MEMOPS), ctypes.c_uint64(address))

    def fill(self, address: int, size: int) -> None:
        """Set every bit, and wait until it is done."""
        self._call("cuMemsetD8_v2", ctypes.c_uint64(address), ctypes.c_ubyte(0xFF), ctypes.c_size_t(size))
        self._call("cuCtxSynchronize")

    def write(self, address: int, host: int, size: int) -> None:
        """Copy from the host to the GPU, and wait until it is done."""
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), ctypes.c_void_p(host), ctypes.c_size_t(size))
        self._call("cuCtxSynchronize")

    def read(self, host: int, address: int, size: int) -> None:
        """Copy from the GPU to the host, and wait until it is done."""
        self._call("cuMemcpyDtoH_v2", ctypes.c_void_p(host), ctypes.c_uint64(address), ctypes.c_size_t(size))

    def stream(self) -> int:
        """A new stream of the current GPU."""
        stream = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(_NON_BLOCKING))
        return stream.value or 0

    def done(self, stream: int) -> bool:
        """Whether all work of a stream has ended. Raises CudaError where it failed."""
        code = int(self._library.cuStreamQuery(ctypes.c_void_p(stream)))
        if code not in (0, NOT_READY):
            raise self._error("cuStreamQuery", code)
        return code == 0

    def _device(self, index: int) -> ctypes.c_int:
        device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(index))
        return device

    def _call(self, name: str, *arguments: Any) -> None:
        code = int(getattr(self._library, name)(*arguments))
        if code:
            raise self._error(name, code)

    def _error(self, call: str, code: int) -> CudaError:
        name = ctypes.c_char_p()
        known = self._library.cuGetErrorName(ctypes.c_int(code), ctypes.byref(name)) == 0
        return CudaError(call, code, (name.value or b"").decode() if known else "unknown code")
