"""The judgement-free part of the NVML worker, against a library written by hand."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healthd.checklib.nvml_codes import NvmlReturn, field_key, return_name
from healthd.core.errors import SourceMissing, SourceUnreadable
from healthd.probe import nvml_pynvml
from healthd.probe.nvml_library import NvmlError
from healthd.probe.nvml_ops import NvmlFamily, parse_call

pynvml: Any = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")


class Library:
    """Two GPUs; ``answers`` maps (index, name) to a value or an error, and every step is written to ``log``."""

    def __init__(self, answers: Mapping[tuple[Any, str], Any] | None = None) -> None:
        self.answers = dict(answers or {})
        self.log: list[str] = []

    def _answer(self, index: Any, name: str, default: Any) -> Any:
        self.log.append(name if index is None else f"{name} {index}")
        answer = self.answers.get((index, name), default)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def initialise(self) -> None:
        self._answer(None, "init", None)

    def shutdown(self) -> None:
        self._answer(None, "shutdown", None)

    def count(self) -> int:
        return int(self._answer(None, "count", 2))

    def excluded_count(self) -> int:
        return int(self._answer(None, "excluded", 0))

    def handle(self, index: int) -> int:
        return int(self._answer(index, "handle", index))

    def identity(self, handle: int) -> tuple[str, str]:
        answer: tuple[str, str] = self._answer(handle, "identity", (f"GPU-{handle}", f"00000000:{handle:02X}:00.0"))
        return answer

    def call(self, handle: Any, name: str, arguments: Sequence[int]) -> Any:
        return self._answer(handle, name, list(arguments))

    def fields(self, handle: int, wanted: Sequence[tuple[int, int]]) -> list[int | float | NvmlError]:
        answer: list[int | float | NvmlError] = self._answer(handle, "fields", [0] * len(wanted))
        return answer


def ask(family: NvmlFamily, *calls: str, fields: Sequence[tuple[int, int]] = ()) -> list[dict[str, Any]]:
    answer: list[dict[str, Any]] = family.answer("ask", {"calls": calls, "fields": fields})
    return answer


def test_initialised_once_for_many_questions() -> None:
    """nvmlInit belongs to the process, not to the question."""
    library = Library()
    family = NvmlFamily(library)
    family.warm_up()
    ask(family, "nvmlDeviceGetName")
    ask(family, "nvmlDeviceGetName")
    assert library.log.count("init") == 1


def test_gpus_are_initialised_before_the_first_question() -> None:
    """nvmlInit initialises none: the first handle of each does. One that is lost is passed over."""
    library = Library({(0, "handle"): NvmlError(15)})
    family = NvmlFamily(library)
    family.warm_up()
    assert library.log == ["init", "count", "handle 0", "handle 1"]
    assert [each["failure"] for each in ask(family)] == [[15, "GPU_IS_LOST"], None]


def test_a_gpu_lost_half_way_is_not_asked_again() -> None:
    """Each call to a dying GPU may block for seconds: after GPU_IS_LOST the rest of its answers are that failure."""
    library = Library({(0, "nvmlDeviceGetB"): NvmlError(15)})
    answers = ask(NvmlFamily(library), "nvmlDeviceGetA", "nvmlDeviceGetB", "nvmlDeviceGetC", fields=[(230, 0)])
    assert answers[0]["failure"] == [15, "GPU_IS_LOST"]
    assert answers[0]["values"] == {"nvmlDeviceGetA": []}
    assert set(answers[0]["failures"]) == {"nvmlDeviceGetB", "nvmlDeviceGetC", "field:230"}
    assert "nvmlDeviceGetC 0" not in library.log
    assert set(answers[1]["values"]) == {"nvmlDeviceGetA", "nvmlDeviceGetB", "nvmlDeviceGetC", "field:230"}


@pytest.mark.parametrize("code", [1, 15, 999])
def test_stale_handles_mean_a_new_start_before_the_next_question(code: int) -> None:
    """After an error that voids handles, nvmlShutdown and nvmlInit come first; a refused shutdown does not matter."""
    library = Library({(0, "nvmlDeviceGetA"): NvmlError(code), (None, "shutdown"): NvmlError(1)})
    family = NvmlFamily(library)
    ask(family, "nvmlDeviceGetA")
    library.answers.pop((0, "nvmlDeviceGetA"))
    library.log.clear()
    ask(family)
    ask(family)
    assert library.log[:2] == ["shutdown", "init"]
    assert library.log.count("init") == 1
    assert not family.worn


@pytest.mark.parametrize("code", [9, 18])
@pytest.mark.parametrize("where", [(None, "init"), (None, "count"), (1, "nvmlDeviceGetA")])
def test_a_driver_that_went_away_wears_the_process_out(code: int, where: tuple[Any, str]) -> None:
    """A process keeps the library it has mapped; after a driver change only a fresh one is right."""
    family = NvmlFamily(Library({where: NvmlError(code)}))
    if where[0] is None:
        with pytest.raises(SourceUnreadable, match=return_name(code)):
            ask(family, "nvmlDeviceGetA")
    else:
        ask(family, "nvmlDeviceGetA")
    assert family.worn


def test_a_failed_warm_up_leaves_the_report_to_the_question() -> None:
    """The reason is told to whoever asks, and the worker does not leave before it has told."""
    family = NvmlFamily(Library({(None, "init"): NvmlError(9)}))
    family.warm_up()
    assert not family.worn
    with pytest.raises(SourceUnreadable, match="DRIVER_NOT_LOADED"):
        ask(family)
    assert family.worn


def test_a_missing_library_is_missing() -> None:
    """LIBRARY_NOT_FOUND is the one refusal that means: no such thing here."""
    with pytest.raises(SourceMissing, match="comes with the NVIDIA driver"):
        ask(NvmlFamily(Library({(None, "init"): NvmlError(12)})))


@pytest.mark.parametrize(("refusal", "told"), [(3, None), (13, None)])
def test_an_excluded_count_that_is_not_supported_is_none(refusal: int, told: None) -> None:
    """Only "not supported" is None; zero is an answer, and any other refusal is an error."""
    assert NvmlFamily(Library({(None, "excluded"): NvmlError(refusal)})).answer("system", {})["excluded_count"] is told
    with pytest.raises(SourceUnreadable, match="nvmlGetExcludedDeviceCount answered UNKNOWN"):
        NvmlFamily(Library({(None, "excluded"): NvmlError(999)})).answer("system", {})


def test_fields_that_are_refused_as_a_whole_are_all_failures() -> None:
    """An old driver without nvmlDeviceGetFieldValues refuses the call: no field is 0 for that."""
    answer = ask(NvmlFamily(Library({(0, "fields"): NvmlError(13)})), fields=[(230, 0), (208, 3)])[0]
    assert answer["values"] == {}
    assert answer["failures"] == {"field:230": [13, "FUNCTION_NOT_FOUND"], "field:208/3": [13, "FUNCTION_NOT_FOUND"]}


def test_an_unknown_question_is_unreadable() -> None:
    """A parent and a worker of different versions tell each other so."""
    with pytest.raises(SourceUnreadable, match="the NVML worker got 'dance'"):
        NvmlFamily(Library()).answer("dance", {})


@given(st.from_regex(r"nvmlDeviceGet[A-G][A-Za-z]{0,8}", fullmatch=True), st.lists(st.integers(-5, 99), max_size=4))
def test_a_call_is_what_it_was_written_as(name: str, arguments: list[int]) -> None:
    """Any reading call with any integers is taken apart exactly, and named in the answer as it was written."""
    if name.startswith(("nvmlDeviceGetCount", "nvmlDeviceGetHandle")):
        return
    text = f"{name}({', '.join(map(str, arguments))})"
    assert parse_call(text) == (text, name, tuple(arguments))
    assert parse_call(name) == (name, name, ())


@pytest.mark.parametrize(
    "text",
    ["nvmlDeviceSetPowerManagementLimit(1)", "nvmlDeviceGetHandleByIndex(0)", "nvmlDeviceGetCount", "nvmlShutdown",
     "nvmlDeviceGetX(h)", "nvmlDeviceGetX(1", "nvmlDeviceGetX(1,)", "nvmlDeviceGetX; rm", "", "__import__"],
)  # fmt: skip
def test_nothing_else_is_a_call(text: str) -> None:
    """What could change the GPU, hand out a handle or run code is refused."""
    with pytest.raises(SourceUnreadable, match="expected nvmlDeviceGet"):
        parse_call(text)


def test_field_keys() -> None:
    """Scope 0 is the device itself and is not written."""
    assert (field_key(230, 0), field_key(208, 3)) == ("field:230", "field:208/3")


def test_return_codes_carry_pynvml_s_own_names() -> None:
    """The table of return codes is pynvml's, complete; a code from the future is named by its number."""
    theirs = {
        value: name.removeprefix("NVML_ERROR_")
        for name, value in vars(pynvml).items()
        if name.startswith("NVML_ERROR_")
    }
    assert {each.value: each.name for each in NvmlReturn} == {0: "SUCCESS", **theirs}
    assert return_name(4711) == "CODE_4711"


@pytest.mark.parametrize("call", nvml_pynvml._FILLS)
def test_struct_calls_of_the_table_exist(call: str) -> None:
    """Every row of the by-reference table names a call and structs that this pynvml has."""
    assert callable(getattr(pynvml, call))
    for struct in nvml_pynvml._FILLS[call]:
        assert issubclass(getattr(pynvml, struct), ctypes.Structure)


class Inner(ctypes.Structure):
    _fields_ = [("numbers", ctypes.c_uint8 * 3)]


class Outer(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint), ("inner", Inner), ("name", ctypes.c_char * 8), ("ratio", ctypes.c_double)]


def test_results_become_plain_data() -> None:
    """Structs, arrays, bytes and friendly objects become dicts, lists and text; a struct's version is dropped."""
    value = Outer(1, Inner((ctypes.c_uint8 * 3)(1, 2, 3)), b"abc", 0.5)
    assert nvml_pynvml.plain(value) == {"inner": {"numbers": [1, 2, 3]}, "name": "abc", "ratio": 0.5}
    assert nvml_pynvml.plain((b"\xff", None, {"a": (1,)})) == ["\ufffd", None, {"a": [1]}]
    assert nvml_pynvml.plain(pynvml.nvmlFriendlyObject({"used": 1})) == {"used": 1}


def test_a_result_that_is_no_data_is_unreadable() -> None:
    """Something that cannot be turned into data is said to be so, by its type."""
    with pytest.raises(SourceUnreadable, match="answered with a object"):
        nvml_pynvml.plain(object())


def test_a_field_of_an_unknown_type_is_a_failure() -> None:
    """A value whose type this version does not know is not read at random."""
    field = pynvml.c_nvmlFieldValue_t()
    field.valueType = 42
    result = nvml_pynvml._field(field)
    assert isinstance(result, NvmlError)
    assert result.code == 999
