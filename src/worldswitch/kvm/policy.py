"""Everything about a host that decides what KVM does: kernel facts, processor, MMU, module parameters.

A :class:`Policy` is what every rule of this package takes. It is made by :meth:`Policy.of`, which refuses
contradictions, and prints itself as a table.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from worldswitch.errors import UnknownNameError, UsageError, printable
from worldswitch.kvm.cet import Offer, offered
from worldswitch.kvm.facts import Kernel, kernel, parameters
from worldswitch.kvm.nx import WORDS, understood

_ON = frozenset(("1", "y", "Y", "on", "true"))
_OFF = frozenset(("0", "n", "N", "off", "false"))

# Module parameters that some kernels lack, with the fact that says which have them.
_NEEDS = {
    "kvm.tdp_mmu": "tdp-mmu",
    "kvm.nx_huge_pages": "nx-huge-pages",
    "kvm.nx_huge_pages_recovery_ratio": "nx-recovery-thread",
    "kvm.nx_huge_pages_recovery_period_ms": "nx-recovery-period",
    "kvm_intel.cet": "cet-virtualized",
    "kvm_intel.mbec": "mbec-gmet",
    "kvm_amd.gmet": "mbec-gmet",
}
# Those the rules use; any other is accepted with a note.
_USED = frozenset(_NEEDS) | {
    "kvm_intel.ept",
    "kvm_intel.unrestricted_guest",
    "kvm_intel.allow_smaller_maxphyaddr",
    "kvm_amd.npt",
}

FEATURES: Mapping[str, str] = {
    "FSGSBASE": "FSGSBASE",
    "SMEP": "SMEP",
    "SMAP": "SMAP",
    "PKU": "PKE",
    "PCID": "PCIDE",
    "LA57": "LA57",
    "UMIP": "UMIP",
    "XSAVE": "OSXSAVE",
    "VMX": "VMXE",
    "LAM": "LAM_SUP",
    "SHSTK": "CET",
    "IBT": "CET",
}
"""CPUID features a guest may lack, and the CR4 bit each makes available."""


class Vendor(str, enum.Enum):  # noqa: UP042 - Python 3.9 has no StrEnum
    """Whose processor: decides between VMX and SVM."""

    __str__ = str.__str__

    INTEL = "intel"
    AMD = "amd"


class Mmu(str, enum.Enum):  # noqa: UP042 - Python 3.9 has no StrEnum
    """How guest memory is mapped: two-dimensional paging by the TDP or the legacy MMU, or shadow paging."""

    __str__ = str.__str__

    TDP = "tdp"
    LEGACY = "legacy"
    SHADOW = "shadow"


class Row(NamedTuple):
    """One line of a policy's table."""

    name: str
    value: str
    why: str


@dataclass(frozen=True)
class Policy:
    """A host as the rules see it.

    Attributes:
        kernel: The kernel's facts.
        vendor: VMX or SVM.
        mmu: Which MMU maps the guest.
        unrestricted_guest: VMX only: the guest may run without paging natively.
        cet: Which of SHSTK and IBT the guest's CPUID has; with one of them it may have CR4.CET.
        nx_huge_pages: ``auto``, ``off``, ``force`` or ``never``, as the kernel understands what was set.
        favordynmods: cgroup attach does not wait for an RCU grace period.
        hidden: CPUID features the guest does not have although the host does.
        settings: What was set explicitly: full name and value.
        notes: Settings that have no effect, and why.
    """

    kernel: Kernel
    vendor: Vendor
    mmu: Mmu
    unrestricted_guest: bool
    cet: frozenset[str]
    nx_huge_pages: str = "auto"
    favordynmods: bool = False
    hidden: frozenset[str] = frozenset()
    settings: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def tdp(self) -> bool:
        """Two-dimensional paging (EPT or NPT) is in use."""
        return self.mmu is not Mmu.SHADOW

    def has(self, fact: str) -> bool:
        """Whether *fact* holds of the kernel."""
        return self.kernel.has(fact)

    @classmethod
    def of(
        cls,
        kernel_or_spec: Kernel | str,
        cpu: str = "intel",
        mmu: str = "default",
        settings: Iterable[str] | Mapping[str, str] = (),
    ) -> Policy:
        """The policy of a kernel on a processor.

        Args:
            kernel_or_spec: A kernel or what names one (see :func:`worldswitch.kvm.facts.kernel`).
            cpu: ``intel`` or ``amd``, one that has every feature the kernel can offer.
            mmu: ``default`` (the kernel's own choice), ``tdp``, ``legacy`` or ``shadow``.
            settings: ``NAME=VALUE`` each, or a mapping. A bare name is looked up in kvm, then in the vendor's
                module; ``kvm.x``, ``kvm_intel.x`` and ``kvm_amd.x`` are exact; besides ``favordynmods``,
                ``cgroup`` and ``cpuid.FEATURE``.

        Raises:
            UnknownNameError: A kernel, processor, MMU, parameter or feature that does not exist.
            UsageError: A value that makes no sense, or settings that contradict each other.
        """
        chosen = kernel(kernel_or_spec) if isinstance(kernel_or_spec, str) else kernel_or_spec
        vendor = Vendor(_one_of("processor", cpu, list(Vendor)))
        given = _Settings.parse(settings, chosen, vendor)
        kind = _mmu(chosen, vendor, _one_of("MMU", mmu, ["default", *Mmu]), given)
        unrestricted = _unrestricted(vendor, kind, given)
        favor = given.switch("favordynmods") or False
        if favor and not chosen.has("cgroup-favordynmods"):
            raise UsageError(f"favordynmods=1: {chosen} has no such option, and needs none (it never waits there)")
        return cls(
            kernel=chosen,
            vendor=vendor,
            mmu=kind,
            unrestricted_guest=unrestricted,
            cet=_cet(chosen, vendor, kind, unrestricted, given),
            nx_huge_pages=_nx(chosen, vendor, given),
            favordynmods=favor,
            hidden=given.hidden,
            settings=tuple(given.values.items()),
            notes=tuple(given.notes),
        )

    def table(self) -> list[Row]:
        """The policy as rows of name, value and where the value is from."""
        module = "kvm_intel.ept" if self.vendor is Vendor.INTEL else "kvm_amd.npt"
        given = dict(self.settings)
        default = "on" if self.has("tdp-mmu-default") else "off"
        rows = [
            Row("kernel", str(self.kernel), "; ".join(self.kernel.notes)),
            Row("cpu", self.vendor, ""),
            Row("mmu", self.mmu, f"tdp_mmu is {default} unless set" if self.has("tdp-mmu") else "no TDP MMU"),
            Row(module, "Y" if self.tdp else "N", "set" if module in given else ""),
        ]
        if self.vendor is Vendor.INTEL:
            set_here = "set" if "kvm_intel.unrestricted_guest" in given else ""
            rows.append(Row("unrestricted_guest", "Y" if self.unrestricted_guest else "N", set_here))
        rows.append(
            Row(
                "CR4.CET for guests",
                f"yes ({', '.join(sorted(self.cet))})" if self.cet else "no",
                self.kernel.origins["cet-virtualized"],
            )
        )
        rows.append(Row("nx_huge_pages", self.nx_huge_pages, "set" if "kvm.nx_huge_pages" in given else "default"))
        if self.has("cgroup-favordynmods"):
            rows.append(Row("favordynmods", "Y" if self.favordynmods else "N", ""))
        rows += [Row(f"cpuid.{feature}", "0", "set") for feature in sorted(self.hidden)]
        rows += [Row(name, value, "set") for name, value in self.settings if name not in {row.name for row in rows}]
        return rows


@dataclass
class _Settings:
    """Settings by full name, while a policy is being made."""

    values: dict[str, str]
    hidden: frozenset[str]
    notes: list[str]

    @classmethod
    def parse(cls, settings: Iterable[str] | Mapping[str, str], chosen: Kernel, vendor: Vendor) -> _Settings:
        pairs = settings.items() if isinstance(settings, Mapping) else [_split(text) for text in settings]
        values: dict[str, str] = {}
        hidden: set[str] = set()
        notes: list[str] = []
        for name, value in pairs:
            full = _full_name(name, vendor)
            if values.get(full, value) != value:
                raise UsageError(f"{full} is set to {values[full]} and to {printable(value)}; say one of them")
            values[full] = value
            if full.startswith("cpuid."):
                if not _switch(full, value):
                    hidden.add(full.removeprefix("cpuid."))
            elif full not in ("favordynmods", "cgroup"):
                needs = _NEEDS.get(full)
                if needs and not chosen.has(needs):
                    raise UsageError(
                        f"{full}={printable(value)}: {chosen} has no such parameter ({chosen.origins[needs]})"
                    )
                if full not in _USED:
                    notes.append(f"{full}: no rule here depends on it")
        return cls(values, frozenset(hidden), notes)

    def switch(self, name: str) -> bool | None:
        """A boolean setting, None if not set."""
        value = self.values.get(name)
        return None if value is None else _switch(name, value)


def _split(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"{printable(text)!r} is not NAME=VALUE, such as tdp_mmu=0 or kvm_intel.ept=0")
    return name.strip(), value.strip()


def _full_name(name: str, vendor: Vendor) -> str:
    own, other = ("kvm_intel", "kvm_amd") if vendor is Vendor.INTEL else ("kvm_amd", "kvm_intel")
    if name in ("favordynmods", "cgroup"):
        return name
    prefix, point, rest = name.partition(".")
    if prefix == "cpuid" and point:
        return "cpuid." + _one_of("CPUID feature", rest.upper(), list(FEATURES))
    if point and prefix in parameters():
        _one_of(f"parameter of {prefix}", rest, sorted(parameters()[prefix]))
        if prefix == other:
            raise UsageError(f"{name} belongs to the module of the other vendor; this policy is for {vendor}")
        return name
    for module in ("kvm", own):
        if name in parameters()[module]:
            return f"{module}.{name}"
    known = sorted(parameters()["kvm"] | parameters()[own]) + [f"cpuid.{feature}" for feature in FEATURES]
    raise UnknownNameError("setting", name, [*known, "favordynmods", "cgroup"], f"Looked up in kvm and {own}")


def _switch(name: str, value: str) -> bool:
    if value in _ON:
        return True
    if value in _OFF:
        return False
    raise UsageError(f"{name}={printable(value)}: say 1 or 0")


def _one_of(kind: str, value: str, known: list[str]) -> str:
    if value not in known:
        raise UnknownNameError(kind, value, known, f"One of {', '.join(known)}" if len(known) < 8 else "")
    return value


def _mmu(chosen: Kernel, vendor: Vendor, wanted: str, given: _Settings) -> Mmu:
    paging = "kvm_intel.ept" if vendor is Vendor.INTEL else "kvm_amd.npt"
    two_dimensional, tdp_mmu = given.switch(paging), given.switch("kvm.tdp_mmu")
    if wanted == Mmu.SHADOW or (wanted == "default" and two_dimensional is False):
        if two_dimensional:
            raise UsageError(f"mmu shadow means {paging}=0, but {paging}=1 is set")
        if tdp_mmu:
            given.notes.append("kvm.tdp_mmu=1 has no effect under shadow paging")
        return Mmu.SHADOW
    if two_dimensional is False:
        raise UsageError(f"mmu {wanted} needs {paging}=1, but {paging}=0 is set")
    if wanted == "default":
        on = chosen.has("tdp-mmu-default") if tdp_mmu is None else tdp_mmu
        return Mmu.TDP if on else Mmu.LEGACY
    if wanted == Mmu.TDP and not chosen.has("tdp-mmu"):
        raise UsageError(f"mmu tdp: {chosen} has no TDP MMU ({chosen.origins['tdp-mmu']}); say legacy or shadow")
    if tdp_mmu is not None and tdp_mmu != (wanted == Mmu.TDP):
        raise UsageError(
            f"mmu {wanted} means kvm.tdp_mmu={int(wanted == Mmu.TDP)}, but kvm.tdp_mmu={int(tdp_mmu)} is set"
        )
    return Mmu(wanted)


def _unrestricted(vendor: Vendor, mmu: Mmu, given: _Settings) -> bool:
    if vendor is Vendor.AMD:
        return False
    value = given.switch("kvm_intel.unrestricted_guest")
    if value and mmu is Mmu.SHADOW:
        raise UsageError("unrestricted_guest=1 needs EPT, but the guest is under shadow paging (ept=0)")
    return mmu is not Mmu.SHADOW if value is None else value


def _cet(chosen: Kernel, vendor: Vendor, mmu: Mmu, unrestricted: bool, given: _Settings) -> frozenset[str]:
    host = Offer(
        amd=vendor is Vendor.AMD,
        tdp=mmu is not Mmu.SHADOW,
        unrestricted_guest=unrestricted,
        cet=given.switch("kvm_intel.cet") is not False,
        smaller_maxphyaddr=bool(given.switch("kvm_intel.allow_smaller_maxphyaddr")),
    )
    return offered(chosen, host) - given.hidden


def _nx(chosen: Kernel, vendor: Vendor, given: _Settings) -> str:
    value = given.values.get("kvm.nx_huge_pages")
    if value is None:
        return "never" if chosen.has("nx-never-unless-affected") and vendor is Vendor.AMD else "auto"
    word = understood(chosen.has, value.encode(errors="surrogateescape"))
    if word is None:
        known = ", ".join(WORDS if chosen.has("nx-never") else WORDS[:3])
        raise UsageError(f"nx_huge_pages={printable(value)}: {chosen} refuses it (EINVAL); say {known}, 1 or 0")
    if value == "never" and word == "off":
        given.notes.append(f"{chosen} reads nx_huge_pages=never as off ({chosen.origins['nx-never']})")
    return word
