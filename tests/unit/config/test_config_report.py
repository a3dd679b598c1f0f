"""Configuration as text: marks on the user's file, values with their origin, documented fields."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import fields

from healthd.config.key_lines import key_lines, line_of
from healthd.config.load import examine, load
from healthd.config.report import annotated, as_data, documented_fields, shown
from healthd.config.schema import config as schema
from healthd.config.schema.provisioner import ProvisionerSection
from healthd.config.values import converted, expected, from_text, is_section, shortened, toml_value


class XidSettings(Struct, frozen=True, kw_only=True):
    """As a check declares them."""

    ignore: frozenset[int] = frozenset({13, 31})
    """Codes."""


CHECKS = {"gpu.xid": XidSettings}


# ---------------------------------------------------------------------------------------------------------------------
# marks


def test_a_mark_stands_under_the_wrong_line(tmp_path: Path) -> None:
    """The report shows the user's own lines, a mark under each wrong one, and the sentence below."""
    path = tmp_path / "config.toml"
    path.write_text('# mine\n[remediation]\n  mode = "reapir"\n\n\n\n[daemon]\nworkers = 0\n')
    examined = examine(path, checks={}, environ={})
    assert annotated(examined.problems, examined.texts) == (
        f"{path}: 2 problems\n"
        "   2 | [remediation]\n"
        '   3 |   mode = "reapir"\n'
        "     |   ^^^^^^^^^^^^^^^ 1\n"
        "   4 |\n"
        "   …\n"
        "   7 | [daemon]\n"
        "   8 | workers = 0\n"
        "     | ^^^^^^^^^^^ 2\n"
        "   9 |\n"
        '  1: line 3: remediation.mode: expected one of "observe", "quarantine", "approve", "repair"; '
        'did you mean "repair"?\n'
        "  2: line 8: daemon.workers: expected a whole number from 1 to 64; "
        "correct the value, or leave it out for the default\n"
    )


def test_a_problem_without_a_file_is_told_in_words(tmp_path: Path) -> None:
    """A variable, or a file that could not be read, has no line to mark and is told all the same."""
    examined = examine(tmp_path / "gone.toml", checks={}, environ={"HEALTHD_DAEMON_WORKERS": "x"})
    report = annotated(examined.problems, examined.texts)
    assert "gone.toml: 1 problem\n  1: cannot be read: No such file" in report
    assert "environment HEALTHD_DAEMON_WORKERS: 1 problem\n  2: daemon.workers: expected" in report


def test_marks_keep_a_terminal_whole(tmp_path: Path) -> None:
    """Control characters of a broken file never reach the terminal, and a long line is cut."""
    path = tmp_path / "config.toml"
    path.write_text("[node]\nname = \x1b[31m" + "x" * 900 + "\n")
    examined = examine(path, checks={}, environ={})
    report = annotated(examined.problems, examined.texts)
    assert "\x1b" not in report
    assert max(len(line) for line in report.splitlines()) < 200


def test_nothing_wrong_gives_no_report() -> None:
    """Without problems there is nothing to print."""
    assert annotated((), {}) == ""


# ---------------------------------------------------------------------------------------------------------------------
# values


def test_what_is_shown_can_be_loaded_again(tmp_path: Path) -> None:
    """`config show` prints a file that gives the same configuration."""
    first = load(None, checks=CHECKS, environ={"HEALTHD_DAEMON_WORKERS": "9"}, default_path=tmp_path / "none.toml")
    path = tmp_path / "again.toml"
    path.write_text(shown(first))
    assert load(path, checks=CHECKS, environ={}).config == first.config


def test_a_long_list_that_is_shown_can_be_loaded_again(tmp_path: Path) -> None:
    """healthd reads no line of more than 1,024 characters: a list has a line for each element."""
    about = f'reason = "{"r" * 900}"\nsource = "{"s" * 900}"'
    rules = "".join(f'[[policy.rule]]\nname = "a{number}"\ncodes = ["gpu.xid.79"]\n{about}\n' for number in range(3))
    services = "".join(f'"unit-{number:03}",\n' for number in range(100))
    ignored = ",\n".join(map(str, range(100, 400)))
    path = tmp_path / "config.toml"
    reset = f"[remediation]\nreset_services = [{services}]\n"
    path.write_text(f'{rules}{reset}[checks."gpu.xid"]\nignore = [{ignored}]\n')
    first = load(path, checks=CHECKS, environ={})
    path.write_text(shown(first))
    assert load(path, checks=CHECKS, environ={}).config == first.config


def test_every_shown_value_says_where_it_comes_from(tmp_path: Path) -> None:
    """Each line of `config show` ends in default, a file with its line, or a variable."""
    path = tmp_path / "config.toml"
    path.write_text('[checks."gpu.xid"]\nignore = [7]\n')
    result = load(path, checks=CHECKS, environ={"HEALTHD_DAEMON_WORKERS": "9"})
    lines = shown(result).splitlines()
    assert f"{'ignore = [7]':<44} # {path}:2" in lines
    assert f"{'workers = 9':<44} # environment HEALTHD_DAEMON_WORKERS" in lines
    assert all(" # " in line for line in lines if line and not line.startswith("["))
    assert as_data(result)['checks."gpu.xid".ignore'] == {"value": frozenset({7}), "origin": f"{path}:2"}
    origins = {"default", f"{path}:2", "environment HEALTHD_DAEMON_WORKERS"}
    assert {each["origin"] for each in as_data(result).values()} == origins


@given(
    st.recursive(st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=4), max_leaves=12)
)
def test_values_are_written_as_toml(value: object) -> None:
    """Whatever a setting holds, its text is TOML for the same value."""
    assert tomllib.loads(f"value = {toml_value(value)}")["value"] == value


@given(st.text() | st.lists(st.text()) | st.integers() | st.floats())
def test_a_shortened_value_fits_a_line(value: object) -> None:
    """A value in a message is one line of bounded length."""
    text = shortened(value)
    assert len(text) <= 60
    assert "\n" not in text


@given(st.text())
def test_a_text_from_the_environment_is_taken_as_it_stands(text: str) -> None:
    """No quoting is needed or undone for a text setting."""
    assert from_text(text, str) == text


# ---------------------------------------------------------------------------------------------------------------------
# lines

KEYS = st.text(min_size=1, max_size=8)
VALUES = st.sampled_from(
    ["1", '"a # b"', "'[x]'", "[\n1, # [\n2,\n]", '"""\nx = 1\n"""', "'''\n[y]\nz = 2'''", "{ q = 1 }"]
)


@given(st.lists(st.tuples(KEYS, VALUES), unique_by=lambda pair: pair[0], max_size=6), st.integers(0, 3))
def test_the_line_of_a_key_is_the_line_it_was_written_on(pairs: list[tuple[str, str]], blank_lines: int) -> None:
    """Strings, lists and comments that look like keys or headers mislead nobody."""
    text, expected = "\n" * blank_lines + "[table]\n", {}
    for name, value in pairs:
        expected["table", name] = text.count("\n") + 1
        text += f"{toml_value(name)} = {value}  # note\n"
    tomllib.loads(text)
    lines = key_lines(text)
    assert {key: line for key, line in lines.items() if len(key) == 2} == expected


def test_a_key_in_an_inline_table_has_the_line_around_it() -> None:
    """What has no line of its own is found at the closest key around it; what is nowhere is at 0."""
    lines = key_lines("[daemon]\n\na.b = { c = 1 }\n")
    assert line_of(lines, ("daemon", "a", "b", "c")) == 3
    assert line_of(lines, ("daemon",)) == 1
    assert line_of(lines, ("node", "name")) == 0


# ---------------------------------------------------------------------------------------------------------------------
# documentation

SECTIONS = [cls for cls in vars(schema).values() if is_section(cls) and cls is not Struct]


@pytest.mark.parametrize("cls", SECTIONS, ids=lambda cls: cls.__name__)
def test_every_setting_is_documented(cls: type) -> None:
    """Each field has a docstring under it and a type that can be said in words."""
    documented = documented_fields(cls)
    assert [each.name for each in documented] == [item.name for item in fields(cls)]
    assert all(each.doc.endswith((".", "…")) and each.type for each in documented)


def test_a_documented_field_shows_type_and_default() -> None:
    """The reference page needs name, type in words, default as TOML, and the docstring on one line."""
    kind = documented_fields(ProvisionerSection)[0]
    assert (kind.name, kind.default) == ("kind", '"none"')
    assert kind.type.startswith('one of "none", "local", "auto", "hyperpod"')
    assert kind.doc.startswith("``none``: healthd cannot repair, and pages for a fault that needs it.")


def test_a_setting_without_a_docstring_is_refused() -> None:
    """A field that nobody described cannot be documented, and says which it is."""

    class Bare(Struct, frozen=True, kw_only=True):
        width: int = 3

    with pytest.raises(ValueError, match="Bare.width has no docstring under it"):
        documented_fields(Bare)


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (float, "a number"),
        (Mapping[str, int], "a table whose values are a whole number"),
        (
            Mapping[Literal["a", "b"], bool],
            'a table whose keys are one of "a", "b", and whose values are true or false',
        ),
        (tuple[float, ...], "a list, each element a number"),
        (Path, "a value of type Path"),
        (int | None, "a whole number"),
    ],
)
def test_a_type_is_said_in_words(hint: object, words: str) -> None:
    """Types that only a check's settings use are described too."""
    assert expected(hint) == words


def test_nan_is_no_number_to_set() -> None:
    """A limit of nan would compare false with everything, so it is refused where no bound refuses it."""
    with pytest.raises(ValueError, match="nan cannot be compared"):
        converted(float("nan"), float)
