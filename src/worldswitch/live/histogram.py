"""Exits by thread, vCPU and reason, counted by the kernel itself: a histogram trigger on kvm_exit.

The trigger lies in a tracing instance of its own, records no event, and is removed with it
(Documentation/trace/histogram.rst). It costs each exit of the host a look-up in a hash table, so it is on only when
asked for.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from worldswitch.errors import MissingError
from worldswitch.live import permissions, tracefs
from worldswitch.live.permissions import ROOT
from worldswitch.x86.exits import reason_name

SIZE = 16_384
"""Entries there is room for: 400 vCPUs with 40 reasons each."""
_ENTRY = re.compile(r"^\{ (.*?) \} hitcount: +(\d+)", re.MULTILINE)
_KEY = re.compile(r"(\w+): *(-?\d+)")
_KEYS = 3
"""The most a trigger takes: kernel/trace/tracing_map.h, TRACING_MAP_KEYS_MAX."""
_VMX, _SVM = 1, 2
"""``isa`` of kvm_exit: KVM_ISA_VMX, KVM_ISA_SVM, arch/x86/include/uapi/asm/kvm.h."""
_DROPPED = re.compile(r"^ +Dropped: ([1-9]\d*)", re.MULTILINE)


class Key(NamedTuple):
    """Whose exit, and why; *vcpu* is None before Linux 5.10.4, whose event does not have it."""

    thread: int
    vcpu: int | None
    reason: str


def parse(text: str, isa: int = 0) -> dict[Key, int]:
    """The entries of a ``hist`` file; their reasons are of *isa* where they do not say themselves."""
    found: dict[Key, int] = {}
    for keys, count in _ENTRY.findall(text):
        by = {name: int(value) for name, value in _KEY.findall(keys)}
        if "common_pid" not in by or "exit_reason" not in by:
            continue
        key = Key(by["common_pid"], by.get("vcpu_id"), reason_name(by.get("isa", isa), by["exit_reason"]))
        found[key] = found.get(key, 0) + int(count)
    return found


def dropped(text: str) -> int:
    """How many exits a full histogram did not count."""
    found = _DROPPED.search(text)
    return int(found[1]) if found else 0


class ExitHistogram:
    """The histogram, from now until :meth:`close`.

    Raises:
        MissingError: This user, or this kernel, cannot have one; the message says why, and what can be done instead.
    """

    def __init__(self, root: Path = ROOT) -> None:
        where = tracefs.find(root)
        if reason := permissions.locked_down(root):
            raise MissingError(reason)
        if where is None or not tracefs.may_write(where):
            raise MissingError(permissions.no_tracefs(where, root))
        event = where / "events/kvm/kvm_exit"
        if not event.is_dir():
            raise MissingError(permissions.no_kvm_events(root))
        if not (event / "hist").exists():
            raise MissingError(
                "this kernel has no histogram triggers (CONFIG_HIST_TRIGGERS), which count exits by reason without "
                "recording each; record them instead: key r, or wsw record and wsw analyze"
            )
        names = (event / "format").read_text()
        keys = [name for name in ("common_pid", "vcpu_id", "exit_reason", "isa") if re.search(rf"\b{name};", names)]
        # A host has one vendor's processor, so that key is the one to do without.
        keys = keys[:_KEYS]
        self._isa = _VMX if (root / "sys/module/kvm_intel").exists() else _SVM
        self._stack = contextlib.ExitStack()
        here = self._stack.enter_context(tracefs.instance(where))
        try:
            (here / "events/kvm/kvm_exit/trigger").write_text(f"hist:keys={','.join(keys)}:size={SIZE}")
        except OSError as error:
            self._stack.close()
            raise MissingError(f"the kernel refuses a histogram of kvm_exit: {error.strerror}") from None
        self._file = here / "events/kvm/kvm_exit/hist"
        self.dropped = 0
        self.began: int | None = None
        """Exits that statistics had counted when it was first read."""

    def read(self) -> Mapping[Key, int]:
        """What was counted since the beginning."""
        text = self._file.read_text()
        self.dropped = dropped(text)
        return parse(text, self._isa)

    def close(self) -> None:
        """Remove it."""
        self._stack.close()
