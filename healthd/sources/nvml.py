"""The NVML source: requests to the GPU driver's library, through one probe worker.

Nothing of NVML is loaded in this process. One request is one exchange with the worker, whatever the number of GPUs and
calls. The UUID of each GPU is remembered here, so that a GPU that no longer answers can still be named.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from healthd.core.errors import SourceUnreadable
from healthd.core.model import pci_address
from healthd.core.node import GpuAnswer, NvmlFailure, ProbeState
from healthd.probe.supervise import Probe
from healthd.sources.refusals import Refusals


class NvmlSource:
    """The ``Nvml`` port of :mod:`healthd.core.node`.

    ``library``: "" lets pynvml find ``libnvidia-ml.so.1``; a path is that shared object; a path that ends in ``.sim``
    is the state file of the simulated library (``healthd.sim.nvml``). ``deadline_s`` is per request.
    ``start_grace_s``: how long a worker may take to initialise NVML and all GPUs before it is killed; requests still
    end at their deadline. ``clock`` returns monotonic seconds. ``module``: the family of the worker; a drill has
    another.
    """

    def __init__(
        self,
        *,
        library: str = "",
        deadline_s: float = 5.0,
        start_grace_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        module: str = "healthd.probe.nvml_ops",
    ) -> None:
        self._deadline_s = deadline_s
        self._alter: Callable[[GpuAnswer], GpuAnswer] | None = None
        self._known: dict[int, tuple[str, str | None]] = {}
        self._refusals = Refusals(clock)
        self._worker: int | None = None
        self._probe = Probe(
            "nvml",
            module=module,
            arguments=(os.path.abspath(library) if library else "",),
            start_grace_s=start_grace_s,
            clock=clock,
        )

    def ask(self, *calls: str, fields: Sequence[int | tuple[int, int]] = ()) -> tuple[GpuAnswer, ...]:
        """See ``healthd.core.node.Nvml.ask``. Without calls and fields, the GPUs alone."""
        wanted = [list(field) if isinstance(field, tuple) else [field, 0] for field in fields]
        answers = self._probe.request("ask", {"calls": calls, "fields": wanted}, deadline_s=self._deadline_s)
        named = self._noted(self._named([_answer(answer) for answer in answers]))
        return named if self._alter is None else tuple(map(self._alter, named))

    def altered(self, alter: Callable[[GpuAnswer], GpuAnswer]) -> NvmlSource:
        """The same worker, with each GPU's answer passed through ``alter``: for a drill. Not to be closed."""
        other = copy.copy(self)
        other._alter = alter
        return other

    def system(self) -> Mapping[str, Any]:
        """See ``healthd.core.node.Nvml.system``; ``excluded_count`` is None where the driver does not report it."""
        answer: Mapping[str, Any] = self._probe.request("system", {}, deadline_s=self._deadline_s)
        return answer

    def state(self) -> ProbeState:
        return self._probe.state()

    def pause(self, seconds: float, reason: str) -> None:
        """Refuse requests for a while: after XID 119, 120 or 79 NVML is likely to hang."""
        self._probe.pause(seconds, reason)

    def resume(self, reason: str) -> None:
        """Accept requests again: the cause of the pause with this reason is over."""
        self._probe.resume(reason)

    def begin(self) -> None:
        """Start the worker, and with it NVML, ahead of the first request."""
        self._probe.begin()

    def close(self) -> None:
        """End the worker and release the driver. The next request starts a new one: pause first to prevent that."""
        self._probe.close()

    def end(self) -> None:
        """As :meth:`close`, and no request starts a new one."""
        self._probe.end()

    def worker_pid(self) -> int | None:
        """The process id of the worker, or None while there is none."""
        return self._probe.worker_pid()

    def _noted(self, answers: Sequence[GpuAnswer]) -> tuple[GpuAnswer, ...]:
        """The answers with the earlier refusals in effect. A GPU is reset only while no worker holds it."""
        if (worker := self.worker_pid()) != self._worker:
            self._refusals.forget()
        self._worker = worker
        return tuple(map(self._refusals.noted, answers))

    def _named(self, answers: Sequence[GpuAnswer]) -> tuple[GpuAnswer, ...]:
        """The answers, in which a GPU without a UUID gets the remembered name of its index."""
        present = {answer.uuid for answer in answers if answer.uuid}
        self._known.update({answer.index: (answer.uuid, answer.pci) for answer in answers if answer.uuid})
        return tuple(self._remembered(answer, present) for answer in answers)

    def _remembered(self, answer: GpuAnswer, present: set[str]) -> GpuAnswer:
        known = self._known.get(answer.index)
        if answer.uuid or known is None or known[0] in present:  # that one moved to another index: not this GPU
            return answer
        return replace(answer, uuid=known[0], pci=known[1])


def _answer(raw: Mapping[str, Any]) -> GpuAnswer:
    failures = {key: _failure(pair) for key, pair in raw["failures"].items()}
    return GpuAnswer(
        index=raw["index"],
        uuid=raw["uuid"],
        pci=None if raw["pci"] is None else _pci(raw["pci"]),
        failure=None if raw["failure"] is None else _failure(raw["failure"]),
        values={**raw["values"], **failures},
    )


def _failure(pair: Sequence[Any]) -> NvmlFailure:
    code, name = pair
    return NvmlFailure(code=code, name=name)


def _pci(text: str) -> str:
    try:
        return pci_address(text)
    except ValueError as error:
        raise SourceUnreadable(f"NVML: PCI bus id {text!r}: expected a form such as 00000000:53:00.0") from error
