"""What real GPUs answer to every question of the checks."""

from __future__ import annotations

from healthd.checklib.gpus import NO_SUCH_FIELD
from healthd.core.node import NvmlFailure
from tests.support.recorded_gpus import Recorded


def test_every_question_is_answered_or_not_supported(record: Recorded) -> None:
    """No question of ours is wrong: a GPU gives a value, or says that it has none."""
    failures = {
        (gpu.index, call): value
        for gpu in record.gpus
        for call, value in gpu.values.items()
        if isinstance(value, NvmlFailure) and value.code not in NO_SUCH_FIELD
    }
    assert failures == {}
