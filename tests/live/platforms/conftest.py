"""moto and a cluster for the platforms' scenarios; see platform_lab.py and side_by_side.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live.aws.aws_forks import AwsForks, aws_forks
from tests.live.aws.moto_server import moto_serving
from tests.live.platforms.side_by_side import Results, collected, lab_for, played
from tests.live.slurm.slurm_lab import skip_reason


@pytest.fixture(scope="session")
def platforms_moto() -> Iterator[tuple[str, int]]:
    """A server of its own: the one of tests/live/aws is emptied before each of its tests."""
    if reason := skip_reason():
        pytest.skip(reason)
    with moto_serving() as address:
        yield address


@pytest.fixture(scope="session")
def platforms_forks() -> Iterator[AwsForks]:
    """The process that forks the daemons' calls to AWS, with boto3 loaded."""
    with aws_forks() as started:
        yield started


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    platforms_moto: tuple[str, int],
    platforms_forks: AwsForks,
) -> Iterator[Results]:
    """All scenarios of this run and module, side by side on one cluster."""
    scenarios = collected(request)
    folder = tmp_path_factory.mktemp("lab")
    with lab_for(folder, platforms_moto, platforms_forks, scenarios) as lab, played(scenarios, lab) as results:
        yield results
