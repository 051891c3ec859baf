"""Which upstream kernel a distribution's kernel is, told from its version strings and never guessed.

Debian names its kernels 6.1.0-54 whatever stable version is inside, Ubuntu 5.15.0-91, Red Hat 5.14.0-362:
none of these is upstream X.Y.0. Debian says the upstream version in the long form of its version; for its
short names there is a table. What cannot be told gives the reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from worldswitch.errors import NotTold, UsageError, printable
from worldswitch.kvm.facts import Kernel, debian_names, kernel, parse_version

ASK = "state the upstream kernel, as in --from 6.1.29"


@dataclass(frozen=True)
class Told:
    """The upstream version behind a version string.

    Attributes:
        version: ``"5.10.223"``, or None if it cannot be told.
        how: How it was told; empty if it was not.
        why: Why not; empty if it was.
    """

    version: str | None
    how: str = ""
    why: str = ""

    def kernel(self) -> Kernel:
        """The kernel's facts.

        Raises:
            NotTold: The version could not be told.
            UnknownNameError: It is outside the facts.
        """
        if self.version is None:
            raise NotTold(f"{self.why}; {ASK}")
        return kernel(self.version)


class _Pattern(NamedTuple):
    pattern: re.Pattern[str]
    how: str
    why: str


_NUMBER = r"(\d{1,4}\.\d{1,4}(?:\.\d{1,6})?(?:[-~]rc\d{1,3})?)"
_DEBIAN_LONG = re.compile(rf"\bDebian {_NUMBER}-\d")
_UBUNTU_LONG = re.compile(rf"\bUbuntu \S+ {_NUMBER}\b")
_DEBIAN_NAMED = re.compile(rf"{_NUMBER}\+(?:deb|bpo)\d+(?:[.+~]\w+)*-\w")
_DEBIAN_SHORT = re.compile(
    r"(\d{1,4}\.\d{1,4}\.0)-(\d{1,4})-(?:(?:cloud|rt)-)?(?:amd64|arm64|686|686-pae|rt-686-pae)(?:-unsigned)?(?!\S)"
)
_RELEASE = re.compile(rf"(?<![\w.-])v?{_NUMBER}(\S*)")
_SHAPED = re.compile(r"\d+\.\d+\.\d+-\d|#\d+ SMP")  # what a distribution's version string looks like

_SUFFIXES = (
    _Pattern(re.compile(r"\.fc\d"), "Fedora names the upstream version", ""),
    _Pattern(re.compile(r"-arch\d|-zen\d|-lts(?!\S)"), "Arch Linux names the upstream version", ""),
    _Pattern(re.compile(r"\.amzn\d"), "Amazon Linux names the upstream version (its own patches are not known)", ""),
    _Pattern(
        re.compile(r"\.el\d"),
        "",
        "Red Hat's kernels carry backports of their own, their number is no upstream version",
    ),
    _Pattern(
        re.compile(r"-pve(?!\S)"),
        "",
        "Proxmox builds on Ubuntu's kernels, their number is no upstream version",
    ),
    _Pattern(re.compile(r"-\d+(?:\.\d+)*-default"), "", "SUSE's kernels carry backports of their own"),
    _Pattern(
        re.compile(r"\.deb\d|-(?:amd64|cloud-amd64|rt-amd64)(?!\S)"),
        "",
        "Debian's short name {0} is not in the table",
    ),
    _Pattern(
        re.compile(r"-\d+(?:-[a-z][a-z0-9-]*)?(?!\S)"),
        "",
        "{0} is a distribution's own number (Ubuntu's look like this), not upstream {1}",
    ),
)


def kernel_of(text: str) -> Told:
    """The upstream version of the kernel that *text* describes.

    Args:
        text: The output of ``uname -a`` or ``uname -r``, ``/proc/version``, Ubuntu's
            ``/proc/version_signature``, or the kernel version a trace file holds.
    """
    text = text[:1000]
    if found := _DEBIAN_LONG.search(text):
        return _told(found[1], "Debian's package version, which names the upstream one")
    if found := _UBUNTU_LONG.search(text):
        return _told(found[1], "Ubuntu's version signature, which names the upstream version")
    if found := _DEBIAN_NAMED.search(text):
        return _told(found[1], "Debian's kernel name, which holds the upstream version")
    if found := _DEBIAN_SHORT.search(text):
        return _debian_short(found[1], found[2])
    if found := _RELEASE.search(text):
        return _by_suffix(found[1], found[2])
    return Told(None, why=f"no kernel version in {printable(text[:80])!r}")


def _debian_short(base: str, number: str) -> Told:
    name = f"{base}-{number}"
    entry = debian_names().get(base, {}).get(number)
    if entry is None:
        return Told(None, why=f"Debian's short name {name} is not in the table")
    how = f"Debian's name {name} in the table"
    if isinstance(entry, str):
        return Told(entry, how=how)
    first, last = entry
    if kernel(first).facts == kernel(last).facts:
        return Told(last, how=f"{how}: {first} to {last}, alike in every fact")
    return Told(None, why=f"Debian's {name} is any of {first} to {last}, which differ")


def _by_suffix(number: str, suffix: str) -> Told:
    if number.count(".") == 1 and "rc" not in number:
        return Told(None, why=f"{printable(number + suffix)} names a line of kernels, not one of them")
    if not suffix or suffix == "+":
        if number.endswith(".0"):
            return Told(number, how="the version as it stands (mainline)")
        return _told(number, "the version as it stands")
    for pattern, how, why in _SUFFIXES:
        if pattern.search(suffix):
            return _told(number, how) if how else Told(None, why=why.format(printable(number + suffix), number))
    if parse_version(number.replace("~", "-")).patch:
        return _told(number, f"the version before the local suffix {printable(suffix)}")
    return Told(
        None,
        why=f"{printable(number + suffix)} has an unknown suffix, so it need not be upstream {number}",
    )


def _told(number: str, how: str) -> Told:
    version = parse_version(number.replace("~", "-"))
    # X.Y alone would mean the newest of its line; what a kernel calls itself is exact.
    return Told(str(version), how=how)


def kernel_named(text: str) -> tuple[Kernel, str]:
    """The kernel that *text* names, and how that was told (empty if it says so itself).

    It is read as :func:`worldswitch.kvm.facts.kernel` does (``6.1``, ``6.2.0+cr0-wp-owned``), and if it is no such
    name, as a distribution's version string.

    Raises:
        UsageError: It is neither.
        NotTold: It is a distribution's, but not one whose upstream version can be told.
    """
    try:
        return kernel(text), ""
    except UsageError as error:
        told = kernel_of(text)
        if told.version is None and _SHAPED.search(text):
            raise NotTold(f"{told.why}; {ASK}") from None
        if told.version is None or "+" in text.partition("+deb")[0]:
            raise error from None
        return told.kernel(), told.how
