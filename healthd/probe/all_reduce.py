"""The child of the all-reduce test: NCCL through nccl4py over all GPUs of this node, in one process.

Run by path as ``all_reduce.py SIZE_BYTES ITERATIONS WARM_UP``. It fills each GPU with a pattern of its own, reduces it
once and compares every element on every GPU with the known sum; then it reduces repeatedly for the time. It knows no
limit and no instance type. NCCL's environment, which the parent sets, chooses the way of the bytes.

Each element is a small whole number, so the sum of up to 72 GPUs is exact in float32 in any order; float32 is what
nccl-tests uses. Every 4 MiB of a buffer begin elsewhere in the pattern, so a misplaced block shows as well. The result
is overwritten before each test, because memory keeps an earlier one.

Sources: nccl4py 0.3.1 and 0.6.0 (Communicator.init_all, allreduce, get_async_error, group; CUDA array interface v3);
nccl-tests doc/PERFORMANCE.md (busbw), src/common.cu (warm-up, then the mean of the iterations).
"""

from __future__ import annotations

import array
import ctypes
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NoReturn

from msgspec import Struct

from healthd.probe.active_child import Busy, LibraryRefused, answer_with
from healthd.probe.cuda_driver import Cuda, LibraryMissing

WORD_BYTES = 4
CHUNK_WORDS = 1 << 20
_SHIFTS = 8192  # in how many places of the pattern a chunk may begin: 32 GiB before one comes again
_SPARE_BYTES = 1 << 30  # for NCCL's own buffers, as nccl-tests leaves it
_IN_PROGRESS = 7  # nccl.h, ncclInProgress
_PAUSE_S = 0.0002
_INSTALL = "install the package healthd-nccl, or healthd's wheel with its extra `nccl`"
_ENOUGH_CHUNKS = 64  # that many bad ones are counted word by word; the exact number of more does not matter


class Rank(Struct, frozen=True, kw_only=True):
    """One GPU: its two buffers, its stream, and its communicator."""

    index: int
    send: int
    receive: int
    stream: int
    comm: Any


class DeviceArray:
    """An array on a GPU as nccl4py takes it: by the CUDA array interface, version 3."""

    def __init__(self, address: int, words: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (words,),
            "typestr": "<f4",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


def main(arguments: Sequence[str]) -> NoReturn:
    """Measure and answer."""
    size_bytes, iterations, warm_up = (int(argument) for argument in arguments)
    answer_with(lambda: measure(size_bytes, iterations, warm_up))


def measure(size_bytes: int, iterations: int, warm_up: int) -> Mapping[str, Any]:
    """Correctness first, then the time of one all-reduce. Raises the exceptions that ``answer_with`` knows."""
    nccl = _nccl()
    cuda = Cuda()
    size_bytes -= size_bytes % WORD_BYTES
    words, count = size_bytes // WORD_BYTES, cuda.count()
    _require_memory(cuda, count, size_bytes)
    try:
        ranks = _ranks(cuda, nccl, count, size_bytes)
        _numbers(words)  # the threads of all GPUs take them
        _on_each(ranks, lambda rank: _prepare(cuda, rank, words))
        _reduce(cuda, nccl, ranks, words, times=1)
        wrong = sum(_on_each(ranks, lambda rank: _wrong(cuda, rank, words, _sum_of_factors(count))))
        _reduce(cuda, nccl, ranks, words, times=warm_up)
        started_s = time.perf_counter()
        _reduce(cuda, nccl, ranks, words, times=iterations)
        took_s = (time.perf_counter() - started_s) / iterations
    except _nccl_errors() as error:
        raise LibraryRefused(f"{type(error).__name__}: {error}") from error
    return {"gpus": count, "size_bytes": size_bytes, "took_s": took_s, "wrong": wrong, "nccl_version": _version()}


def _nccl() -> Any:
    """nccl4py. Raises LibraryMissing where it, libnccl, or the CUDA bindings are absent."""
    try:
        from nccl import core

        _version()
    except (ImportError, RuntimeError) as error:  # cuda-pathfinder's DynamicLibNotFoundError is a RuntimeError
        raise LibraryMissing(f"nccl4py: {error}; {_INSTALL}") from error
    return core


def _nccl_errors() -> tuple[type[Exception], ...]:
    from nccl.bindings.nccl import NCCLError
    from nccl.core import NcclInvalid

    return (NCCLError, NcclInvalid)


def _version() -> str:
    """libnccl's version, ``2.27.5`` from 22705 (nccl.h, NCCL_VERSION)."""
    from nccl.bindings.nccl import get_version

    number = int(get_version())
    return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"


def _require_memory(cuda: Cuda, count: int, size_bytes: int) -> None:
    needed = 2 * size_bytes + _SPARE_BYTES
    for index in range(count):
        cuda.use(index)
        free = cuda.free_bytes()
        if free < needed:
            raise Busy(
                f"GPU {index} ({cuda.pci(index)}) has {free >> 20} MiB free and needs {needed >> 20} MiB: end the "
                "processes that hold its memory, or set a smaller size_bytes"
            )


def _ranks(cuda: Cuda, nccl: Any, count: int, size_bytes: int) -> tuple[Rank, ...]:
    ranks = []
    for index, comm in enumerate(nccl.Communicator.init_all(count)):
        cuda.use(index)
        send, receive = cuda.allocate(size_bytes), cuda.allocate(size_bytes)
        ranks.append(Rank(index=index, send=send, receive=receive, stream=cuda.stream(), comm=comm))
    return tuple(ranks)


def _on_each(ranks: Sequence[Rank], work: Callable[[Rank], int]) -> list[int]:
    """One thread for each GPU: copies over PCIe and comparisons release the interpreter lock."""
    with ThreadPoolExecutor(max(1, len(ranks))) as pool:
        return list(pool.map(work, ranks))


def _reduce(cuda: Cuda, nccl: Any, ranks: Sequence[Rank], words: int, *, times: int) -> None:
    """So many all-reduces one after the other, and wait for the last; an error that NCCL reports meanwhile ends it."""
    buffers = [(DeviceArray(rank.send, words), DeviceArray(rank.receive, words)) for rank in ranks]
    for _ in range(times):
        with nccl.group():
            for rank, (send, receive) in zip(ranks, buffers, strict=True):
                cuda.use(rank.index)
                rank.comm.allreduce(send, receive, nccl.SUM, stream=rank.stream)
    waiting = list(ranks)
    while waiting:
        for rank in waiting:
            result = int(rank.comm.get_async_error())
            if result not in (0, _IN_PROGRESS):
                raise LibraryRefused(f"rank {rank.index}: {nccl.get_error_string(result)} ({result})")
        waiting = [rank for rank in waiting if not cuda.done(rank.stream)]
        time.sleep(_PAUSE_S if waiting else 0)


# ---------------------------------------------------------------------------------------------------------------------
# the pattern


def pattern(factor: int, words: int = CHUNK_WORDS) -> array.array[float]:
    """Whole numbers from 1 to 4096 in no order, times ``factor``: the first chunk of so many words, and the end of a
    shifted one."""
    return array.array("f", map(float(factor).__mul__, _numbers(words)))


@cache
def _numbers(words: int) -> array.array[float]:
    count = min(words, CHUNK_WORDS) + _SHIFTS
    return array.array("f", ((((number * 2_654_435_761) & 0xFFFFFFFF) >> 20) + 1 for number in range(count)))


def _sum_of_factors(count: int) -> int:
    """Rank r sends the pattern times r + 1."""
    return count * (count + 1) // 2


def _prepare(cuda: Cuda, rank: Rank, words: int) -> int:
    cuda.use(rank.index)
    cuda.fill(rank.receive, words * WORD_BYTES)
    source = pattern(rank.index + 1, words)
    address, _ = source.buffer_info()
    for number, first in enumerate(range(0, words, CHUNK_WORDS)):
        size = min(CHUNK_WORDS, words - first) * WORD_BYTES
        cuda.write(rank.send + first * WORD_BYTES, address + _shift(number) * WORD_BYTES, size)
    return 0


def _wrong(cuda: Cuda, rank: Rank, words: int, factor: int) -> int:
    """How many elements of the result differ from the known sum; of very many, at least so many."""
    cuda.use(rank.index)
    expected = pattern(factor, words)
    address, _ = expected.buffer_info()
    host = ctypes.create_string_buffer(CHUNK_WORDS * WORD_BYTES)
    compare, wrong, bad_chunks = ctypes.CDLL(None).memcmp, 0, 0
    for number, first in enumerate(range(0, words, CHUNK_WORDS)):
        size = min(CHUNK_WORDS, words - first) * WORD_BYTES
        wanted = address + _shift(number) * WORD_BYTES
        cuda.read(ctypes.addressof(host), rank.receive + first * WORD_BYTES, size)
        if compare(host, ctypes.c_void_p(wanted), ctypes.c_size_t(size)):
            wrong += _different(host.raw[:size], ctypes.string_at(wanted, size))
            bad_chunks += 1
            if bad_chunks == _ENOUGH_CHUNKS:
                break
    return wrong


def _shift(chunk: int) -> int:
    return chunk % _SHIFTS


def _different(got: bytes, wanted: bytes) -> int:
    return sum(a != b for a, b in zip(array.array("I", got), array.array("I", wanted), strict=True))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(f"{os.path.basename(__file__)}: expected SIZE_BYTES ITERATIONS WARM_UP, got {sys.argv[1:]}")
    main(sys.argv[1:])
