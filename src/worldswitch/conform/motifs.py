"""Short sequences of operations that are worth meeting each other, made by chance within the bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from worldswitch.conform import bounds
from worldswitch.guest import operations as ops
from worldswitch.guest.operations import FLAGS, Operation
from worldswitch.guest.program import State
from worldswitch.x86.msrs import MSRS
from worldswitch.x86.registers import EFER, bit_mask

PAGE = 0x1000
Ops = list[Operation]
_NXE = bit_mask(EFER, "NXE")
_UPGRADES = (("set", "P"), ("set", "W"), ("clear", "NX"), ("set", "A"), ("set", "D"))
_RESTRICTIONS = (("clear", "P"), ("clear", "W"), ("clear", "U"), ("set", "NX"), ("set", "U"), ("clear", "A"),
                 ("clear", "D"), ("toggle", "W"), ("toggle", "U"), ("toggle", "P"), ("toggle", "NX"))  # fmt: skip
_MSRS = ("FS_BASE", "GS_BASE", "KERNEL_GS_BASE", "LSTAR", "SYSENTER_ESP", "SYSENTER_EIP")
_MOV_DR = (0, 1, 2, 3)


@dataclass
class Scene:
    """What the operations of one program may refer to.

    Attributes:
        slots: Addresses of pages of 4 KiB, mapped in every space, present or not; *large*, of 2 MiB.
        tables: (space, address) -> guest-physical address of the page table (level 1) that maps the slot.
        pcid: CR4.PCIDE may be set. *globals_*: pages may be global.
        nx: Pages may have NX. If they may not, EFER.NXE may be off.
        reserved: Entries may have reserved bits, NX with EFER.NXE off among them.
        kept: Operations that keep a value so far.
    """

    random: Random
    features: frozenset[str]
    state: State
    spaces: Sequence[str]
    slots: Sequence[int]
    large: Sequence[int]
    tables: dict[tuple[str, int], int]
    pcid: bool
    globals_: bool
    user: float
    nx: bool = True
    reserved: bool = False
    kept: int = 0
    in_fix: bool = False
    weights: dict[str, int] = field(default_factory=dict)

    def chance(self, share: float) -> bool:
        """True that often."""
        return self.random.random() < share

    def keep(self) -> bool:
        """Whether a value is kept: half of them, while there is room."""
        if self.kept >= bounds.KEPT_IN_BODY or self.chance(0.5):
            return False
        self.kept += 1
        return True

    def address(self) -> int:
        """A page: mostly one that programs are about, now and then one that nothing maps."""
        if self.chance(0.04):
            return self.random.choice((0x4010_0000, 0x1234_5000, 0x8000_0000_0000, bounds.ALIAS + 0x80000))
        if self.chance(0.04):
            return bounds.ALIAS + PAGE * self.random.randrange(bounds.FRAMES)
        if self.large and self.chance(0.2):
            return self.random.choice(self.large) + PAGE * self.random.randrange(4)
        return self.random.choice(self.slots)

    def space(self) -> str:
        """A space, mostly the first."""
        return self.spaces[0] if self.chance(0.5) else self.random.choice(self.spaces)


def _walk(scene: Scene, va: int) -> dict[str, int]:
    """Sometimes over several pages in turn."""
    near, count = bounds.SLOTS["near"]
    if va == near and scene.chance(0.5):
        return {"stride": PAGE, "span": scene.random.choice((2, 4, count))}
    return {}


def access(scene: Scene) -> Ops:
    """A load, a store or a fetch."""
    va, user = scene.address(), not scene.in_fix and scene.chance(scene.user)
    return [_access(scene, va, user)]


def _access(scene: Scene, va: int, user: bool, kind: str = "") -> Operation:
    kind = kind or scene.random.choice(("load", "load", "store", "store", "store", "fetch"))
    walk = _walk(scene, va)
    if kind == "fetch" and va == bounds.NOT_CANONICAL:
        kind = "load"
    if kind == "fetch":
        return ops.Fetch(va + bounds.CODE_START + 16 * scene.random.randrange(64), user=user, **walk)
    size = scene.random.choice((1, 2, 4, 8, 8))
    offset = scene.random.choice((0, 8, 16, 24))
    if not user and scene.chance(0.04):
        offset, walk = PAGE - size // 2, {}
    if kind == "load":
        return ops.Load(va + offset, user=user, size=size, keep=scene.keep(), **walk)
    if offset > bounds.DATA_END:
        size, offset = 8, 12
    return ops.Store(va + offset, user=user, size=size, value=scene.random.getrandbits(8 * size), **walk)


def accesses(scene: Scene) -> Ops:
    """Several to one page, by both privilege levels."""
    va = scene.address()
    return [
        _access(scene, va, not scene.in_fix and scene.chance(max(scene.user, 0.3)))
        for _ in range(scene.random.randint(2, 4))
    ]


def flush_all(scene: Scene) -> Ops:
    """What makes the processor forget every translation."""
    if "invpcid" in scene.features and scene.chance(0.5):
        return [ops.Invpcid(2)]
    return [ops.WriteCr(4, toggle=("PGE",)), ops.WriteCr(4, toggle=("PGE",))]


def _forget(scene: Scene, vas: Sequence[int]) -> Ops:
    """What makes it forget those of some pages, in whatever space."""
    if scene.pcid or len(vas) > 2 or scene.chance(0.1):
        return flush_all(scene)
    return [ops.Invlpg(va) for va in vas]


def write_cr0(scene: Scene) -> Ops:
    """CR0: one or two bits, WP above all."""
    if scene.chance(0.1):
        return [ops.WriteCr(0, value=scene.state.cr0)]
    names = ["WP"] if scene.chance(0.5) else [scene.random.choice(bounds.CR0_BITS)]
    if scene.chance(0.2):
        names = list(dict.fromkeys((*names, scene.random.choice(bounds.CR0_BITS))))
    return [_cr(scene, 0, names)]


def write_cr4(scene: Scene) -> Ops:
    """CR4: one or two bits."""
    if scene.chance(0.04):
        return [ops.WriteCr(4, value=scene.state.cr4 | bounds.UNNAMED_CR4)]
    if scene.chance(0.1):
        return [ops.WriteCr(4, value=scene.state.cr4)]
    there = [name for name in bounds.CR4_BITS if bounds.NEEDS.get(name, "") in ("", *scene.features)]
    there = [name for name in there if name != "PCIDE" or scene.pcid]
    common = [name for name in ("SMEP", "SMAP", "PGE", "PKE", "CET", "PCIDE") if name in there]
    names = [scene.random.choice(common if scene.chance(0.7) else there)]
    if scene.chance(0.2):
        names = list(dict.fromkeys((*names, scene.random.choice(there))))
    return [_cr(scene, 4, names)]


def _cr(scene: Scene, cr: int, names: Sequence[str]) -> Operation:
    change = {scene.random.choice(("toggle", "toggle", "set", "clear")): tuple(names)}
    return ops.WriteCr(cr, None, **change)


def _entry(
    space: str, va: int, level: int, how: str, name: str, pa: int | None = None, key: int | None = None
) -> Operation:
    change = {how: (name,)}
    return replace(ops.WriteEntry(space, va, level, pa=pa, key=key), **change)  # type: ignore[arg-type]


def write_protected(scene: Scene) -> Ops:
    """A store with CR0.WP off, as a hardened kernel makes it."""
    va = scene.random.choice(scene.slots)
    body: Ops = [ops.WriteCr(0, clear=("WP",)), _access(scene, va, False, "store"), ops.WriteCr(0, set=("WP",))]
    if scene.chance(0.5):
        body.append(_access(scene, va, not scene.in_fix and scene.chance(scene.user)))
    return body


def switch(scene: Scene) -> Ops:
    """MOV to CR3, mostly with an access after it."""
    tag = scene.random.randrange(4) if scene.pcid and scene.chance(0.8) else 0
    noflush = scene.pcid and scene.chance(0.5) and tag > 0
    space = scene.random.choice(scene.spaces)
    # Each space has PCIDs of its own, so that none finds what another left; 0 is everybody's, and flushed.
    pcid = 1 + scene.spaces.index(space) + bounds.SPACES * (tag & 1) if tag else 0
    found: Ops = [ops.SwitchSpace(space, pcid, noflush)]
    return found + access(scene) if scene.chance(0.7) else found


def entry(scene: Scene) -> Ops:
    """A change of an entry, what must follow it, and an access."""
    large = bool(scene.large) and scene.chance(0.15)
    va = scene.random.choice(scene.large if large else scene.slots)
    level = 2 if large or scene.chance(0.12) else 1
    if not large and scene.chance(0.04):
        level = scene.random.choice((3, 4))
    found = _change(scene, scene.space(), va, level)
    if scene.reserved and not large and level == 1 and scene.chance(0.3):
        found = _reserved(scene, va)
    return found + (accesses(scene) if scene.chance(0.3) else [_access(scene, va, _at_cpl3(scene))])


def _at_cpl3(scene: Scene) -> bool:
    return not scene.in_fix and scene.chance(scene.user)


def _change(scene: Scene, space: str, va: int, level: int) -> Ops:
    if scene.chance(0.35):
        how, name = scene.random.choice(_UPGRADES)
        if level == 1 or name != "D":
            return [_entry(space, va, level, how, name)]
    how, name = scene.random.choice([one for one in _RESTRICTIONS if scene.nx or one[1] != "NX"])
    pa = key = None
    if level == 1 and scene.chance(0.2):
        pa = bounds.FRAME_BASE + PAGE * scene.random.randrange(bounds.FRAMES)
    if level == 1 and scene.globals_ and scene.chance(0.15):
        how, name = "toggle", "G"
    if level == 1 and "pku" in scene.features and scene.chance(0.15):
        key = scene.random.randrange(4)
    vas = [va] if level == 1 or va in scene.large else list(scene.slots)
    return [_entry(space, va, level, how, name, pa, key), *_forget(scene, vas)]


def _reserved(scene: Scene, va: int) -> Ops:
    """A reserved bit for a while."""
    space, frame = scene.spaces[0], bounds.FRAME_BASE + PAGE * scene.random.randrange(bounds.FRAMES)
    return [
        ops.WriteEntry(space, va, pa=frame | bounds.RESERVED_PA),
        *_forget(scene, [va]),
        _access(scene, va, _at_cpl3(scene)),
        ops.WriteEntry(space, va, pa=frame),
        *_forget(scene, [va]),
    ]


def flood(scene: Scene) -> Ops:
    """Many stores into one page table, with or without a use of it between."""
    space, count = scene.space(), scene.random.randint(3, bounds.FLOOD)
    near = [va for va in scene.slots if va >> 21 == scene.slots[0] >> 21]
    found: Ops = []
    for _ in range(count):
        how, name = scene.random.choice((("set", "W"), ("set", "P"), ("set", "A"), ("clear", "NX"), ("set", "D")))
        va = near[0] if scene.chance(0.4) else scene.random.choice(near)
        found.append(_entry(space, va, 1, how, name))
        if scene.chance(0.15):
            found.append(_access(scene, va, _at_cpl3(scene)))
    return found + access(scene)


def through_alias(scene: Scene) -> Ops:
    """A page of the guest becomes, for a moment, one that shows a page table, and an entry is stored through it."""
    va, target = scene.random.choice(scene.slots), scene.random.choice(scene.slots)
    space = scene.spaces[0]
    table = scene.tables[space, target]
    frame, home = (bounds.FRAME_BASE + PAGE * scene.random.randrange(bounds.FRAMES) for _ in range(2))
    flags = (
        FLAGS["P"] | FLAGS["A"] | (FLAGS["W"] if scene.chance(0.7) else 0) | (FLAGS["U"] if scene.chance(0.7) else 0)
    )
    store = ops.Store(va + 8 * (target >> 12 & 511), value=frame | flags)
    return [
        ops.WriteEntry(space, va, pa=table, set=("P", "W")),
        *_forget(scene, [va]),
        *([store] if target != va else []),
        ops.Load(va + 8 * (target >> 12 & 511), keep=scene.keep()),
        ops.WriteEntry(space, va, pa=home),
        *_forget(scene, [va, target]),
        _access(scene, target, _at_cpl3(scene)),
    ]


def share(scene: Scene) -> Ops:
    """One space takes over a page table of another."""
    one, other = scene.random.choice(scene.spaces), scene.random.choice(scene.spaces)
    va = scene.random.choice(scene.slots)
    return [
        ops.WriteEntry(other, va, 2, pa=scene.tables[one, va]),
        *flush_all(scene),
        ops.SwitchSpace(other),
        _access(scene, va, _at_cpl3(scene)),
    ]


def efer(scene: Scene) -> Ops:
    """EFER.NXE off or on, where NX may be a reserved bit or is not used; and a fetch."""
    value = scene.state.efer ^ (_NXE if (scene.reserved or not scene.nx) and scene.chance(0.6) else 0)
    if scene.chance(0.05):
        value |= 1 << 40
    return [ops.WriteMsr(EFER, value), *flush_all(scene), _access(scene, scene.address(), _at_cpl3(scene), "fetch")]


def msr(scene: Scene) -> Ops:
    """A register read or written, also one that is not there."""
    number = 0xDEAD if scene.chance(0.1) else MSRS[scene.random.choice(_MSRS)]
    if number == 0xDEAD and scene.chance(0.5):
        return [ops.ReadMsr(number)]
    value = scene.random.choice((0, 0x1000, 0x7FFF_FFFF_F000, 0xFFFF_8000_0000_0000))
    write: Ops = [ops.WriteMsr(number, value)]
    return [*write, ops.ReadMsr(number, keep=scene.keep())] if scene.chance(0.5) else write


def single(scene: Scene) -> Ops:
    """One of the instructions that a hypervisor may want to see."""
    choices: list[Callable[[], Operation]] = [
        ops.Clts,
        lambda: ops.Lmsw(scene.random.randrange(16)),
        lambda: ops.Cpuid(scene.random.choice((0, 1, 7))),
        lambda: ops.ReadCr(scene.random.choice((0, 2, 3, 4, 8)), keep=scene.keep()),
        lambda: ops.WriteCr(8, value=scene.random.choice((0, 3, 15, 16))),
        lambda: ops.Vmcall(scene.random.choice((1, 77)), keep=scene.keep()),
        lambda: ops.Out(0x80, 1),
        lambda: ops.In(0x80),
        ops.Hlt,
        lambda: ops.Invlpg(scene.address()),
        lambda: ops.Nop(scene.random.randint(1, 40)),
        lambda: ops.WriteDr(scene.random.choice(_MOV_DR), scene.random.getrandbits(40)),
        lambda: ops.ReadDr(scene.random.choice(_MOV_DR)),
    ]
    if "smap" in scene.features:
        choices += [ops.Stac, ops.Clac] * 2
    if "pku" in scene.features:
        choices += [
            lambda: ops.WritePkru(scene.random.getrandbits(8)),
            lambda: ops.ReadPkru(scene.keep()),
        ] * 2
    if "invpcid" in scene.features:
        choices += [lambda: ops.Invpcid(scene.random.randrange(4), scene.random.randrange(4), scene.address())] * 2
    if not scene.in_fix:
        choices.append(lambda: ops.SingleStep(scene.chance(0.5)))
    return [scene.random.choice(choices)()]


def user_block(scene: Scene) -> Ops:
    """Several things at CPL 3 in one go."""
    body: Ops = [_access(scene, scene.address(), True) for _ in range(scene.random.randint(1, 4))]
    body = [_there(one) for one in body]
    if scene.chance(0.2):
        body.append(ops.Cpuid(0))
    if "pku" in scene.features and scene.chance(0.3):
        body.insert(0, ops.WritePkru(scene.random.getrandbits(8)))
    return [ops.User(tuple(body))]


def _there(one: Operation) -> Operation:
    """The same, as it is written in a block that is at CPL 3 already."""
    return replace(one, user=False)  # type: ignore[call-arg]


def repeated(scene: Scene) -> Ops:
    """A block that repeats."""
    body = [one for _ in range(scene.random.randint(1, 2)) for one in pick(scene, inner=True)]
    return [ops.Repeat(scene.random.randint(*bounds.REPEATS), tuple(body))]


_CHOICES: tuple[tuple[Callable[[Scene], Ops], int, bool, bool], ...] = (
    # what, how often, whether in blocks too, whether in handlers too
    (access, 16, True, True),
    (accesses, 6, True, False),
    (entry, 16, True, True),
    (write_cr0, 9, True, True),
    (write_cr4, 9, True, True),
    (write_protected, 5, True, False),
    (switch, 8, True, True),
    (flood, 4, True, False),
    (through_alias, 4, True, False),
    (share, 2, True, False),
    (efer, 2, True, False),
    (msr, 3, True, True),
    (single, 12, True, True),
    (user_block, 5, True, False),
    (repeated, 6, False, False),
)


def pick(scene: Scene, inner: bool = False) -> Ops:
    """One sequence by chance; *inner*: of those that may stand in a block."""
    fit = [one for one in _CHOICES if (one[3] if scene.in_fix else one[2] or not inner)]
    (chosen,) = scene.random.choices(fit, [one[1] for one in fit])
    return chosen[0](scene)
