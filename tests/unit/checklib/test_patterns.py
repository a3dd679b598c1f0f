"""Patterns of a site: which are refused because they could stall, and that the others cannot."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healthd.checklib.patterns import SUBJECT_CHARS, safe_pattern


@pytest.mark.parametrize(
    ("pattern", "needle"),
    [
        ("nf_conntrack: table full", "^nf_conntrack: table full"),
        (r"nvme nvme(\d+): I/O (\d+) QID (\d+) timeout", "^nvme nvme"),
        (r".*blocked for more than \d+ seconds", "blocked for more than "),
        (r"(?P<who>\w+): (?:error|fault) reported by (?P<what>.*)", " reported by "),
        (r"[Ee]rror \[0x[0-9a-f]+\] in module", "] in module"),
        (r"a?bcdefg", "bcdefg"),
        (r"caf\xe9 is not plain", " is not plain"),
        (r"(?:x|yz)? then words(?!.*harmless)", " then words"),
        (r"words [^:]*: \S+ \d+ [a-z]{2,5}-end.*", "^words "),
    ],
)
def test_what_is_accepted_holds_fixed_text(pattern: str, needle: str) -> None:
    """An ordinary pattern is accepted; what every match begins with, or holds, is found for the log's reader."""
    assert safe_pattern(pattern).needle == needle


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("(", "not a regular expression"),
        ("x{2,1} words", "not a regular expression"),
        (r"(a+)+ words", "repeats"),
        (r"(a|ab)* words", "repeats"),
        (r"(ab){2,9} words", "repeats"),
        (r"words .*a.*b.*c", "steps"),
        (r"\S*\S*\S*words", "steps"),
        (r"abcd\w*\w*\w+ x*", "steps"),
        (r"abcd\w*\w*\w+:", "steps"),
        (r"NVRM: [^:]*[^:]*[^:]*:x", "steps"),
        (r"abcd(?:\w*|x)\w*\w*!", "steps"),
        (r"abcd(?:x\w*)?\w*\w*!", "steps"),
        ("a?" * 24 + "a" * 24, "steps"),
        (r"(?:a|b|ab)" * 24 + " words", "steps"),
        (r"(\w+) words \1", "not allowed"),
        (r"(?i)words", "fixed text"),
        (r"\d+ \d+", "fixed characters"),
        (r".*", "fixed characters"),
        ("", "fixed characters"),
        ("(?:one|other)", "fixed characters"),
    ],
)
def test_what_is_refused_says_why(pattern: str, says: str) -> None:
    """What could take long on some line, or would have to be tried on every line, is refused with the reason."""
    with pytest.raises(ValueError, match=says):
        safe_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (r"aaaa.*a.*z", "a" * 4096),
        (r"aaaa[a-z]*[a-z]*1", "a" * 4096),
        (r"aaaa\S* \S*x", "aaaa " + "a " * 2048),
        (r"(?:aaaa|aaab)aaaa.*a?.*z", "a" * 4096),
        (r"aaaa\w*\w+ x*", "a" * 4096),
        (r"aaaa[^:]*[^:]*:x", "a" * 4096),
        (r"aaaa(?:\w*|b)\w*!", "a" * 4096),
        (r"aaaa(?=.*.*z)x", "a" * 4096),
    ],
)
def test_the_worst_line_takes_milliseconds(pattern: str, line: str) -> None:
    """The most costly patterns that are allowed, on the lines that hurt them most, come back at once."""
    started = time.process_time()
    assert safe_pattern(pattern).match(line, 0) is None
    assert time.process_time() - started < 0.05


def test_only_the_beginning_of_a_record_is_looked_at() -> None:
    """The subject ends after 512 characters, and starts where the words do."""
    pattern = safe_pattern("words.*end")
    assert pattern.match("words" + "x" * (SUBJECT_CHARS - 8) + "end", 0) is not None
    assert pattern.match("words" + "x" * (SUBJECT_CHARS - 7) + "end", 0) is None
    assert pattern.match("<4>words end", 3) == {}
    assert pattern.match("<4>words end", 0) is None


pieces = st.sampled_from(
    [
        "ab",
        ".*",
        r"\d+",
        "[a-c]*",
        "(?:a|bc)",
        "c?",
        "(?P<g>x+)",
        "(a*)*",
        r"\S{1,9}",
        "word",
        "x",
        "(?:b|[a-c]*)",
        r"\w+ ",
    ]
)


@given(st.lists(pieces, max_size=8).map("".join), st.text("abcx word1 ", max_size=600))
def test_whatever_is_accepted_is_quick_and_means_what_python_means(pattern: str, text: str) -> None:
    """Any pattern is refused with a ValueError or matches exactly as `re` does, in little time; its needle is there.

    The time is that of the process alone; the bound of a second is two hundred times what the promise says."""
    try:
        safe = safe_pattern(pattern)
    except ValueError:
        return
    started = time.process_time()
    found = safe.match(text, 0)
    assert time.process_time() - started < 1.0
    expected = re.compile(pattern).match(text, 0, SUBJECT_CHARS)
    assert found == (expected.groupdict() if expected else None)
