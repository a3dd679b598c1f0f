"""gdrcopy.copy: what the CPU writes, the GPU has."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from healthd.checks.gdrcopy_copy import GdrcopyCopySettings, gdrcopy_copy
from healthd.core.errors import SourceError, SourceMissing, SourceTimeout
from healthd.core.model import Remedy, Result, Severity, Status
from healthd.core.node import GdrCopy
from healthd.testing import FakeActive, FakeNode, fake_pci, pci_tree

SIZE = 1 << 18
HUNG = SourceTimeout("gdrcopy.py: no end within 60 s, ended: no output")
Answer = Sequence[GdrCopy] | SourceError


def copy(index: int, *, wrong: int = 0, refused: str = "") -> GdrCopy:
    return GdrCopy(index=index, pci=fake_pci(index), size_bytes=SIZE, wrong_bytes=wrong, refused=refused)


GOOD = (copy(0), copy(1))
PIN = (copy(0), copy(1, refused="gdr_pin_buffer returned 12 (Cannot allocate memory)"))
WRONG = (copy(0), copy(1, wrong=7))


class InTurn(FakeActive, kw_only=True):
    """Each run takes the next of its answers."""

    answers: list[Answer]

    def gdr_copies(self, *, size_bytes: int, timeout_s: float) -> tuple[GdrCopy, ...]:
        self.copies = self.answers.pop(0)
        return super().gdr_copies(size_bytes=size_bytes, timeout_s=timeout_s)


def run(*answers: Answer, loaded: bool = True, gpus: int = 2) -> Result:
    tree = pci_tree(gpus=[fake_pci(index) for index in range(gpus)])
    active = InTurn(answers=[*answers])
    result = gdrcopy_copy(
        FakeNode(sys={**tree, "module/gdrdrv/version": "2.5"} if loaded else tree, active=active), GdrcopyCopySettings()
    )
    assert active.answers == []
    return result


def codes(result: Result) -> list[str]:
    assert all((f.severity, f.remedy) == (Severity.WARNING, Remedy.ASK_HUMAN) for f in result.findings)
    return [finding.code for finding in result.findings]


def test_all_good() -> None:
    """One run in which every GPU gives back what was written is ok."""
    result = run(GOOD)
    assert result.status is Status.OK
    assert [(reading.name, reading.value) for reading in result.readings] == [("gdrcopy_good_gpus_count", 2)]


def test_refused_twice() -> None:
    """A GPU that cannot be pinned, twice, is a finding on that GPU, with the call that refused."""
    (finding,) = run(PIN, PIN).findings
    assert finding.code == "gdrcopy.refused"
    assert str(finding.component) == f"gpu:{fake_pci(1)}"
    assert "gdr_pin_buffer" in finding.message


def test_refused_once() -> None:
    """A refusal that does not come again is nothing."""
    assert run(PIN, GOOD).status is Status.OK


@pytest.mark.parametrize("second", [WRONG, GOOD, PIN, HUNG])
def test_wrong_bytes_once_are_enough(second: Answer) -> None:
    """Bytes that came back wrong are found whatever the second run says, once for each GPU."""
    result = run(WRONG, second)
    assert codes(result) == ["gdrcopy.wrong"]
    assert result.findings[0].evidence["value"] == 7


def test_time_outs() -> None:
    """One is forgotten if the second run is good; two are a finding on the driver; after a refusal it is unknown."""
    assert run(HUNG, GOOD).status is Status.OK
    result = run(HUNG, HUNG)
    assert codes(result) == ["gdrcopy.hung"]
    assert str(result.findings[0].component) == "driver:gdrdrv"
    assert run(PIN, HUNG).status is Status.UNKNOWN


def test_a_refusal_after_a_time_out() -> None:
    """Two bad runs of different kinds: the one that answered is believed."""
    assert codes(run(HUNG, PIN)) == ["gdrcopy.refused"]


def test_what_could_not_be_run_is_unknown() -> None:
    """No library and no tool is an error of the source, for the runner to make unknown of."""
    with pytest.raises(SourceMissing):
        run(SourceMissing("install GDRCopy"))


def test_no_gpu_tested_is_unknown() -> None:
    """A run over no GPU proves nothing."""
    assert run(()).status is Status.UNKNOWN


def test_where_there_is_nothing_to_test() -> None:
    """Without a GPU or without gdrdrv the check does not apply and nothing is begun."""
    assert run(gpus=0).status is Status.NOT_APPLICABLE
    assert run(loaded=False).status is Status.NOT_APPLICABLE
