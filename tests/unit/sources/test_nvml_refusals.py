"""What a GPU refused for good is remembered until it answers, whichever call met it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from healthd.checklib.nvml_codes import NvmlReturn
from healthd.core.check import discover
from healthd.core.node import GpuAnswer, NvmlFailure
from healthd.sources.refusals import KEPT_S, Refusals
from healthd.testing import GPU_IS_LOST, RESET_REQUIRED, UNKNOWN, failed_gpu, refusal

CALLS = ("nvmlDeviceGetName", "nvmlDeviceGetRemappedRows", "field:230")


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def answered(**values: object) -> GpuAnswer:
    return GpuAnswer(index=0, uuid="GPU-0", pci="0000:53:00", values=values)


def stands(answer: GpuAnswer) -> tuple[str, int] | None:
    return None if answer.refused is None else (answer.refused.call, int(answer.refused.failure.code))


def test_a_refusal_stands_until_that_call_is_answered() -> None:
    """Other calls that are answered prove nothing, also those that were answered before."""
    refusals = Refusals(Clock())
    assert stands(refusals.noted(answered(rows=RESET_REQUIRED))) == ("rows", 16)
    assert stands(refusals.noted(answered(name="H100"))) == ("rows", 16)
    assert stands(refusals.noted(answered(rows=[0, 0, 0, 0]))) is None
    assert stands(refusals.noted(answered(name="H100"))) is None


def test_one_call_that_is_answered_again_is_evidence_of_a_reset() -> None:
    """After a reset no refusal of before stands, and what is refused again does."""
    refusals = Refusals(Clock())
    refusals.noted(answered(rows=RESET_REQUIRED, ecc=RESET_REQUIRED, name=RESET_REQUIRED))
    assert stands(refusals.noted(answered(rows=RESET_REQUIRED, name="H100"))) == ("rows", 16)
    assert stands(refusals.noted(answered(rows=[0]))) is None


def test_the_worse_one_is_told() -> None:
    """A GPU that is lost outweighs what its calls said before, and once its handle is there it is back as a whole."""
    refusals = Refusals(Clock())
    refusals.noted(answered(rows=RESET_REQUIRED))
    lost = GpuAnswer(index=0, uuid="GPU-0", pci=None, failure=GPU_IS_LOST, values={"name": GPU_IS_LOST})
    assert stands(refusals.noted(lost)) == ("its handle", 15)
    assert stands(refusals.noted(answered(name="H100"))) is None


def test_other_codes_are_no_such_refusal() -> None:
    """Unknown Error, or a call that is not supported, is the business of the check that asked."""
    refusals = Refusals(Clock())
    assert stands(refusals.noted(answered(rows=UNKNOWN, ecc=refusal(NvmlReturn.NOT_SUPPORTED)))) is None
    assert stands(refusals.noted(failed_gpu(0, UNKNOWN))) is None


def test_a_refusal_that_nobody_asks_about_again_expires() -> None:
    """A call of a check that was switched off, or of one question only, holds nothing open for ever."""
    clock = Clock()
    refusals = Refusals(clock)
    refusals.noted(answered(rows=RESET_REQUIRED))
    clock.now_s = KEPT_S
    assert stands(refusals.noted(answered(name="H100"))) == ("rows", 16)
    clock.now_s = KEPT_S + 1
    assert stands(refusals.noted(answered(name="H100"))) is None


def test_a_refusal_outlasts_the_rarest_check() -> None:
    """A call that only one check makes is asked again before its refusal expires: else the GPU would be well until
    then, and its node back in service. gpu.inforom asks once an hour."""
    intervals = [check.interval_s for name, check in discover().items() if name.startswith("gpu.")]
    assert max(intervals) == 3600
    assert max(intervals) * 3 <= KEPT_S


def test_a_new_worker_begins_anew() -> None:
    """A GPU is reset while no worker holds it."""
    refusals = Refusals(Clock())
    refusals.noted(answered(rows=RESET_REQUIRED))
    refusals.forget()
    assert stands(refusals.noted(answered(name="H100"))) is None


VALUES = st.sampled_from([1, RESET_REQUIRED, UNKNOWN])
ANSWERS = st.lists(st.dictionaries(st.sampled_from(CALLS), VALUES), max_size=12)


@given(ANSWERS)
def test_what_stands_was_refused_and_never_answered_since(answers: list[dict[str, int | NvmlFailure]]) -> None:
    """Whatever the order: the call that is told met its refusal after its last answer; where none is told, every call
    that was refused was answered since, or another was that had been refused."""
    refusals, last = Refusals(Clock()), dict[str, int | NvmlFailure]()
    for values in answers:
        last.update(values)
        told = stands(refusals.noted(answered(**values)))
        if told is not None:
            assert last[told[0]] == RESET_REQUIRED
        if RESET_REQUIRED in values.values():
            assert told is not None
