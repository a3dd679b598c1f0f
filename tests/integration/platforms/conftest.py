"""moto for the platforms' scenarios; see platform_lab.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.aws.moto_server import moto_serving
from tests.integration.slurm.slurm_lab import why_not


@pytest.fixture(scope="session")
def platforms_moto() -> Iterator[tuple[str, int]]:
    """A server of its own: the one of tests/integration/aws is emptied before each of its tests."""
    if reason := why_not():
        pytest.skip(reason)
    with moto_serving() as address:
        yield address
