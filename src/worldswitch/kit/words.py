"""What the words of a command line mean: programs, features to hide or show. Shared by ``wsw`` and the kit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from worldswitch.errors import UsageError, printable
from worldswitch.live.cells import CREATE_VM
from worldswitch.units import parse_duration
from worldswitch.x86.features import feature

HOST_PROGRAMS = (CREATE_VM,)
"""No guest runs: this process makes VMs."""
LARGEST_N = 10**9
MOST_RUNS = 10_000
DEADLINE = 10.0
"""Seconds one run of a guest may take, unless told otherwise."""

_LONGEST = 1e9
_CPUID = "cpuid."
_FILES = (".toml", ".img")


def is_file(word: str) -> bool:
    """Whether *word* names a file rather than a program that ships."""
    return word.endswith(_FILES)


def programs(words: Iterable[str]) -> Iterator[str]:
    """The programs *words* name: each is a list with commas, in which ``key=value`` goes with the name before it.

    Raises:
        UsageError: A word names nothing, or begins with ``key=value``.
    """
    for word in words:
        if is_file(word) and "," not in word:
            yield word
            continue
        one = ""
        for part in word.split(","):
            if "=" in part.partition(":")[0]:
                if ":" not in one:
                    raise UsageError(f"{printable(part)!r} has no program before it; write PROGRAM:{printable(part)}")
                one = f"{one},{part}"
                continue
            if one:
                yield one
            one = part.strip()
            if not one:
                raise UsageError(f"{printable(word)!r} names an empty program")
        yield one


def seconds(deadline: str) -> float:
    """What ``--deadline`` says.

    Raises:
        UsageError: It is no duration, or none that a timer could be set to.
    """
    limit = parse_duration(deadline) / 1e9
    if limit <= 0:
        raise UsageError(f"--deadline {printable(deadline)!r} leaves no time; write more than 0 seconds, such as 60s")
    if limit >= _LONGEST:
        raise UsageError(f"--deadline {printable(deadline)!r} is too long for a timer; write less than 1e9 seconds")
    return limit


def features(sets: Iterable[str]) -> dict[str, bool]:
    """CPUID feature -> whether to show it, of words such as ``cpuid.pcid=0``.

    Raises:
        UsageError: Another name, or a value that is neither 0 nor 1.
        UnknownNameError: A feature nobody knows.
    """
    found: dict[str, bool] = {}
    for word in sets:
        name, equals, value = word.partition("=")
        if not name.startswith(_CPUID):
            raise UsageError(
                f"--set {printable(word)!r} is not cpuid.FEATURE=0 or =1; parameters of this host's modules are not "
                "changed while it runs"
            )
        if not equals or value not in ("0", "1"):
            raise UsageError(f"--set {printable(word)!r} needs a value of 0 or 1, such as {_CPUID}pcid=0")
        feature(name[len(_CPUID) :])
        found[name[len(_CPUID) :].lower()] = value == "1"
    return found
