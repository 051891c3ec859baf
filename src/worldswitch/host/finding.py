"""What the doctor says of one matter of a host: how bad, by what evidence, what a change gains, and how to undo it.

A check is a function of (:class:`~worldswitch.host.facts.Host`, :class:`Profile`), registered by :func:`check`, that
returns a :class:`Finding`, several, or None where it does not apply. What a fix does is data (:data:`Step`), never
shell text, so that one place quotes it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Optional, Union

if TYPE_CHECKING:
    from worldswitch.host.facts import Host


class Severity(enum.IntEnum):
    """How bad it is, the least first, so that levels compare."""

    OK = 0
    """Looked at, and as it should be for this profile."""
    UNKNOWN = 1
    """Could not be told; the finding's evidence or gain says what was missing."""
    INFO = 2
    """Worth knowing; nothing to do."""
    NOTICE = 3
    """A change helps some loads, or a little."""
    WARNING = 4
    """Costs a load of this profile much, or weakens it."""
    CRITICAL = 5
    """KVM does not work here, or not with what this profile promises."""

    @property
    def label(self) -> str:
        """As it is printed and asked for: ``warning``."""
        return self.name.lower()


class Profile(enum.Enum):
    """What the host is for; decides which advice fits."""

    DEFAULT = "default"
    """Nothing is known of the load: no trade of safety for speed."""
    FAAS = "faas"
    """Many short-lived microVMs: what counts is how fast one starts."""
    REALTIME = "realtime"
    """Pinned vCPUs with deadlines: what counts is the longest interruption."""
    HARDENED = "hardened"
    """Guests are hostile: no mitigation is ever given up."""


class Evidence(NamedTuple):
    """A file and what it says (the part that matters, on one line)."""

    path: str
    value: str


class Amount(NamedTuple):
    """A gain as a number with its spread; units are such as ``ns per KVM_CREATE_VM``, ``exits per CR0.WP write``."""

    low: float
    mid: float
    high: float
    unit: str


class Gain(NamedTuple):
    """What the fix is expected to gain. A number never stands alone: it has a formula, inputs and an origin.

    Attributes:
        text: One sentence.
        formula: How it is reckoned, with the names of *inputs*; empty if nothing is.
        inputs: Name, value and where the value is from.
        origin: ``model``, ``published`` (which says where) or ``this host``; empty for an unknown gain.
        amount: The number, if there is one.
        unknown: Why the gain is not known; empty if it is.
    """

    text: str
    formula: str = ""
    inputs: tuple[tuple[str, str, str], ...] = ()
    origin: str = ""
    amount: Optional[Amount] = None  # noqa: UP045 - evaluated by Python 3.9
    unknown: str = ""


def unknown_gain(why: str) -> Gain:
    """A gain nobody knows, and *why* (half a sentence, such as "nobody has published it for AMD")."""
    return Gain(f"Unknown: {why}.", unknown=why)


NO_GAIN = Gain("Nothing to gain.")
"""For findings that ask for no change."""


class Write(NamedTuple):
    """Write *value* to a file of /proc or /sys: at once, until the next boot."""

    path: str
    value: str


class Run(NamedTuple):
    """Run a program with these arguments."""

    argv: tuple[str, ...]


class DropIn(NamedTuple):
    """Make a configuration file of our own, such as ``/etc/modprobe.d/worldswitch-kvm.conf``; for good."""

    path: str
    text: str


class Remove(NamedTuple):
    """Remove a file that a :class:`DropIn` made."""

    path: str


class BootParameter(NamedTuple):
    """Add to (or, with ``remove``, take from) the kernel's command line; works after a reboot."""

    parameter: str
    remove: bool = False


class ReloadModules(NamedTuple):
    """Unload and load these modules, the vendor's before kvm; possible only while no VM runs."""

    modules: tuple[str, ...]


class ByHand(NamedTuple):
    """Something no script should do, such as a firmware setting or another kernel."""

    text: str


Step = Union[Write, Run, DropIn, Remove, BootParameter, ReloadModules, ByHand]  # noqa: UP007 - evaluated by 3.9


class Change(NamedTuple):
    """What to do, in a sentence, and its steps. Used for fixes and for their undoing.

    Attributes:
        text: One sentence.
        steps: In this order.
        needs_reboot: It is complete only after a reboot (or where a module cannot be reloaded).
    """

    text: str
    steps: tuple[Step, ...] = ()
    needs_reboot: bool = False


NOTHING = Change("Nothing to do.")


class Finding(NamedTuple):
    """One matter of a host.

    Attributes:
        id: The check's id, or that with a part of its own: ``nx-huge-pages`` or ``nx-huge-pages.recovery``.
        severity: How bad.
        title: One sentence without full stop: what is so, not what to do.
        evidence: Files and values it is told from; never empty.
        gain: What the fix gains.
        fix: What to do.
        undo: How to go back; as exact as the fix.
        risk: What the fix may break or weaken, in a sentence; empty if there is no fix.
        rule: Id of a rule of KVM's (``wsw rules ID``) or of a fact (``wsw kernels ID``), or else the source.
    """

    id: str
    severity: Severity
    title: str
    evidence: tuple[Evidence, ...]
    gain: Gain = NO_GAIN
    fix: Change = NOTHING
    undo: Change = NOTHING
    risk: str = ""
    rule: str = ""


Found = Union[Finding, Iterable[Finding], None]  # noqa: UP007
Examine = Callable[["Host", Profile], Found]


class Check(NamedTuple):
    """A registered check.

    Attributes:
        id: Its name.
        rule: What its findings say as their rule unless they say another.
        about: What it looks at, in half a sentence; for the documents.
        examine: The function.
    """

    id: str
    rule: str
    about: str
    examine: Examine


_registered: dict[str, Check] = {}


def check(*, id: str, rule: str, about: str) -> Callable[[Examine], Examine]:
    """Register the decorated function as the check *id*; it is returned as it is.

    Raises:
        ValueError: Another check has this id.
    """

    def register(function: Examine) -> Examine:
        if id in _registered:
            raise ValueError(f"two checks are called {id}")
        _registered[id] = Check(id, rule, about, function)
        return function

    return register


def registered() -> tuple[Check, ...]:
    """The checks of all modules imported so far, in the order they were registered."""
    return tuple(_registered.values())
