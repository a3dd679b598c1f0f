"""The child of the GDRCopy test: on each GPU, pin a buffer, map it, write it with the CPU, and read it back both ways.

Run by path as ``gdrcopy.py SIZE_BYTES``. It compares the bytes that the CPU wrote through the mapping with the GPU's
(copied by the GPU's own engine) and with those that the CPU reads through the mapping. It judges nothing: it reports
the call that was refused, or the number of different bytes.

Sources: gdrcopy 2.5 include/gdrapi.h (signatures, struct gdr_info_v2, 64 KiB pages, a mapping may begin before the
buffer); the return codes are numbers of errno(3).
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from healthd.probe.active_child import answer_with
from healthd.probe.cuda_driver import Cuda, CudaError, load

_PAGE_BYTES = 1 << 16  # GPU_PAGE_SIZE


class _Handle(ctypes.Structure):
    """gdr_mh_t."""

    _fields_ = (("h", ctypes.c_ulong),)


class _GdrInfo(ctypes.Structure):
    """gdr_info_v2_t; gdr_info_t of older versions is its beginning."""

    _fields_ = (
        ("va", ctypes.c_uint64),
        ("mapped_size", ctypes.c_uint64),
        ("page_size", ctypes.c_uint32),
        ("tm_cycles", ctypes.c_uint64),
        ("cycles_per_ms", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("mapping_type", ctypes.c_int),
    )


class GdrRefused(Exception):
    """A refused call of libgdrapi."""


class Gdr:
    """libgdrapi, with its connection to the driver gdrdrv."""

    def __init__(self) -> None:
        self._library = load("libgdrapi.so.2", "libgdrapi.so")
        self._library.gdr_open.restype = ctypes.c_void_p
        opened = self._library.gdr_open()
        if not opened:
            raise GdrRefused("gdr_open returned NULL; load gdrdrv, or run as a user who may open /dev/gdrdrv")
        self._gdr = ctypes.c_void_p(opened)
        self._get_info = getattr(self._library, "gdr_get_info_v2", None) or self._library.gdr_get_info

    def compare(self, cuda: Cuda, address: int, size: int) -> int:
        """How many of ``size`` bytes at a page of GPU memory differ from those written."""
        handle, mapped = _Handle(), ctypes.c_void_p()
        length = ctypes.c_size_t(_pages(size))
        pin = (ctypes.c_ulong(address), length, ctypes.c_uint64(0), ctypes.c_uint32(0), ctypes.byref(handle))
        self._call("gdr_pin_buffer", self._gdr, *pin)
        self._call("gdr_map", self._gdr, handle, ctypes.byref(mapped), length)
        wrong = self._copy(cuda, handle, address, mapped.value or 0, size)
        self._call("gdr_unmap", self._gdr, handle, mapped, length)
        self._call("gdr_unpin_buffer", self._gdr, handle)
        return wrong

    def _copy(self, cuda: Cuda, handle: _Handle, address: int, mapped: int, size: int) -> int:
        info = _GdrInfo()
        _require("gdr_get_info", self._get_info(self._gdr, handle, ctypes.byref(info)))
        here = ctypes.c_void_p(mapped + address - info.va)
        sent, length = _pattern(address, size), ctypes.c_size_t(size)
        by_gpu, by_cpu = ctypes.create_string_buffer(size), ctypes.create_string_buffer(size)
        self._call("gdr_copy_to_mapping", handle, here, sent, length)
        cuda.read(ctypes.addressof(by_gpu), address, size)
        self._call("gdr_copy_from_mapping", handle, by_cpu, here, length)
        return max(_different(sent, by_gpu.raw), _different(sent, by_cpu.raw))

    def _call(self, name: str, *arguments: Any) -> None:
        _require(name, getattr(self._library, name)(*arguments))


def main(arguments: Sequence[str]) -> NoReturn:
    """Measure and answer."""
    size_bytes = int(arguments[0])
    answer_with(lambda: measure(size_bytes))


def measure(size_bytes: int) -> Mapping[str, Any]:
    """One entry for each GPU. Raises the exceptions that ``answer_with`` knows, if no GPU can be tested at all."""
    load("libgdrapi.so.2", "libgdrapi.so")
    cuda = Cuda()
    return {"copies": [_one(cuda, index, size_bytes) for index in range(cuda.count())]}


def _one(cuda: Cuda, index: int, size_bytes: int) -> dict[str, Any]:
    wrong, refused = 0, ""
    try:
        cuda.use(index)
        address = _pages(cuda.allocate(_pages(size_bytes) + _PAGE_BYTES))
        cuda.synchronous(address)
        cuda.fill(address, size_bytes)
        wrong = Gdr().compare(cuda, address, size_bytes)
    except (GdrRefused, CudaError) as error:
        refused = str(error)
    return {"index": index, "pci": cuda.pci(index), "size_bytes": size_bytes, "wrong_bytes": wrong, "refused": refused}


def _require(name: str, code: int) -> None:
    if code:
        raise GdrRefused(f"{name} returned {code} ({os.strerror(abs(code))})")


def _pages(number: int) -> int:
    """The number rounded up to whole GPU pages."""
    return -(-number // _PAGE_BYTES) * _PAGE_BYTES


def _pattern(seed: int, size: int) -> bytes:
    """Bytes in which no neighbour and no block of 256 is like the next."""
    return bytes(((number ^ (number >> 8)) * 167 + seed) & 0xFF for number in range(size))


def _different(wanted: bytes, got: bytes) -> int:
    return sum(a != b for a, b in zip(wanted, got, strict=True))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"{os.path.basename(__file__)}: expected SIZE_BYTES, got {sys.argv[1:]}")
    main(sys.argv[1:])
