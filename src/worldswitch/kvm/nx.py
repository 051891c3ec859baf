"""The iTLB multihit mitigation as KVM's parameters show it: what a write means, what is read back, who may opt out.

A state machine of pure functions: :func:`load` gives the :class:`Parameters` of a freshly loaded kvm.ko, and
:func:`write` those after a write to one of the files in /sys/module/kvm/parameters. Kernels differ in facts, which
every function takes as *has*: ``Kernel.has``, or any function from a fact's id to a bool. Errors are the names of the
kernel's, such as ``"EPERM"``; an empty string is success. Needs nothing but Python 3.9.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from worldswitch.errors import UnknownNameError
from worldswitch.kvm.rules import rule

Has = Callable[[str], bool]

PERIOD_BEFORE_PARAMETER_MS = 60_000
"""How long the recovery thread of kernels without ``nx_huge_pages_recovery_period_ms`` waits."""
HOUR_MS = 3_600_000
MOST_PASSES_AN_HOUR = 3600
DEFAULT_RATIO = 60
PAGE_SIZE = 4096
"""So much of a write reaches the parameter (kernfs_fop_write_iter); the rest would be a second write."""

SWITCH, RATIO, PERIOD = "nx_huge_pages", "nx_huge_pages_recovery_ratio", "nx_huge_pages_recovery_period_ms"
NEEDS: Mapping[str, str] = {SWITCH: "nx-huge-pages", RATIO: "nx-recovery-thread", PERIOD: "nx-recovery-period"}
"""Parameter -> the fact that says which kernels have it."""
WORDS = ("auto", "off", "force", "never")
"""What :func:`understood` takes a text for."""


class NxHost(NamedTuple):
    """What decides besides the parameters.

    Attributes:
        multihit: The processor has the bug (X86_BUG_ITLB_MULTIHIT). Linux says so of Intel's that do not say
            ARCH_CAPABILITIES.PSCHANGE_MC_NO, Atoms and Xeon Phis aside, and of nobody else's.
        mitigations: The kernel was not booted with ``mitigations=off``.
        vmx: The processor has VMX and the firmware has not locked it away.
        realtime: The kernel is PREEMPT_RT.
    """

    multihit: bool
    mitigations: bool = True
    vmx: bool = True
    realtime: bool = False


class Parameters(NamedTuple):
    """The parameters of a kvm.ko.

    Attributes:
        mitigation: Huge pages are split on execution; None until the module has resolved ``auto``.
        never: ``never`` was written: nothing can be written any more until kvm.ko is loaded anew.
        ratio: One page in so many is recovered in each period, 0 for none.
        period_ms: As written; 0 leaves it to the ratio.
    """

    mitigation: bool | None
    never: bool = False
    ratio: int = DEFAULT_RATIO
    period_ms: int = 0


class Written(NamedTuple):
    """What a write did.

    Attributes:
        state: The parameters after it.
        error: Name of the error, ``""`` if it succeeded.
        zaps: All page tables of every VM were dropped, as the mitigation was switched.
        wakes: The recovery thread of every VM was woken.
    """

    state: Parameters
    error: str = ""
    zaps: bool = False
    wakes: bool = False


def truth(has: Has, text: bytes) -> bool | None:
    """The boolean *text* is for the kernel, by its first letters alone (lib/kstrtox.c, kstrtobool); None if none."""
    first, second = text[:1].lower(), text[1:2].lower()
    if first == b"o":
        return {b"n": True, b"f": False}.get(second)
    yes, no = b"y1", b"n0"
    if has("kstrtobool-true-false"):
        yes, no = yes + b"t", no + b"f"
    if has("kstrtobool-enable-disable"):
        yes, no = yes + b"e", no + b"d"
    if not first:
        return None
    return True if first in yes else False if first in no else None


@rule(
    id="nx-parameter-words",
    sentence="nx_huge_pages takes off, force, auto and, where known, never, with at most one newline after; any other "
    "text is a boolean by its first letters.",
    depends=("nx-never", "kstrtobool-enable-disable", "kstrtobool-true-false", "nx-huge-pages"),
    tested="tests/kvm/test_nx.py::test_each_kernel_understands_its_words",
)
def understood(has: Has, text: bytes) -> str | None:
    """Which of :data:`WORDS` *text* is when written to nx_huge_pages; None if it is nonsense (EINVAL).

    The text ends at a NUL. Words count whole: ``"never\\n"`` is never, ``"never "`` a boolean that begins with n.
    """
    seen = text[:PAGE_SIZE].partition(b"\0")[0]
    word = seen[:-1] if seen.endswith(b"\n") else seen
    words = WORDS if has("nx-never") else WORDS[:3]
    for known in words:
        if word == known.encode():
            return known
    value = truth(has, seen)
    return None if value is None else "force" if value else "off"


def number(text: bytes) -> tuple[int, str]:
    """The unsigned int *text* is for the kernel, and the error if it is none (kstrtouint with base 0)."""
    seen = text[:PAGE_SIZE].partition(b"\0")[0]
    digits = seen[1:] if seen.startswith(b"+") else seen
    base, alphabet = 10, b"0123456789"
    if digits[:2].lower() == b"0x" and digits[2:3].lower() in tuple(b"%x" % n for n in range(16)):
        base, alphabet, digits = 16, b"0123456789abcdef", digits[2:]
    elif digits.startswith(b"0"):
        base, alphabet = 8, b"01234567"
    length = 0
    while digits[length : length + 1].lower() in tuple(alphabet[n : n + 1] for n in range(base)):
        length += 1
    if not length:
        return 0, "EINVAL"
    value = int(digits[:length], base)
    # An overflow is noticed before what follows the digits is looked at; that it is no 32 bits, after.
    if value >> 64:
        return 0, "ERANGE"
    if digits[length:] not in (b"", b"\n"):
        return 0, "EINVAL"
    return (0, "ERANGE") if value >> 32 else (value, "")


@rule(
    id="nx-auto",
    sentence="nx_huge_pages=auto splits huge pages where the processor has the iTLB multihit bug, unless the kernel "
    "was booted with mitigations=off.",
    depends=("nx-huge-pages",),
    tested="tests/kvm/test_nx.py::test_auto_asks_the_processor_and_the_command_line",
)
def auto(host: NxHost) -> bool:
    """What ``auto`` means on *host* (mmu.c, get_nx_auto_mode)."""
    return host.multihit and host.mitigations


@rule(
    id="nx-vulnerability-file",
    sentence="The itlb_multihit file of sysfs tells the mitigation that KVM uses at the moment: with never, or off, an "
    "affected processor with VMX in use reads vulnerable.",
    depends=("nx-huge-pages",),
    tested="tests/kvm/test_nx.py::test_the_vulnerability_file",
)
def vulnerability(host: NxHost, mitigation: bool | None, vmx_in_use: bool = True) -> str:
    """What /sys/devices/system/cpu/vulnerabilities/itlb_multihit reads (bugs.c, itlb_multihit_show_state).

    Args:
        host: Processor and kernel.
        mitigation: ``Parameters.mitigation``.
        vmx_in_use: The CPU that reads has VMX switched on: always while a VM exists, and since Linux 6.12 with
            ``kvm.enable_virt_at_load=0`` only then.
    """
    if not host.multihit:
        return "Not affected"
    if not host.vmx:
        return "KVM: Mitigation: VMX unsupported"
    if not vmx_in_use:
        return "KVM: Mitigation: VMX disabled"
    # Unresolved, the flag that this file reads is still unset.
    return "KVM: Mitigation: Split huge pages" if mitigation else "KVM: Vulnerable"


def load(has: Has, host: NxHost, given: Mapping[str, bytes] | None = None) -> Written:
    """The parameters of a kvm.ko that is being loaded with *given* ones (of modprobe or the kernel command line).

    With an error the module is not loaded. No VM can exist yet, so ``never`` is never refused.
    """
    state = Parameters(None, ratio=0 if host.realtime else DEFAULT_RATIO)
    chosen = dict(given or {})
    if has("nx-never-unless-affected") and not host.multihit:
        chosen.setdefault(SWITCH, b"never")
    for name, text in chosen.items():
        # One the module does not know is ignored, with a line in the log.
        if name in NEEDS and has(NEEDS[name]):
            done = _set(has, host, state, name, text, vms=0)
            if done.error:
                return Written(state, done.error)
            state = done.state
    if state.mitigation is None:
        state = state._replace(mitigation=auto(host))
    return Written(state)


def write(has: Has, host: NxHost, state: Parameters, name: str, text: bytes, vms: int = 0) -> Written:
    """What writing *text* to the parameter *name* does while *vms* VMs exist.

    Raises:
        UnknownNameError: No kernel has a parameter of that name among those here.
    """
    if name not in NEEDS:
        raise UnknownNameError("parameter", name, NEEDS, f"One of {', '.join(NEEDS)}")
    if not has(NEEDS[name]):
        return Written(state, "ENOENT")
    if not text:
        # sysfs_kf_write: nothing written is nothing asked, even after never.
        return Written(state)
    return _set(has, host, state, name, text, vms)


def _set(has: Has, host: NxHost, state: Parameters, name: str, text: bytes, vms: int) -> Written:
    return write_switch(has, host, state, text, vms) if name == SWITCH else write_recovery(has, state, name, text)


@rule(
    id="nx-parameter-write",
    sentence="Writing nx_huge_pages fails with EPERM after never, with EBUSY for never while a VM exists, with EINVAL "
    "for nonsense, in this order; a switch drops the page tables of all VMs.",
    depends=("nx-never", "nx-huge-pages"),
    tested="tests/kvm/test_nx.py::test_errors_of_a_write_and_their_order",
)
def write_switch(has: Has, host: NxHost, state: Parameters, text: bytes, vms: int) -> Written:
    """What setting nx_huge_pages to *text* does (mmu.c, set_nx_huge_pages)."""
    if state.never:
        return Written(state, "EPERM")
    word = understood(has, text)
    if word is None:
        return Written(state, "EINVAL")
    if word == "never" and vms:
        return Written(state, "EBUSY")
    on = auto(host) if word == "auto" else word == "force"
    # Before auto is resolved the old value counts as true.
    switched = on != (state.mitigation is not False)
    return Written(state._replace(mitigation=on, never=word == "never"), zaps=switched, wakes=switched)


@rule(
    id="nx-recovery-write",
    sentence="Writing a recovery parameter fails with EPERM after never, and as any unsigned int does; it wakes the "
    "threads where recovery begins or its period gets shorter.",
    depends=("nx-recovery-period", "nx-never", "nx-recovery-thread"),
    tested="tests/kvm/test_nx.py::test_recovery_parameters_are_unsigned_ints",
)
def write_recovery(has: Has, state: Parameters, name: str, text: bytes) -> Written:
    """What setting the recovery parameter *name* to *text* does (set_nx_huge_pages_recovery_param)."""
    if state.never:
        return Written(state, "EPERM")
    value, error = number(text)
    if error:
        return Written(state, error)
    after = state._replace(ratio=value) if name == RATIO else state._replace(period_ms=value)
    old, new = recovery_period(has, state), recovery_period(has, after)
    # An unresolved mitigation counts as on; there is no thread to wake then.
    return Written(after, wakes=new is not None and (old is None or old > new))


def read(has: Has, state: Parameters, name: str) -> str:
    """What the parameter *name* reads, without its newline.

    Raises:
        UnknownNameError: This kernel has no such parameter.
    """
    if name not in NEEDS or not has(NEEDS[name]):
        raise UnknownNameError("parameter", name, [one for one in NEEDS if has(NEEDS[one])], "This kernel lacks it")
    if name != SWITCH:
        return str(state.ratio if name == RATIO else state.period_ms)
    return read_switch(has, state)


@rule(
    id="nx-parameter-read",
    sentence="nx_huge_pages reads never after never, else Y or N: auto, off and force cannot be told apart.",
    depends=("nx-never", "nx-reads-auto", "nx-huge-pages"),
    tested="tests/kvm/test_nx.py::test_what_is_read_back",
)
def read_switch(has: Has, state: Parameters) -> str:
    """What nx_huge_pages reads, without its newline (mmu.c, get_nx_huge_pages)."""
    if state.never:
        return "never"
    if state.mitigation is None and has("nx-reads-auto"):
        return "auto"
    return "N" if state.mitigation is False else "Y"


@rule(
    id="nx-recovery-period",
    sentence="A recovery pass comes every period_ms, or if that is 0 ratio times an hour, but at most once a second; "
    "none with ratio 0 or without the mitigation.",
    depends=("nx-recovery-period", "nx-recovery-thread"),
    tested="tests/kvm/test_nx.py::test_the_recovery_period",
)
def recovery_period(has: Has, state: Parameters) -> int | None:
    """Milliseconds between two passes of a VM's recovery thread; None if there are none.

    Since ``period_ms`` exists (mmu.c, calc_nx_huge_pages_recovery_period) it has no lower bound but 1.
    """
    if state.mitigation is False or not state.ratio:
        return None
    if not has("nx-recovery-period"):
        return PERIOD_BEFORE_PARAMETER_MS
    return state.period_ms or HOUR_MS // min(state.ratio, MOST_PASSES_AN_HOUR)


@rule(
    id="nx-opt-out",
    sentence="A VM opts out of the mitigation by KVM_CAP_VM_DISABLE_NX_HUGE_PAGES: EINVAL for flags, EPERM without "
    "CAP_SYS_BOOT in the initial namespace, EINVAL for an argument or once it has a vCPU, in this order.",
    depends=("nx-opt-out",),
    tested="tests/kvm/test_nx.py::test_opting_out_checks_in_this_order",
)
def opt_out(has: Has, *, flags: int = 0, cap_sys_boot: bool = True, argument: int = 0, vcpus: int = 0) -> str:
    """The error of KVM_ENABLE_CAP with KVM_CAP_VM_DISABLE_NX_HUGE_PAGES (220); ``""`` is success, and for good."""
    if not has("nx-opt-out") or flags:
        return "EINVAL"
    if not cap_sys_boot:
        return "EPERM"
    return "EINVAL" if argument or vcpus else ""


def splits(state: Parameters, opted_out: bool = False) -> bool:
    """Whether a VM's huge pages are split on execution (is_nx_huge_page_enabled)."""
    return bool(state.mitigation) and not opted_out
