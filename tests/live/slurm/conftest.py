"""Fixtures that hand out a real Slurm cluster; see slurm_lab.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.live.slurm.slurm_lab import SlurmLab, skip_reason


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmLab]:
    """One cluster of eight nodes for the whole session; clean at the start of every test that asks for it."""
    if reason := skip_reason():
        pytest.skip(reason)
    with SlurmLab() as lab:
        yield lab


@pytest.fixture(scope="session")
def slurm_lab_factory() -> Iterator[Callable[..., SlurmLab]]:
    """Start further labs with settings of their own, such as ``slurm_lab_factory(nodes=2, conf={"Prolog": path})``."""
    if reason := skip_reason():
        pytest.skip(reason)
    labs: list[SlurmLab] = []

    def start(**settings: object) -> SlurmLab:
        lab = SlurmLab(**settings)  # type: ignore[arg-type]  # passed through as they are
        labs.append(lab)
        lab.start()
        return lab

    yield start
    for lab in labs:
        lab.stop()


@pytest.fixture(autouse=True)
def _clean_cluster(request: pytest.FixtureRequest) -> None:
    """Whatever the test before did to the shared cluster is undone."""
    if "slurm" in request.fixturenames:
        request.getfixturevalue("slurm").reset()
