"""The health of UltraServers beside the syncs: in the metrics and the log, and nothing that is not known now."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import structlog
from msgspec.structs import replace
from prometheus_client.core import Metric

from healthd.api.controller_metrics import ControllerPage
from healthd.api.controller_stats import ControllerStats
from healthd.controller.ultraservers import EVERY_S, UltraServerWatch
from healthd.core.errors import BackendDenied, BackendUnknown
from healthd.core.model import Mode
from healthd.remediation.provisioners.ultraservers import UltraServer, UltraServerHealth, read_ultraservers

SOUND = UltraServer(
    id="us-1", health=UltraServerHealth.OK, instances=18, in_use=16, available=1, unhealthy=0, spares=1, configured=1
)
WORN = replace(SOUND, id="us-2", health=UltraServerHealth.IMPAIRED, unhealthy=2, spares=0)


class Watched:
    """A watch with a clock and an answer of the test."""

    def __init__(self) -> None:
        self.now_s, self.asked = 0.0, 0
        self.answer: Callable[[], Sequence[UltraServer]] = lambda: (SOUND, WORN)
        self.lines = structlog.testing.CapturingLogger()
        log = structlog.wrap_logger(self.lines, processors=[], wrapper_class=structlog.make_filtering_bound_logger(0))
        self.stats = ControllerStats(orchestrator="slurm", provisioner="hyperpod", mode=Mode.OBSERVE)
        self.watch = UltraServerWatch(self._ask, self.stats, log, clock=lambda: self.now_s)

    def _ask(self) -> Sequence[UltraServer]:
        self.asked += 1
        return self.answer()

    def later(self) -> list[tuple[str, str]]:
        """The lines of the next time that it is due: method and id, or message."""
        self.now_s += EVERY_S
        self.lines.calls.clear()
        self.watch()
        return [(each.method_name, each.kwargs.get("id") or each.kwargs["message"]) for each in self.lines.calls]

    def values(self, name: str) -> dict[str, float]:
        """The samples of a metric, by their one label."""
        found: Metric = next(each for each in ControllerPage(self.stats).families() if each.name == name)
        return {next(iter(each.labels.values())): each.value for each in found.samples}


@pytest.fixture
def watched() -> Watched:
    made = Watched()
    made.watch()
    return made


def test_health_use_and_spares_are_metrics(watched: Watched) -> None:
    """Of those that SageMaker describes now."""
    assert watched.values("healthd_controller_ultraservers") == {"ok": 1, "impaired": 1, "insufficient_data": 0}
    assert watched.values("healthd_controller_ultraserver_instances") == {
        "in_use": 32,
        "available": 2,
        "unhealthy": 2,
        "spare": 1,
    }
    watched.watch.close()
    assert watched.values("healthd_controller_ultraservers") == {}


def test_a_change_is_logged_once_and_an_impaired_one_as_an_error(watched: Watched) -> None:
    """One that is gone too; nothing is asked before it is due."""
    first = [(each.method_name, each.kwargs["id"]) for each in watched.lines.calls]
    assert first == [("info", "us-1"), ("error", "us-2")]
    watched.watch()
    assert watched.asked == 1
    assert watched.later() == []
    watched.answer = lambda: (replace(SOUND, in_use=17),)
    assert watched.later() == [("info", "us-1"), ("info", "us-2")]


def test_without_an_answer_nothing_is_known(watched: Watched) -> None:
    """The metrics have no sample, the reason is logged once, and the next answer is compared with the last one."""

    def refuse() -> Sequence[UltraServer]:
        raise BackendDenied("the role needs the IAM action sagemaker:ListTrainingPlans")

    watched.answer = refuse
    assert watched.later() == [("error", "the role needs the IAM action sagemaker:ListTrainingPlans")]
    assert watched.values("healthd_controller_ultraservers") == {}
    assert watched.later() == []
    watched.answer = lambda: (SOUND, WORN)
    assert watched.later() == []
    assert watched.values("healthd_controller_ultraservers")["impaired"] == 1


def test_a_health_that_is_not_known_here_is_no_health() -> None:
    """A new word of SageMaker's is an error, not a guess."""

    class Asked:
        def call(self, service: str, operation: str, **_: object) -> dict[str, object]:
            if operation == "ListTrainingPlans":
                capacity = {"ReservedCapacityArn": "a", "ReservedCapacityType": "UltraServer", "Status": "Active"}
                return {"TrainingPlanSummaries": [{"ReservedCapacitySummaries": [capacity]}]}
            return {"UltraServers": [{"UltraServerId": "us-1", "HealthStatus": "Fine", "TotalInstanceCount": 18}]}

    with pytest.raises(BackendUnknown, match="us-1: HealthStatus 'Fine' is not known"):
        read_ultraservers(Asked())  # type: ignore[arg-type]  # its one method
