"""What the texts of /proc and /sys say. Every function takes any text at all, and leaves out what it can't read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import NamedTuple

from worldswitch.host.allowed import boot_words

_VENDORS = {"GenuineIntel": "intel", "AuthenticAMD": "amd", "HygonGenuine": "amd", "CentaurHauls": "intel"}
_NONE: frozenset[str] = frozenset()
_DIGITS = re.compile(r"\d{1,18}", re.ASCII)


class Cpu(NamedTuple):
    """The first processor of ``/proc/cpuinfo``; None and empty where it does not say.

    Attributes:
        vendor: ``intel`` or ``amd``, by whose extensions it virtualizes (Hygon is ``amd``, Zhaoxin's ``intel``).
        vendor_id: As CPUID spells it.
        processors: How many are listed.
    """

    vendor: str = ""
    vendor_id: str = ""
    family: int | None = None
    model: int | None = None
    stepping: int | None = None
    name: str = ""
    microcode: str = ""
    flags: frozenset[str] = _NONE
    vmx_flags: frozenset[str] = _NONE
    bugs: frozenset[str] = _NONE
    processors: int = 0


class Mount(NamedTuple):
    """A mounted file system.

    Attributes:
        path: Where.
        fstype: What.
        options: Those of the file system (not of the mount point), such as ``favordynmods``.
    """

    path: str
    fstype: str
    options: frozenset[str]


def number(text: str | None) -> int | None:
    """A whole number, decimal, not negative; None if *text* is no such."""
    text = (text or "").strip()
    return int(text) if _DIGITS.fullmatch(text) else None


def cpu(text: str) -> Cpu:
    """What ``/proc/cpuinfo`` says."""
    first: dict[str, str] = {}
    count = 0
    for line in text.splitlines():
        key, colon, value = (part.strip() for part in line.partition(":"))
        if colon:
            count += key == "processor"
            if count <= 1:
                first.setdefault(key, value)
    vendor_id = first.get("vendor_id", "")
    return Cpu(
        _VENDORS.get(vendor_id, ""),
        vendor_id,
        number(first.get("cpu family")),
        number(first.get("model")),
        number(first.get("stepping")),
        first.get("model name", ""),
        first.get("microcode", ""),
        frozenset(first.get("flags", "").split()),
        frozenset(first.get("vmx flags", "").split()),
        frozenset(first.get("bugs", "").split()),
        count,
    )


def mountinfo(text: str) -> tuple[Mount, ...]:
    """Mounts of ``/proc/PID/mountinfo`` (proc(5)); escaped blanks in paths are blanks again."""
    found = []
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if dash and len(fields) >= 6 and len(rest) >= 3:
            found.append(Mount(_unescaped(fields[4]), rest[0], frozenset(rest[2].split(","))))
    return tuple(found)


def mounts(text: str) -> tuple[Mount, ...]:
    """Mounts of ``/proc/mounts`` (fstab(5)), which has both kinds of options in one."""
    lines = (line.split(" ") for line in text.splitlines())
    return tuple(
        Mount(_unescaped(fields[1]), fields[2], frozenset(fields[3].split(","))) for fields in lines if len(fields) >= 4
    )


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-3][0-7]{2})", lambda found: chr(int(found[1], 8)), text)


def boot_parameters(text: str) -> dict[str, tuple[str, ...]]:
    """Parameter -> its values in their order, ``""`` for a bare word; ``*`` where the value was masked.

    The kernel takes ``-`` and ``_`` in names as the same: here it is ``_``.
    """
    found: dict[str, tuple[str, ...]] = {}
    for word in boot_words(text):
        if word == "--":
            break
        name, _, value = word.partition("=")
        name = name.replace("-", "_")
        found[name] = (*found.get(name, ()), value)
    found.pop("*", None)
    return found


def config(text: str) -> dict[str, str]:
    """Option -> ``y``, ``m``, ``n`` (said to be not set) or its value without quotes."""
    found = {}
    for line in text.splitlines():
        if line.startswith("CONFIG_"):
            name, equals, value = line.partition("=")
            if equals:
                found[name] = value.strip().strip('"')
        elif line.startswith("# CONFIG_") and line.endswith(" is not set"):
            found[line[2 : -len(" is not set")]] = "n"
    return found


def meminfo(text: str) -> dict[str, int]:
    """Name -> bytes, or a count where no unit is given."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        value, _, unit = rest.strip().partition(" ")
        amount = number(value)
        if amount is not None:
            found[name.strip()] = amount << 10 if unit.strip() == "kB" else amount
    return found


def module_users(text: str) -> dict[str, int]:
    """Module -> how many use it, of ``/proc/modules``."""
    found = {}
    for fields in map(str.split, text.splitlines()):
        users = number(fields[2]) if len(fields) >= 3 else None
        if users is not None:
            found[fields[0]] = users
    return found


def os_release(text: str) -> Mapping[str, str]:
    """Variable -> value, of os-release(5)."""
    found = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and re.fullmatch(r"[A-Z_][A-Z0-9_]*", name):
            try:
                found[name] = "".join(shlex.split(value)[:1])
            except ValueError:
                found[name] = value
    return found


def chosen(text: str | None) -> str | None:
    """Of ``always [madvise] never`` the one in brackets; the text itself if there are none."""
    if text is None:
        return None
    found = re.search(r"\[([^\]]*)\]", text)
    return found[1] if found else text.strip()


def switch(text: str | None) -> bool | None:
    """A module's boolean: True for Y, y or 1, False for N, n or 0; None for anything else."""
    return {"Y": True, "y": True, "1": True, "N": False, "n": False, "0": False}.get((text or "").strip())


def cpu_list(text: str | None) -> int:
    """How many processors (or nodes) a list such as ``0-3,8`` names; 0 for what is no list."""
    total = 0
    for part in (text or "").strip().split(","):
        first, dash, last = part.partition("-")
        low, high = number(first), number(last if dash else first)
        if low is not None and high is not None and low <= high:
            total += high - low + 1
    return total
