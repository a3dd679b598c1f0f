"""A case of the fault matrix: what happens to a node, and the one diagnosis that must come of it.

Plain values and how they are played; what is asserted of them is in ``test_matrix``, what is printed of them in
docs/generate.py. Nothing here needs pytest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from healthd.core.model import Status
from tests.faults.rig import LOOKING, Rig, Seen, Workshop


class Made(StrEnum):
    """What stands in for the fault."""

    NVML = "simulated NVML library"
    TREE = "constructed tree"
    LINE = "kernel line, published"
    BUILT_LINE = "kernel line, built in its source's form"
    TOOL = "constructed answer of a tool"
    FAKE = "constructed answer of a source"
    KMSG = "/dev/kmsg"
    FUSE = "FUSE mount"
    EXT4 = "loop-mounted ext4"
    TMPFS = "tmpfs"
    NAMESPACE = "network namespace"


class Case(Struct, frozen=True, kw_only=True):
    """One distinguishable state of one check.

    ``arrange`` changes a node that is well; where a fault takes its time it is a generator that changes, and yields the
    seconds until the next look. ``lasts_s``: for how long the node is then looked at, each ``every_s``.
    ``diagnosis``: ``code@component severity remedy``, or "" for a state that is no fault; GPUs by their index.
    ``symptoms``: findings beside its own that the diagnosis must hold. ``status`` is that of the check where it finds
    nothing. ``unknown``: every check that can then not tell.
    """

    check: str
    state: str
    made: Made
    arrange: Callable[[Rig], Iterator[float] | None]
    diagnosis: str = ""
    symptoms: tuple[str, ...] = ()
    status: Status = Status.OK
    unknown: frozenset[str] = frozenset()
    instance_type: str = "p5.48xlarge"
    settings: Mapping[str, Any] = field(default_factory=dict)
    lasts_s: float = 0.0
    every_s: float = 60.0

    @property
    def name(self) -> str:
        """How the case is called in a test's id."""
        return f"{self.check}: {self.state}"

    @property
    def findings(self) -> frozenset[str]:
        """Every finding that must be open at the end, as ``code@component``."""
        own = {self.diagnosis.split(" ")[0]} if self.diagnosis else set[str]()
        return frozenset(own | set(self.symptoms))

    @property
    def codes(self) -> frozenset[str]:
        """The codes of those findings."""
        return frozenset(finding.partition("@")[0] for finding in self.findings)


def play(case: Case, shop: Workshop) -> Seen:
    """Let it happen, and look as often as it takes."""
    rig = shop.node(case.instance_type)
    rig.only_says = case.made in (Made.LINE, Made.BUILT_LINE)
    for check, settings in case.settings.items():
        rig.set(check, settings)
    with rig.cleanup:
        for seconds in case.arrange(rig) or ():
            rig.look()
            rig.wait(seconds)
        rig.look()
        waited = 0.0
        while waited < case.lasts_s:
            rig.wait(case.every_s)
            waited += case.every_s
            rig.look()
        if case.check not in LOOKING:
            rig.test(case.check)
        return rig.seen()
