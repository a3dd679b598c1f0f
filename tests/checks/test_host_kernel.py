"""host.kernel: the kernel's own memory of its failures. Inputs are constructed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import pytest

from healthd.checks.host_kernel import host_kernel
from healthd.core.check import NoSettings
from healthd.core.errors import SourceError, SourceMissing, SourceTimeout, SourceUnreadable
from healthd.core.model import Result, Severity, Status
from healthd.testing import Entry, FakeNode
from healthd.testing import codes as codes_of

NVIDIA_MODULES = str((1 << 0) | (1 << 12) | (1 << 13))  # proprietary, out-of-tree, unsigned


def run(taint: str | SourceError = NVIDIA_MODULES, *, sys: Mapping[str, Entry] | None = None) -> Result:
    tree: Mapping[str, Entry] = {"fs/pstore/": ""} if sys is None else sys
    return host_kernel(FakeNode(proc={"sys/kernel/tainted": taint}, sys=tree), NoSettings())


codes = partial(codes_of, family="host.kernel.")


def test_a_gpu_node_is_always_tainted() -> None:
    """The bits that NVIDIA's modules set are no finding."""
    assert run().status is Status.OK


@pytest.mark.parametrize(
    ("bit", "code"), [(4, "machine_check"), (5, "bad_page"), (7, "oops"), (14, "soft_lockup"), (9, None), (11, None)]
)
def test_each_taint_bit(bit: int, code: str | None) -> None:
    """A failure of the kernel is known by its bit, beside the bits of modules; a mere warning of the kernel is none."""
    result = run(str(int(NVIDIA_MODULES) | 1 << bit))
    assert codes(result) == ([code] if code else [])
    assert all(finding.severity is Severity.WARNING for finding in result.findings)


def test_a_panic_is_found_after_it() -> None:
    """A record in pstore is an earlier boot's panic; other things in pstore are not."""
    assert codes(run(sys={"fs/pstore/dmesg-efi-1": "", "fs/pstore/console-ramoops-0": ""})) == ["panic_recorded"]
    assert codes(run(sys={"fs/pstore/console-ramoops-0": ""})) == []
    assert run(sys={}).status is Status.OK


@pytest.mark.parametrize("error", [SourceMissing("x"), SourceTimeout("x"), SourceUnreadable("x")])
def test_what_cannot_be_read_is_unknown(error: SourceError) -> None:
    """Without the taint word, or with a pstore that cannot be listed, nothing is said."""
    with pytest.raises(type(error)):
        run(error)
    with pytest.raises(SourceUnreadable):
        run(sys={"fs/pstore": SourceUnreadable("EIO")})
    with pytest.raises(SourceUnreadable, match="expected a whole number"):
        run("G")
