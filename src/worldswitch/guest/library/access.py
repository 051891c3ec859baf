"""Every kind of memory access against every kind of page and protection: what faults, and with which error code.

The cases are those a processor must decide by CR0.WP, CR4.SMEP, SMAP and PKE, EFER.NXE, RFLAGS.AC, PKRU and the
entries of the walk; the expected answers are those of :mod:`worldswitch.x86.access`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple, Protocol

from worldswitch.guest.library.registry import one_of, shipped
from worldswitch.guest.operations import (
    FLAGS,
    Access,
    Bits,
    Clac,
    Fetch,
    Invlpg,
    Load,
    Operation,
    Stac,
    Store,
    WriteCr,
    WriteEntry,
    WritePkru,
)
from worldswitch.guest.program import Pages, Space, State, Vcpu
from worldswitch.x86.access import Controls, Kind, page_fault
from worldswitch.x86.exceptions import PAGE_FAULT
from worldswitch.x86.paging import KEY_SHIFT
from worldswitch.x86.registers import CR4, bit_mask

FEATURES = ("smep", "smap", "pku")
"""CPUID features that add cases."""
_PA = 0x200000
_PRESENT, _BRANCH, _LARGE = FLAGS["P"], FLAGS["P"] | FLAGS["W"] | FLAGS["U"], FLAGS["PS"]
_RESERVED_IN_2M = 1 << 13
_READ_WRITE = 0x180
"""Where in a page data are: its beginning is code."""
_RETURNS = 0xC3C3C3C3C3C3C3C3


class Page(NamedTuple):
    """A kind of page: how it is named, where it lies and the entries that map it, from the root down.

    Attributes:
        pages: As the address space has it.
        changes: What the program changes of it before the first case.
    """

    name: str
    pages: Pages
    entries: tuple[int, ...]
    changes: tuple[WriteEntry, ...] = ()


class Setting(NamedTuple):
    """What is in the control registers, RFLAGS and PKRU."""

    wp: bool
    smep: bool = False
    smap: bool = False
    ac: bool = False
    pkru: int | None = None

    @property
    def needs(self) -> frozenset[str]:
        """The CPUID features without which it cannot be."""
        found = {"smep": self.smep, "smap": self.smap, "pku": self.pkru is not None}
        return frozenset(name for name, on in found.items() if on)

    @property
    def controls(self) -> Controls:
        """For :func:`worldswitch.x86.access.page_fault`."""
        pke = self.pkru is not None
        return Controls(self.wp, self.smep, self.smap, pke, True, self.ac, self.pkru or 0)

    def __str__(self) -> str:
        words = [f"WP={int(self.wp)}"]
        words += ["SMEP"] * self.smep + [f"SMAP AC={int(self.ac)}"] * self.smap
        return " ".join(words + ([] if self.pkru is None else [f"PKRU={self.pkru:#x}"]))


class Case(NamedTuple):
    """One access, and what must come of it.

    Attributes:
        operation: Its path in the program.
        va: The address, which is CR2 after a fault.
        error_code: Of the page fault; None if there must be none.
    """

    operation: str
    setting: Setting
    page: str
    kind: Kind
    user: bool
    va: int
    error_code: int | None

    def __str__(self) -> str:
        return f"{'user' if self.user else 'supervisor'} {self.kind.value} of {self.page}, {self.setting}"


class Seen(Protocol):
    """A fault as a guest or a Result reports it."""

    @property
    def operation(self) -> str: ...

    @property
    def vector(self) -> int: ...

    @property
    def error_code(self) -> int: ...

    @property
    def cr2(self) -> int: ...


class Verdict(NamedTuple):
    """A case and the different faults its operation met: one or none, where all is well."""

    case: Case
    seen: tuple[Seen, ...]

    @property
    def agrees(self) -> bool:
        """Whether that is what the architecture asks for."""
        if self.case.error_code is None:
            return not self.seen
        wanted = (PAGE_FAULT, self.case.error_code, self.case.va)
        return [(fault.vector, fault.error_code, fault.cr2) for fault in self.seen] == [wanted]


class Judgement(NamedTuple):
    """All cases with what came of them, and faults of operations that are no case: those must not fault."""

    verdicts: tuple[Verdict, ...]
    strays: tuple[Seen, ...]

    @property
    def agrees(self) -> bool:
        """Whether everything is as the architecture asks."""
        return not self.strays and all(verdict.agrees for verdict in self.verdicts)


@shipped("access")
def access(*, features: str = "none") -> dict[str, Any]:
    """Makes every kind of access to every kind of page under every setting of the bits that decide; features (none,
    all, or some of smep, smap and pku, joined by plus signs) adds the cases that need them.

    Expect: each access faults or goes ahead as Intel SDM volume 3, sections 4.6 and 4.7, says; exits only with shadow
    paging.

    Source: the cases of kvm-unit-tests' x86/access.c, smap.c and pku.c as far as one access shows them.
    """
    steps = list(_steps(parse_features(features)))
    pages = [page.pages for page in _pages("pku" in parse_features(features))]
    return {
        "unit": "round of all cases",
        "spaces": (Space("main", tuple(pages)),),
        "state": State(cr4=bit_mask(CR4, "PAE")),
        "memory": 8 << 20,
        "vcpus": (Vcpu(setup=_preparation(parse_features(features)), body=tuple(op for op, _ in steps)),),
        "features": parse_features(features),
        "default_n": 1,
    }


def parse_features(text: str) -> frozenset[str]:
    """``"none"``, ``"all"`` or ``"smep+smap"`` as a set. Raises UnknownNameError."""
    if text in ("none", "all"):
        return frozenset(FEATURES if text == "all" else ())
    return frozenset(one_of("feature", word.strip(), FEATURES) for word in text.split("+"))


def spec_for(offered: Iterable[str]) -> str:
    """The spec of the program with all cases that a host can run which offers these CPUID features."""
    wanted = [name for name in FEATURES if name in set(offered)]
    return f"access:features={'+'.join(wanted)}" if wanted else "access"


def cases(features: Iterable[str]) -> tuple[Case, ...]:
    """The cases of the program with these features, in the order they run."""
    return tuple(case for _, case in _steps(frozenset(features)) if case is not None)


def left_out(features: Iterable[str]) -> dict[str, int]:
    """For each feature that is not among *features*: how many cases need it."""
    have = frozenset(features)
    settings = [case.setting for case in cases(FEATURES)]
    return {name: sum(name in s.needs for s in settings) for name in FEATURES if name not in have}


def judge(found: Sequence[Case], faults: Iterable[Seen]) -> Judgement:
    """Each case with the faults its operation met in one pass."""
    seen: dict[str, list[Seen]] = {}
    for fault in faults:
        seen.setdefault(fault.operation, []).append(fault)
    verdicts = tuple(Verdict(case, tuple(seen.pop(case.operation, ()))) for case in found)
    return Judgement(verdicts, tuple(fault for each in seen.values() for fault in each))


def _pages(with_key: bool) -> Iterator[Page]:
    """Every combination of U, W and NX, then pages whose fault or rights come from elsewhere."""
    number = 0
    for user, writable, nx in product((True, False), repeat=3):
        flags = ("U",) * user + ("W",) * writable + ("NX",) * nx
        yield _small(number, " ".join(flags) or "no flags", flags)
        number += 1
    if with_key:
        for flags in (("U", "W"), ("U",), ("W",)):
            yield _small(number, f"{' '.join(flags)} key 1", flags, key=1)
            number += 1
    yield _small(number, "U W absent", ("U", "W"), present=False)
    for name in ("U", "W", "NX"):
        yield from _narrowed(name)
    yield _large_reserved()


def _small(number: int, name: str, flags: Bits, key: int = 0, present: bool = True) -> Page:
    """A 4K page under tables that allow all."""
    pages = Pages(0x4000_0000 + (number << 12), _PA + (number << 12), flags=flags, key=key, present=present)
    leaf = sum(FLAGS[flag] for flag in flags) | _PRESENT * present | key << KEY_SHIFT
    return Page(name, pages, (_BRANCH, _BRANCH, _BRANCH, leaf))


def _narrowed(flag: str) -> Iterator[Page]:
    """A page that allows all, under an entry of level 2, 3 or 4 that does not."""
    number = 1 + ("U", "W", "NX").index(flag)
    # NX takes away by being set, the others by being clear.
    take, leave = ((flag,), ()) if flag == "NX" else ((), (flag,))
    for level in (2, 3, 4):
        # Each under an entry of its own of that level, so that no other page changes with it.
        va = {2: 0x5000_0000 + (number << 21), 3: (number + 1) << 32, 4: number << 40}[level]
        pages = Pages(va, _PA + 0x100000 + (number << 16) + (level << 12), flags=("U", "W"))
        entries = [_BRANCH] * 4
        entries[4 - level] = _BRANCH & ~sum(FLAGS[f] for f in leave) | sum(FLAGS[f] for f in take)
        where = f"U W under {'NX' if take else f'no {flag}'} at level {level}"
        yield Page(where, pages, tuple(entries), (WriteEntry("main", va, level, set=take, clear=leave),))


def _large_reserved() -> Page:
    """A 2M page with an address that is not a multiple of 2M: bit 13 is reserved there."""
    pages = Pages(0x6000_0000, 2 * _PA, size="2M", flags=("U", "W"))
    change = WriteEntry("main", pages.va, 2, pa=pages.pa | _RESERVED_IN_2M)
    return Page("U W with a reserved bit", pages, (_BRANCH, _BRANCH, _BRANCH | _LARGE | _RESERVED_IN_2M), (change,))


def _settings(features: frozenset[str]) -> Iterator[Setting]:
    every = [Setting(wp) for wp in (True, False)]
    every += [Setting(wp, smep=True) for wp in (True, False)]
    every += [Setting(wp, smap=True, ac=ac) for wp in (True, False) for ac in (False, True)]
    # Of keys 0 and 1: nothing denied; key 1's reads and writes; key 1's writes.
    every += [Setting(wp, pkru=pkru) for wp in (True, False) for pkru in (0, 0b0100, 0b1000)]
    every.append(Setting(True, smap=True, pkru=0b0100))
    return (setting for setting in every if setting.needs <= features)


def _preparation(features: frozenset[str]) -> tuple[Operation, ...]:
    changed = [page for page in _pages("pku" in features) if page.changes]
    return tuple(operation for page in changed for operation in (*page.changes, Invlpg(page.pages.va)))


def _steps(features: frozenset[str]) -> Iterator[tuple[Operation, Case | None]]:
    """The operations of the body with the case each is, if it is one."""
    index = 0
    pages = list(_pages("pku" in features))
    for setting in _settings(features):
        changes = list(_changes(setting, features))
        yield from ((change, None) for change in changes)
        index += len(changes)
        for page, kind, user in product(pages, Kind, (False, True)):
            operation = _access(page, kind, user)
            code = page_fault(page.entries, kind, user, setting.controls)
            yield operation, Case(f"vcpu 0 body {index}", setting, page.name, kind, user, operation.va, code)
            index += 1
        if setting.ac:
            yield Clac(), None
            index += 1


def _changes(setting: Setting, features: frozenset[str]) -> Iterator[Operation]:
    """From any other setting to this one."""
    yield WriteCr(0, set=("WP",)) if setting.wp else WriteCr(0, clear=("WP",))
    bits = {"smep": ("SMEP", setting.smep), "smap": ("SMAP", setting.smap), "pku": ("PKE", setting.pkru is not None)}
    on = tuple(bit for name, (bit, wanted) in bits.items() if name in features and wanted)
    off = tuple(bit for name, (bit, wanted) in bits.items() if name in features and not wanted)
    if on or off:
        yield WriteCr(4, set=on, clear=off)
    if setting.ac:
        yield Stac()
    if setting.pkru is not None:
        yield WritePkru(setting.pkru)


def _access(page: Page, kind: Kind, user: bool) -> Access:
    va = page.pages.va
    if kind is Kind.FETCH:
        return Fetch(va, user=user)
    return (
        Load(va + _READ_WRITE, user=user) if kind is Kind.READ else Store(va + _READ_WRITE, value=_RETURNS, user=user)
    )
