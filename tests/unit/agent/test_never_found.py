"""A finding that counts check runs, and an interval that leaves too few of them."""

from __future__ import annotations

from msgspec.structs import replace

from healthd.agent.agent import never_found
from healthd.config.schema.config import CheckConfig
from healthd.core.check import discover
from healthd.core.model import Repeats


def configured(**intervals_s: float) -> tuple[str, ...]:
    checks = discover()
    settings = {name: CheckConfig(settings=check.settings()) for name, check in checks.items()}
    for word, interval_s in intervals_s.items():
        name = word.replace("_", ".", 1)
        settings[name] = replace(settings[name], interval_s=interval_s)
    return never_found(checks, settings)


def test_a_check_that_runs_too_rarely_says_what_it_never_finds() -> None:
    """Sixteen runs in half an hour, six in ten minutes: a node that is asked less often has a notice, not silence."""
    assert configured() == configured(gpu_nvlink=109.0, gpu_throttle=109.0) == ()
    (notice,) = configured(gpu_nvlink=300.0)
    assert notice == (
        "gpu.nvlink.growing is never found: it takes 16 runs of gpu.nvlink within 1800 s, and that runs every 300 s; "
        'set [checks."gpu.nvlink"] interval_s to 109 at most'
    )
    check = discover()["gpu.nvlink"]
    seven = replace(next(each for each in check.codes if each.repeats), repeats=Repeats(times=7, window_s=1800.0))
    own = replace(check, codes=(seven,))
    (notice,) = never_found({"own": own}, {"own": CheckConfig(settings=None, interval_s=273.0)})
    assert notice.endswith("interval_s to 272 at most")  # 272.7: a run of 273 s is one too rare
    assert [each.split()[0] for each in configured(gpu_throttle=110.0)] == ["gpu.throttle.hardware"]
