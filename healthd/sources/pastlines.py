"""The forms in which kernel lines are kept: how each is recognized, found in bytes, dated, and read.

Pure: bytes in, lines out. Forms: dmesg and dmesg -T, --time-format iso, -x, -r (util-linux 2.38, sys-utils/dmesg.c);
journalctl -o short, short-precise, short-iso, short-full, short-monotonic, export, json (systemd, journalctl(1) and
JOURNAL_EXPORT_FORMATS); syslog files (RFC 3164, RFC 5424, rsyslog's default); records of /dev/kmsg (dev-kmsg ABI).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from healthd.core.encodable import encodable
from healthd.sources.kmsg_records import RECORD, unescaped

_NAMES = (b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec")
_MONTHS = {name: number for number, name in enumerate(_NAMES, 1)}
_FACILITY = rb"(?:[a-z0-9]+ *:[a-z]+ *: ?)?"
_PRIORITY = rb"(?:<\d{1,3}>)?"
_KERNEL = rb" (?:kernel: |kernel - - - )"
_CLOCK = rb"\d\d:\d\d:\d\d"
_HOST = rb"(\S{1,255})"
_AT_LINE = rb"^(?=\S)"
_LONGEST_UPTIME_S = 1e9  # thirty years: a stamp beyond that is garbage


class LogLine(NamedTuple):
    """One line of a past log. ``text`` "": it is not the kernel's. ``boot``: the boot id, where the form has one."""

    time: datetime
    text: str
    host: str = ""
    boot: str = ""
    trusted: bool = True

    def at(self, host: str) -> LogLine:
        """The same, filed under a host."""
        return LogLine(self.time, self.text, host, self.boot, self.trusted)


NOT_KERNEL = LogLine(time=datetime.fromtimestamp(0, UTC), text="")


class Dating(Struct, kw_only=True):
    """The origin of the times in a file. ``modified``: the file's own date.

    ``first``: (month, day) of its first line, where the form has no year. ``last``: seconds since boot of its last
    line, where the form counts from boot.
    """

    modified: datetime
    first: tuple[int, int] | None = None
    last: float | None = None
    _year: int = 0
    _month: int = 0

    @property
    def booted(self) -> datetime:
        """The time of the boot, as if the last line was written when the file was."""
        return self.modified - timedelta(seconds=self.last or 0.0)

    @property
    def year(self) -> int:
        """The year of the first line: the last one in which that day was not after the file's date."""
        tomorrow = self.modified + timedelta(days=1)
        return tomorrow.year - ((tomorrow.month, tomorrow.day) < (self.first or (0, 0)))

    def moment(self, month: int, day: int, seconds: float) -> datetime | None:
        """The time of a line without a year. The year advances where the months begin again; None: no such day."""
        if not self._year:
            self._year, self._month = self.year, (self.first or (month, 0))[0]
        year = self._year + (self._month - month > 6)
        try:
            moment = datetime(year, month, day, tzinfo=UTC) + timedelta(seconds=seconds)
            if moment > self.modified + timedelta(days=1):  # a line of December that comes after those of January
                return moment.replace(year=year - 1)
        except ValueError:
            return None
        self._year, self._month = year, month
        return moment


Parse = Callable[[bytes, Dating], LogLine | None]


class Format(Struct, frozen=True, kw_only=True):
    """One form. ``heads``: the beginning of each of its lines, behind a newline. ``before``: the text before a record's
    words. ``ends``: the end of a line, or a record. ``indents``: whether the further lines of a record are indented
    under its first, as dmesg and journalctl print them. ``note``: the information that the form lacks."""

    name: str
    heads: re.Pattern[bytes]
    before: bytes
    parse: Parse
    ends: bytes = b"\n"
    indents: bool = False
    weight: int = 1
    note: str = ""
    also: tuple[bytes, ...] = ()
    from_boot: re.Pattern[bytes] | None = None
    yearless: re.Pattern[bytes] | None = None

    def first_stamp(self, sample: bytes) -> tuple[int, int] | None:
        """(month, day) of the first line, where the form has no year."""
        found = self.yearless.search(b"\n" + sample) if self.yearless else None
        return (_MONTHS[found[1]], int(found[2])) if found and found[1] in _MONTHS else None

    def last_stamp(self, tail: bytes) -> float | None:
        """Seconds since boot of the last line, where the form counts from boot."""
        stamps = self.from_boot.findall(b"\n" + tail) if self.from_boot else []
        seconds = (float(stamp) if b"." in stamp else int(stamp) / 1e6 for stamp in reversed(stamps))
        return next((each for each in seconds if each < _LONGEST_UPTIME_S), None)

    def dated(self, dating: Dating) -> Iterator[str]:
        """The assumptions about its times."""
        if self.from_boot:
            yield f"its times count from boot: the last is taken to be the file's date, {dating.modified:%F %T} UTC"
        if self.yearless:
            yield f"its times have no year: the first line is taken to be of {dating.year}, by the file's date"


# ---------------------------------------------------------------------------------------------------------------------
# /dev/kmsg and dmesg


def _kmsg(raw: bytes, dating: Dating) -> LogLine | None:
    if raw.startswith(b" "):
        return NOT_KERNEL  # a property of the record before
    found = RECORD.match(raw)
    if found is None:
        return None
    prefix, _sequence, usec, text = found.groups()
    at = _after(dating.booted, int(usec))
    return None if at is None else LogLine(time=at, text=_text(unescaped(text)), trusted=int(prefix) < 8)


def _after(booted: datetime, usec: int) -> datetime | None:
    try:
        return booted + timedelta(microseconds=usec)
    except OverflowError:
        return None


_DMESG_LINE = re.compile(
    rb"(?:<(\d{1,3})>)?(?:([a-z0-9]+) *:[a-z]+ *: ?)?\[ *(\d{1,9}\.\d{1,6})\] ?(?:(\S{1,255}) kernel: )?(.*)", re.DOTALL
)
_DMESG_T_LINE = re.compile(
    rb"(?:<(\d{1,3})>)?(?:([a-z0-9]+) *:[a-z]+ *: ?)?\[[A-Z][a-z]{2} ([A-Z][a-z]{2}) +(\d{1,2}) (%b) (\d{4})\] ?(.*)"
    % _CLOCK,
    re.DOTALL,
)
_DMESG_ISO_LINE = re.compile(rb"(?:([a-z0-9]+) *:[a-z]+ *: ?)?(\d{4}-\S{10,30}) (.*)", re.DOTALL)


def _dmesg(raw: bytes, dating: Dating) -> LogLine | None:
    found = _DMESG_LINE.match(raw)
    if found is None:
        return None
    priority, facility, seconds, host, text = found.groups()
    if not _is_kernels(priority, facility):
        return NOT_KERNEL
    at = _after(dating.booted, int(float(seconds) * 1e6))
    return None if at is None else LogLine(time=at, text=_text(text), host=_text(host or b""))


def _dmesg_t(raw: bytes, _dating: Dating) -> LogLine | None:
    found = _DMESG_T_LINE.match(raw)
    if found is None:
        return None
    priority, facility, month, day, clock, year, text = found.groups()
    if not _is_kernels(priority, facility):
        return NOT_KERNEL
    at = _full_date(year, _MONTHS.get(month, 0), day, clock)
    return None if at is None else LogLine(time=at, text=_text(text))


def _dmesg_iso(raw: bytes, _dating: Dating) -> LogLine | None:
    found = _DMESG_ISO_LINE.match(raw)
    if found is None or (at := _iso(found[2])) is None:
        return None
    return LogLine(time=at, text=_text(found[3])) if _is_kernels(None, found[1]) else NOT_KERNEL


def _is_kernels(priority: bytes | None, facility: bytes | None) -> bool:
    return (priority is None or int(priority) < 8) and facility in (None, b"kern")


# ---------------------------------------------------------------------------------------------------------------------
# syslog and journalctl's short forms


_SHORT_LINE = re.compile(
    rb"(?:<\d{1,3}>)?([A-Z][a-z]{2}) +(\d{1,2}) (\d\d):(\d\d):(\d\d(?:\.\d{1,9})?) %b%b(.*)" % (_HOST, _KERNEL),
    re.DOTALL,
)
_ISO_LINE = re.compile(rb"(?:<\d{1,3}>)?(?:\d )?(\d{4}-\S{12,32}) %b%b(.*)" % (_HOST, _KERNEL), re.DOTALL)
_FULL_LINE = re.compile(
    rb"[A-Z][a-z]{2} (\d{4})-(\d\d)-(\d\d) (%b)(?:\.\d{1,9})? (\S+) %b%b(.*)" % (_CLOCK, _HOST, _KERNEL), re.DOTALL
)


def _short(raw: bytes, dating: Dating) -> LogLine | None:
    found = _SHORT_LINE.match(raw)
    if found is None:
        return NOT_KERNEL
    month, day, hours, minutes, seconds, host, text = found.groups()
    if month not in _MONTHS:
        return None
    at = dating.moment(_MONTHS[month], int(day), int(hours) * 3600 + int(minutes) * 60 + float(seconds))
    return None if at is None else LogLine(time=at, text=_text(text), host=_text(host))


def _iso_line(raw: bytes, _dating: Dating) -> LogLine | None:
    found = _ISO_LINE.match(raw)
    if found is None:
        return NOT_KERNEL
    at = _iso(found[1])
    return None if at is None else LogLine(time=at, text=_text(found[3]), host=_text(found[2]))


def _full(raw: bytes, _dating: Dating) -> LogLine | None:
    found = _FULL_LINE.match(raw)
    if found is None:
        return NOT_KERNEL
    year, month, day, clock, _zone, host, text = found.groups()
    at = _full_date(year, int(month), day, clock)
    return None if at is None else LogLine(time=at, text=_text(text), host=_text(host))


@lru_cache(maxsize=4096)
def _full_date(year: bytes, month: int, day: bytes, clock: bytes) -> datetime | None:
    try:
        hours, minutes, seconds = map(int, clock.split(b":"))
        return datetime(int(year), month, int(day), hours, minutes, min(seconds, 59), tzinfo=UTC)
    except ValueError:
        return None


@lru_cache(maxsize=4096)
def _iso(stamp: bytes) -> datetime | None:
    try:
        at = datetime.fromisoformat(stamp.decode("ascii").replace(",", "."))
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


# ---------------------------------------------------------------------------------------------------------------------
# the journal


def _export(raw: bytes, _dating: Dating) -> LogLine | None:
    """One record: ``NAME=value`` lines, and for values that are no plain text a name, eight bytes of length, and it."""
    fields: dict[bytes, bytes] = {}
    at = 0
    while at < len(raw):
        end = raw.find(b"\n", at)
        end = len(raw) if end < 0 else end
        name, equals, value = raw[at:end].partition(b"=")
        at = end + 1
        if not equals:
            length = int.from_bytes(raw[at : at + 8], "little")
            value = raw[at + 8 : at + 8 + length]
            if len(value) < length:
                return None
            at += 8 + length + 1
        fields[name] = value
    return _journal({name.decode("ascii", "replace"): _text(value) for name, value in fields.items()})


def _json(raw: bytes, _dating: Dating) -> LogLine | None:
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return _journal(fields) if isinstance(fields, dict) else None


def _journal(fields: Mapping[str, Any]) -> LogLine | None:
    """The kernel's own by ``_TRANSPORT``, which the journal sets and a user cannot. Bytes come as lists of numbers."""
    if fields.get("_TRANSPORT", "kernel") != "kernel":
        return NOT_KERNEL
    message = fields.get("MESSAGE")
    if isinstance(message, list) and all(isinstance(each, int) and 0 <= each < 256 for each in message):
        message = _text(bytes(message))
    try:
        at = datetime.fromtimestamp(int(fields["__REALTIME_TIMESTAMP"]) / 1e6, UTC)
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        return None
    if not isinstance(message, str):
        return None
    trusted = str(fields.get("SYSLOG_FACILITY", "0")) == "0"
    host, boot = str(fields.get("_HOSTNAME", "")), str(fields.get("_BOOT_ID", ""))
    return LogLine(time=at, text=encodable(message), host=encodable(host), boot=encodable(boot), trusted=trusted)


def _plain(raw: bytes, dating: Dating) -> LogLine | None:
    return LogLine(time=dating.modified, text=_text(raw))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


# ---------------------------------------------------------------------------------------------------------------------

_NO_ZONE = "its times have no zone: taken as UTC"
_ANYBODYS = "a syslog file does not say whether the kernel itself wrote a line that is tagged kernel"

FORMATS: tuple[Format, ...] = (
    Format(
        name="/dev/kmsg records",
        heads=re.compile(rb"\n(?:\d{1,10},\d{1,18},\d{1,18},[^;\n]*;| [A-Z_]+=)"),
        before=rb"^[^;\n]*+;",
        parse=_kmsg,
        from_boot=re.compile(rb"\n\d{1,10},\d{1,18},(\d{1,18}),[^;\n]*;"),
    ),
    Format(
        name="journalctl -o export",
        heads=re.compile(rb"\n__REALTIME_TIMESTAMP=\d"),
        before=rb"\nMESSAGE(?:=|\n[\x00-\xff]{8})",
        parse=_export,
        ends=b"\n\n",
        weight=1000,
    ),
    Format(
        name="journalctl -o json",
        heads=re.compile(rb'\n\{ ?"[_A-Z]'),
        before=rb'"MESSAGE" ?: ?"',
        parse=_json,
        also=(b'"MESSAGE":[', b'"MESSAGE": [', b'"MESSAGE" : ['),
    ),
    Format(
        name="dmesg -T",
        heads=re.compile(rb"\n%b%b\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d %b \d{4}\]" % (_PRIORITY, _FACILITY, _CLOCK)),
        before=_AT_LINE + _FACILITY,
        parse=_dmesg_t,
        indents=True,
        note=_NO_ZONE,
    ),
    Format(
        name="dmesg --time-format iso",
        heads=re.compile(rb"\n%b\d{4}-\d\d-\d\dT%b,\d{1,9}\S{0,6} " % (_FACILITY, _CLOCK)),
        before=_AT_LINE + _FACILITY + rb"\d{4}-\d\d-\d\dT\S{8,32} ",
        parse=_dmesg_iso,
        indents=True,
    ),
    Format(
        name="dmesg",
        heads=re.compile(rb"\n%b%b\[ *\d{1,9}\.\d{1,6}\]" % (_PRIORITY, _FACILITY)),
        before=_AT_LINE + _FACILITY + rb"(?:\[ *[\d.]{3,17}\] \S{1,255} kernel: )?",
        parse=_dmesg,
        indents=True,
        from_boot=re.compile(rb"\n%b%b\[ *(\d{1,9}\.\d{1,6})\]" % (_PRIORITY, _FACILITY)),
    ),
    Format(
        name="syslog or journalctl -o short",
        heads=re.compile(rb"\n%b[A-Z][a-z]{2} [ \d]\d %b(?:\.\d{1,9})? \S" % (_PRIORITY, _CLOCK)),
        before=_AT_LINE + rb"%b[A-Z][a-z]{2} +\d{1,2} [\d:.]{8,18} \S{1,255}%b" % (_PRIORITY, _KERNEL),
        parse=_short,
        indents=True,
        note=f"{_NO_ZONE}; {_ANYBODYS}",
        yearless=re.compile(rb"\n%b([A-Z][a-z]{2}) +(\d{1,2}) %b" % (_PRIORITY, _CLOCK)),
    ),
    Format(
        name="syslog or journalctl with ISO times",
        heads=re.compile(rb"\n%b(?:\d )?\d{4}-\d\d-\d\dT%b(?:\.\d{1,9})?(?:Z|[+-]\d\d:?\d\d) \S" % (_PRIORITY, _CLOCK)),
        before=_AT_LINE + rb"%b(?:\d )?\d{4}-\d\d-\d\dT\S{8,32} \S{1,255}%b" % (_PRIORITY, _KERNEL),
        parse=_iso_line,
        indents=True,
        note=_ANYBODYS,
    ),
    Format(
        name="journalctl -o short-full",
        heads=re.compile(rb"\n[A-Z][a-z]{2} \d{4}-\d\d-\d\d %b(?:\.\d{1,9})? \S+ \S" % _CLOCK),
        before=_AT_LINE + rb"[A-Z][a-z]{2} [\d-]{10} [\d:.]{8,18} \S+ \S{1,255}%b" % _KERNEL,
        parse=_full,
        indents=True,
        note=f"its times are taken as UTC, whatever zone they name; {_ANYBODYS}",
    ),
)

PLAIN = Format(
    name="kernel lines without times",
    heads=re.compile(rb"\n[^\n]"),
    before=_AT_LINE,
    parse=_plain,
    note="its lines have no times: all are taken to be as old as the file, so nothing is judged over time",
)
EMPTY = replace(PLAIN, name="empty", note="it has no line: nothing is known of its node")
