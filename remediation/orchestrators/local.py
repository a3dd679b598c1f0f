"""A machine without a cluster: the hold is a file, the fleet is this node, the jobs are processes on its GPUs.

Keeps the same laws as a real cluster, so that the engine, the demo and a single workstation use one path. Nothing
here stops a process: your launcher of jobs runs `healthd check` first. A file that cannot be read is not "no hold".
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Collection
from pathlib import Path

from healthd.core.errors import BackendRefused, BackendUnknown, SlotTaken
from healthd.remediation.ports import FleetSnapshot, Hold, NodeRecord, NodeView, Slot
from healthd.sources.gpu_holders import MONITORS, gpu_holders

HOLD_FILE, SLOT_FOLDER, RECORD_FILE = "hold.json", "slots", "record"

_SLOT_NAME = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]*)-(0|[1-9][0-9]{0,5})")


def _no_pids() -> Collection[int]:
    return ()


class LocalOrchestrator:
    """The Orchestrator of a machine that belongs to no cluster.

    ``state_dir``: the folder of the hold, created when it is first needed. ``proc_root`` and ``dev_root``: the trees in
    which jobs are searched. ``ignore_pids``: processes that have a GPU open and are no job, such as our own probe
    workers. ``clock`` (seconds since the epoch) signs the hold.
    """

    kind = "local"

    def __init__(
        self,
        *,
        state_dir: Path | str,
        node: str,
        proc_root: Path | str = "/proc",
        dev_root: Path | str = "/dev",
        ignore_pids: Callable[[], Collection[int]] = _no_pids,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path, self._node = Path(state_dir) / HOLD_FILE, node
        self._proc, self._dev = Path(proc_root), Path(dev_root)
        self._ignore_pids, self._clock = ignore_pids, clock

    def view(self, *, jobs: bool = False) -> NodeView:
        """Read the hold; ``jobs`` also lists ``"<pid> <name>"`` of each process on a GPU. Raises BackendUnknown."""
        hold = self._read()
        return NodeView(
            name=self._node,
            in_service=hold is None,
            flags=frozenset() if hold is None else frozenset({"DRAIN"}),
            hold=hold,
            jobs=self._jobs() if jobs else (),
        )

    def snapshot(self) -> FleetSnapshot:
        text = self._text(self._path.with_name(RECORD_FILE))
        return FleetSnapshot(
            out=frozenset() if self._read() is None else frozenset({self._node}),
            total=1,
            records=(NodeRecord(node=self._node, text=text),) if text else (),
        )

    def quarantine(self, text: str) -> None:
        """Write the hold, durably. The same text again changes nothing; another text over a hold is refused."""
        if not text or not text.isprintable():
            raise BackendRefused(f"hold of {self._node} not written: the reason is {text!r}, expected one line of text")
        hold = self._read()
        if hold is not None and hold.text != text:
            raise BackendRefused(f"{self._node} is already held by {hold.user}: {hold.text}")
        if hold is None:
            self._write(Hold(text=text, user="healthd", stamp=int(self._clock())))

    def release(self, *, resume: bool) -> None:
        """Remove the hold. There is no DOWN here, so ``resume`` makes no difference."""
        self._remove(self._path)

    def _jobs(self) -> tuple[str, ...]:
        ignore = self._ignore_pids()
        holders = gpu_holders(self._proc, self._dev)
        return tuple(f"{h.pid} {h.name}" for h in holders if h.pid not in ignore and h.name not in MONITORS)

    def slots(self) -> tuple[Slot, ...]:
        """Read the slots: files beside the hold, each named by its scope and index, with the holder inside."""
        try:
            names = sorted(name for name in os.listdir(self._slot_folder) if not name.endswith(".part"))
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise BackendUnknown(f"{self._slot_folder}: the slots could not be read: {error}") from error
        return tuple(slot for name in names if (slot := self._slot(name)) is not None)

    def claim(self, scope: str, index: int) -> None:
        """Create the slot's file, durably and with its content, if there is none."""
        path = self._slot_folder / f"{scope}-{index}"
        match = _SLOT_NAME.fullmatch(path.name)
        if not match or (match[1], match[2]) != (scope, str(index)):
            raise BackendRefused(f"slot {path.name!r} not written: expected a scope of letters, digits, '_', '.', '-'")
        self._put(path, self._node, only_new=True)

    def keep_awake(self, *, on: bool) -> None:
        """Do nothing: no view of this machine says that it may be powered down for being idle."""

    def fence(self) -> None:
        """Do nothing: a machine without a cluster gets no jobs from one."""

    def give_back(self, slot: Slot) -> None:
        path = self._slot_folder / f"{slot.scope}-{slot.index}"
        if (there := self._slot(path.name)) is None:
            return
        if there.node != self._node:
            raise BackendRefused(f"{path} not removed: {there.node} holds the slot, not {self._node}")
        self._remove(path)

    def write_record(self, text: str) -> None:
        """Write the handoff record beside the hold."""
        if not text.isprintable():
            raise BackendRefused(f"handoff record of {self._node} not written: the text is {text!r}, expected one line")
        path = self._path.with_name(RECORD_FILE)
        if text:
            self._put(path, text)
        else:
            self._remove(path)

    def read_record(self) -> str:
        return self._text(self._path.with_name(RECORD_FILE)) or ""

    @property
    def _slot_folder(self) -> Path:
        return self._path.with_name(SLOT_FOLDER)

    def _slot(self, name: str) -> Slot | None:
        path = self._slot_folder / name
        node, match = self._text(path), _SLOT_NAME.fullmatch(name)
        if node is None:
            return None
        if not node or not match:
            raise BackendUnknown(
                f"{path}: expected a file <scope>-<index> with a node's name in it; correct or remove it"
            )
        return Slot(scope=match[1], index=int(match[2]), node=node)

    def _text(self, path: Path) -> str | None:
        try:
            return path.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise BackendUnknown(f"{path}: could not be read: {error}") from error

    def _read(self) -> Hold | None:
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BackendUnknown(f"{self._path}: the hold could not be read: {error}") from error
        try:
            fields = json.loads(content)
        except ValueError:
            fields = None
        match fields:
            case {"text": str(text), "user": str(user), "stamp": int(stamp)}:
                return Hold(text=text, user=user, stamp=stamp)
        problem = f"{self._path}: expected a hold as JSON with text, user and stamp, got {content[:80]!r}"
        raise BackendUnknown(f"{problem}; read it, and remove it to put the node back in service")

    def _write(self, hold: Hold) -> None:
        self._put(self._path, json.dumps({"text": hold.text, "user": hold.user, "stamp": hold.stamp}))

    def _put(self, path: Path, body: str, *, only_new: bool = False) -> None:
        """Write a file so that it is there in full or not at all; ``only_new``: SlotTaken if there is one."""
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(part, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(body + "\n")
                file.flush()
                os.fsync(file.fileno())
            if only_new:
                os.link(part, path)
                part.unlink()
            else:
                part.replace(path)
            _sync_folder(path.parent)
        except OSError as error:
            with contextlib.suppress(OSError):  # a read-only or full disk is what is being reported below
                part.unlink(missing_ok=True)
            if only_new and isinstance(error, FileExistsError):
                raise SlotTaken(f"slot {path} is taken") from error
            problem = f"{path}: the {_what(path)} could not be written: {error}"
            raise BackendUnknown(f"{problem}; make room, or set another state_dir") from error

    def _remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
            _sync_folder(path.parent)
        except FileNotFoundError:
            return  # no state_dir: nothing was ever held
        except OSError as error:
            problem = f"{path}: the {_what(path)} could not be removed: {error}"
            raise BackendUnknown(f"{problem}; remove it by hand") from error


def _what(path: Path) -> str:
    return {HOLD_FILE: "hold", RECORD_FILE: "record"}.get(path.name, "slot")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
