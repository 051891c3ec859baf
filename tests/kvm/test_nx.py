"""The NX parameters of kvm.ko. Expected results: nx_lab.toml, recorded from real kernels, and the source of 5.10.223,
6.1.192, 6.12.117 and 7.2.13 (arch/x86/kvm/mmu/mmu.c, arch/x86/kernel/cpu/bugs.c, lib/kstrtox.c)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fetched import needs_kernel
from worldswitch.errors import UnknownNameError
from worldswitch.kvm import nx, vmcreate
from worldswitch.kvm.facts import kernel
from worldswitch.kvm.policy import Policy

HERE = Path(__file__).parent
LAB = tomllib.loads((HERE / "nx_lab.toml").read_text(encoding="utf-8"))
KERNELS = ("5.10.223", "6.1.176", "6.12.117", "7.2.13")
AFFECTED, UNAFFECTED = nx.NxHost(multihit=True), nx.NxHost(multihit=False)
NEWEST, OLDEST = kernel("7.2.13").has, kernel("5.10.223").has


def text_of(entry: dict[str, str | int]) -> bytes:
    """The bytes written: one byte for each character, repeated."""
    return (str(entry["text"]) * int(entry.get("times", 1))).encode("latin-1")


def outcome(has: nx.Has, done: nx.Written, name: str) -> str:
    return done.error or nx.read(has, done.state, name)


def after(has: nx.Has, host: nx.NxHost, *texts: bytes) -> nx.Parameters:
    """The parameters after these writes to nx_huge_pages of a fresh kvm.ko."""
    state = nx.load(has, host).state
    for text in texts:
        state = nx.write(has, host, state, nx.SWITCH, text).state
    return state


def switched(version: str, text: bytes) -> str:
    """What nx_huge_pages does with a text: from on and from off, without a VM and with one."""
    has = kernel(version).has
    done = [
        outcome(has, nx.write(has, UNAFFECTED, after(has, UNAFFECTED, before), nx.SWITCH, text, vms), nx.SWITCH)
        for vms in (0, 1)
        for before in (b"force", b"off")
    ]
    return " ".join(done)


def numbered(version: str, name: str, text: bytes) -> str:
    has = kernel(version).has
    state = nx.write(has, UNAFFECTED, nx.load(has, UNAFFECTED).state, name, b"7").state
    done = nx.write(has, UNAFFECTED, state, name, text)
    return done.error or nx.read(has, done.state, name)


def modelled(version: str) -> Iterator[tuple[str, str]]:
    """Everything nx_lab.toml has of a kernel, as the model does it: what is tried, and the results."""
    has = kernel(version).has
    never = after(has, UNAFFECTED, b"never")
    for entry in LAB["switch"]:
        # Before never was known nothing sticks, and these writes follow one another.
        done = nx.write(has, UNAFFECTED, never, nx.SWITCH, text_of(entry))
        never = done.state
        yield f"write {entry['text']!r}", f"{switched(version, text_of(entry))} {outcome(has, done, nx.SWITCH)}"
    for entry in LAB["number"]:
        both = [numbered(version, name, text_of(entry)) for name in (nx.RATIO, nx.PERIOD)]
        yield f"number {entry['text']!r}", " ".join(both)
    for entry in LAB["loaded"]:
        done = nx.load(has, UNAFFECTED, {nx.SWITCH: text_of(entry)})
        yield f"load with {entry['text']!r}", outcome(has, done, nx.SWITCH)


def recorded(version: str) -> Iterator[tuple[str, str]]:
    for kind, verb in (("switch", "write"), ("number", "number"), ("loaded", "load with")):
        for entry in LAB[kind]:
            yield f"{verb} {entry['text']!r}", entry[version]


@pytest.mark.parametrize("version", KERNELS)
def test_the_model_writes_and_reads_as_the_kernel_did_in_the_lab(version: str) -> None:
    assert len(LAB["switch"]) >= 40
    assert list(modelled(version)) == list(recorded(version))


@pytest.mark.needs("lab-amd")
@pytest.mark.parametrize("version", KERNELS)
def test_the_lab_still_says_what_was_recorded(version: str, tmp_path: Path) -> None:
    needs_kernel(version.rpartition(".")[0])
    values = {
        kind: [text_of(entry).decode("latin-1") for entry in LAB[kind]] for kind in ("switch", "number", "loaded")
    }
    (tmp_path / "values.json").write_text(json.dumps(values))
    shutil.copy(HERE / "nx_writes.py", tmp_path)
    wsw = str(Path(sys.executable).with_name("wsw"))
    line = version.rpartition(".")[0]
    given_to_guest = ["--copy", "nx_writes.py", "--copy", "values.json", "--", "python3", "nx_writes.py"]
    done = subprocess.run(
        [wsw, "lab", "exec", "--kernel", line, *given_to_guest],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    real = json.loads(done.stdout)
    for kind in values:
        assert real[kind] == [entry[version] for entry in LAB[kind]]


WORDS = {
    # Of 5.10, 6.1 and 6.12, 7.2: what the source takes each text for.
    b"never": ("off", "never", "never", "never"),
    b"never\n": ("off", "never", "never", "never"),
    b"never ": ("off", "off", "off", "off"),
    b"force\n\n": (None, "off", "off", "off"),
    b"auto": ("auto", "auto", "auto", "auto"),
    b"auto ": (None, None, None, None),
    b"Auto": (None, None, None, None),
    b"true": (None, "force", "force", "force"),
    b"enable": (None, None, None, "force"),
    b"disable": (None, None, None, "off"),
    b"on": ("force", "force", "force", "force"),
    b"o": (None, None, None, None),
    b"2": (None, None, None, None),
    b"1\0rubbish": ("force", "force", "force", "force"),
    b"\0off": (None, None, None, None),
}


@pytest.mark.parametrize("text", WORDS, ids=repr)
def test_each_kernel_understands_its_words(text: bytes) -> None:
    """Of the rule nx-parameter-words: set_nx_huge_pages, sysfs_streq and kstrtobool of each kernel."""
    assert tuple(nx.understood(kernel(version).has, text) for version in KERNELS) == WORDS[text]


def test_auto_asks_the_processor_and_the_command_line() -> None:
    """Of the rule nx-auto: get_nx_auto_mode."""
    assert nx.auto(AFFECTED)
    assert not nx.auto(UNAFFECTED)
    assert not nx.auto(nx.NxHost(multihit=True, mitigations=False))


def test_mitigations_off_does_not_override_force() -> None:
    host = nx.NxHost(multihit=True, mitigations=False)
    assert nx.load(NEWEST, host, {nx.SWITCH: b"force"}).state.mitigation is True


@pytest.mark.parametrize(
    ("host", "mitigation", "in_use", "text"),
    [
        (UNAFFECTED, True, True, "Not affected"),
        (nx.NxHost(True, vmx=False), True, True, "KVM: Mitigation: VMX unsupported"),
        (AFFECTED, True, False, "KVM: Mitigation: VMX disabled"),
        (AFFECTED, True, True, "KVM: Mitigation: Split huge pages"),
        (AFFECTED, False, True, "KVM: Vulnerable"),
    ],
)
def test_the_vulnerability_file(host: nx.NxHost, mitigation: bool, in_use: bool, text: str) -> None:
    """Of the rule nx-vulnerability-file: itlb_multihit_show_state."""
    assert nx.vulnerability(host, mitigation, in_use) == text


def test_files_of_an_affected_processor_read_as_they_did_in_the_lab() -> None:
    state = nx.load(NEWEST, AFFECTED).state
    for entry in LAB["affected"]:
        state = nx.write(NEWEST, AFFECTED, state, nx.SWITCH, entry["text"].encode()).state
        read = nx.read(NEWEST, state, nx.SWITCH), nx.vulnerability(AFFECTED, state.mitigation)
        assert read == (entry["reads"], entry["itlb_multihit"])


def test_never_reads_vulnerable_on_an_affected_processor() -> None:
    state = after(NEWEST, AFFECTED, b"never")
    assert nx.vulnerability(AFFECTED, state.mitigation) == "KVM: Vulnerable"


def test_errors_of_a_write_and_their_order() -> None:
    """Of the rule nx-parameter-write: EPERM before EINVAL before EBUSY, as set_nx_huge_pages checks."""
    fresh, never = after(NEWEST, AFFECTED), after(NEWEST, AFFECTED, b"never")

    def errors(state: nx.Parameters, vms: int) -> list[str]:
        texts = (b"never", b"auto", b"xyz", b"1")
        return [nx.write(NEWEST, AFFECTED, state, nx.SWITCH, text, vms).error for text in texts]

    assert errors(fresh, 0) == ["", "", "EINVAL", ""]
    assert errors(fresh, 3) == ["EBUSY", "", "EINVAL", ""]
    assert errors(never, 0) == errors(never, 3) == ["EPERM"] * 4


def test_a_refused_never_leaves_the_mitigation_as_it_is() -> None:
    state = after(NEWEST, AFFECTED, b"force")
    assert nx.write(NEWEST, AFFECTED, state, nx.SWITCH, b"never", 1) == nx.Written(state, "EBUSY")


@pytest.mark.parametrize(
    ("before", "text", "zaps"),
    [(b"force", b"off", True), (b"off", b"force", True), (b"force", b"1", False), (b"off", b"0", False)],
)
def test_only_a_switch_drops_page_tables(before: bytes, text: bytes, zaps: bool) -> None:
    done = nx.write(NEWEST, AFFECTED, after(NEWEST, AFFECTED, before), nx.SWITCH, text, 2)
    assert (done.zaps, done.wakes) == (zaps, zaps)


def test_what_is_read_back() -> None:
    """Of the rule nx-parameter-read: get_nx_huge_pages; before it, param_get_bool of a byte that is -1 at first."""
    unresolved = nx.Parameters(None)
    assert [nx.read(kernel(version).has, unresolved, nx.SWITCH) for version in KERNELS] == ["Y", "Y", "Y", "auto"]
    texts = (b"auto", b"off", b"force", b"never")
    assert [nx.read(NEWEST, after(NEWEST, AFFECTED, text), nx.SWITCH) for text in texts] == ["Y", "N", "Y", "never"]
    assert [nx.read(OLDEST, after(OLDEST, AFFECTED, text), nx.SWITCH) for text in texts] == ["Y", "N", "Y", "N"]


def test_recovery_parameters_are_unsigned_ints() -> None:
    """Of the rule nx-recovery-write: param_set_uint, after the check for never."""
    fresh, never = after(NEWEST, AFFECTED), after(NEWEST, AFFECTED, b"never")
    texts = (b"1", b"0x10", b"-1", b"4294967296", b"")
    done = [nx.write(NEWEST, AFFECTED, fresh, nx.RATIO, text) for text in texts]
    assert [(one.state.ratio, one.error) for one in done] == [
        (1, ""),
        (16, ""),
        (60, "EINVAL"),
        (60, "ERANGE"),
        (60, ""),
    ]
    assert [nx.write(NEWEST, AFFECTED, never, nx.PERIOD, text).error for text in texts] == [*["EPERM"] * 4, ""]


@pytest.mark.parametrize(
    ("version", "before", "name", "text", "wakes"),
    [
        ("7.2.13", nx.Parameters(True, ratio=0), nx.RATIO, b"60", True),
        ("7.2.13", nx.Parameters(True), nx.RATIO, b"61", True),  # 59 s instead of 60 s
        ("7.2.13", nx.Parameters(True), nx.RATIO, b"59", False),
        ("7.2.13", nx.Parameters(True), nx.PERIOD, b"100", True),
        ("7.2.13", nx.Parameters(True, period_ms=100), nx.PERIOD, b"0", False),
        ("7.2.13", nx.Parameters(False), nx.RATIO, b"3600", False),
        ("5.10.223", nx.Parameters(True, ratio=0), nx.RATIO, b"60", True),
        ("5.10.223", nx.Parameters(True), nx.RATIO, b"3600", False),
    ],
)
def test_threads_wake_where_the_period_gets_shorter(
    version: str, before: nx.Parameters, name: str, text: bytes, wakes: bool
) -> None:
    assert nx.write(kernel(version).has, AFFECTED, before, name, text, 1).wakes is wakes


@pytest.mark.parametrize(
    ("ratio", "period", "milliseconds"),
    [
        (60, 0, 60_000),
        (1, 0, 3_600_000),
        (3600, 0, 1_000),
        (4_294_967_295, 0, 1_000),
        (7, 0, 514_285),
        (60, 100, 100),
        (60, 1, 1),
        (0, 100, None),
    ],
)
def test_the_recovery_period(ratio: int, period: int, milliseconds: int | None) -> None:
    """Of the rule nx-recovery-period: calc_nx_huge_pages_recovery_period."""
    assert nx.recovery_period(NEWEST, nx.Parameters(True, ratio=ratio, period_ms=period)) == milliseconds
    assert nx.recovery_period(NEWEST, nx.Parameters(False, ratio=ratio, period_ms=period)) is None
    assert nx.recovery_period(OLDEST, nx.Parameters(True, ratio=ratio)) == (60_000 if ratio else None)


def test_opting_out_checks_in_this_order() -> None:
    """Of the rule nx-opt-out: kvm_vm_ioctl_enable_cap_generic, then the case of kvm_vm_ioctl_enable_cap."""
    assert nx.opt_out(NEWEST) == ""
    assert nx.opt_out(NEWEST, flags=1, cap_sys_boot=False) == "EINVAL"
    assert nx.opt_out(NEWEST, cap_sys_boot=False, argument=1, vcpus=1) == "EPERM"
    assert nx.opt_out(NEWEST, argument=1) == nx.opt_out(NEWEST, vcpus=1) == "EINVAL"
    assert nx.opt_out(OLDEST, cap_sys_boot=False) == "EINVAL"


def test_a_vm_that_opted_out_splits_nothing() -> None:
    on = after(NEWEST, AFFECTED, b"force")
    assert nx.splits(on)
    assert not nx.splits(on, opted_out=True)


def test_a_realtime_kernel_recovers_nothing_by_default() -> None:
    state = nx.load(NEWEST, nx.NxHost(multihit=True, realtime=True)).state
    assert (state.ratio, nx.recovery_period(NEWEST, state)) == (0, None)


def test_nonsense_keeps_the_module_from_loading_but_an_unknown_parameter_does_not() -> None:
    assert nx.load(NEWEST, AFFECTED, {nx.SWITCH: b"xyz"}).error == "EINVAL"
    assert nx.load(NEWEST, AFFECTED, {nx.SWITCH: b""}).error == "EINVAL"
    assert nx.load(OLDEST, AFFECTED, {nx.PERIOD: b"100"}) == nx.Written(nx.Parameters(True))


def test_never_by_default_on_unaffected_hosts_is_an_alternative_no_kernel_has() -> None:
    alternative = kernel("7.2+nx-never-unless-affected").has
    assert nx.load(alternative, UNAFFECTED).state.never
    assert not nx.load(alternative, AFFECTED).state.never
    assert not nx.load(NEWEST, UNAFFECTED).state.never
    assert not nx.load(alternative, UNAFFECTED, {nx.SWITCH: b"auto"}).state.never


def test_a_thread_made_when_needed_is_an_alternative_no_kernel_has() -> None:
    """With it KVM_CREATE_VM waits for nothing even where the thread is a kthread."""
    assert vmcreate.create_vm(Policy.of("6.1")).waits_for_thread
    assert not vmcreate.create_vm(Policy.of("6.1+nx-recovery-when-needed")).waits_for_thread


def test_an_unknown_parameter_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="nearest: nx_huge_pages"):
        nx.write(NEWEST, AFFECTED, nx.Parameters(True), "nx_hugepages", b"1")
    with pytest.raises(UnknownNameError, match="This kernel lacks it"):
        nx.read(OLDEST, nx.Parameters(True), nx.PERIOD)


@pytest.mark.needs("python3.9")
def test_the_module_runs_on_python_3_9(python39: str) -> None:
    code = (
        "from worldswitch.kvm import nx, nx_recovery as r\n"
        "has = frozenset(('nx-huge-pages', 'nx-recovery-thread')).__contains__\n"
        "done = nx.write(has, nx.NxHost(True), nx.load(has, nx.NxHost(True)).state, nx.SWITCH, b'never')\n"
        "print(nx.read(has, done.state, nx.SWITCH), r.recover(has, r.Queue().add(r.Split(0)), 1).zapped)"
    )
    command = [python39, "-S", "-c", code]
    environment = {"PYTHONPATH": str(HERE.parents[1] / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["N", "(Split(gfn=0,", "mmu='tdp',", "logged=False),)"], done.stderr


TEXTS = st.one_of(
    st.sampled_from([b"auto", b"off", b"force", b"never", b"never\n", b"1", b"0", b"Y", b"n", b"true", b""]),
    st.binary(max_size=6),
    st.text(alphabet="neverautofc01\n \0", max_size=8).map(str.encode),
)


class Module(RuleBasedStateMachine):
    """kvm.ko of some kernel, while people write to its parameters and VMs come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.version = "7.2.13"
        self.host, self.vms, self.sticky, self.unloads = AFFECTED, 0, False, 0
        self.state = nx.load(self.has, self.host).state

    @property
    def has(self) -> nx.Has:
        return kernel(self.version).has

    @rule(version=st.sampled_from(KERNELS), multihit=st.booleans(), mitigations=st.booleans(), vmx=st.booleans())
    @precondition(lambda self: not self.vms)
    def load(self, version: str, multihit: bool, mitigations: bool, vmx: bool) -> None:
        """kvm.ko cannot be unloaded while a VM exists; loading it anew ends never."""
        self.version, self.host = version, nx.NxHost(multihit, mitigations, vmx)
        self.state, self.sticky = nx.load(self.has, self.host).state, False
        assert self.state.mitigation is (multihit and mitigations)

    @rule()
    def create_vm(self) -> None:
        self.vms += 1

    @rule()
    @precondition(lambda self: self.vms)
    def destroy_vm(self) -> None:
        self.vms -= 1

    @rule(text=TEXTS)
    def write_switch(self, text: bytes) -> None:
        before = self.state
        done = nx.write(self.has, self.host, before, nx.SWITCH, text, self.vms)
        assert done.error in ("", "EPERM", "EBUSY", "EINVAL")
        if not text or done.error:
            assert done.state == before
            assert not (done.zaps or done.wakes)
        if self.sticky and text:
            assert done.error == "EPERM"
        if done.error == "EBUSY":
            assert self.vms
            assert text.rstrip(b"\n").startswith(b"never")
        if done.state.never and not before.never:
            assert not self.vms
            assert self.version != "5.10.223"
            self.sticky = True
        assert done.zaps == (done.state.mitigation != before.mitigation)
        self.state = done.state
        again = nx.write(self.has, self.host, done.state, nx.SWITCH, text, self.vms)
        assert not again.zaps

    @rule(name=st.sampled_from([nx.RATIO, nx.PERIOD]), text=st.one_of(TEXTS, st.integers(-1, 2**33).map(b"%d".__mod__)))
    def write_recovery(self, name: str, text: bytes) -> None:
        before = self.state
        done = nx.write(self.has, self.host, before, name, text, self.vms)
        assert done.error in ("", "EPERM", "EINVAL", "ERANGE", "ENOENT")
        assert done.state.mitigation is before.mitigation
        assert not done.zaps
        if self.sticky and text:
            assert done.error == "EPERM"
        if done.error:
            assert done.state == before
        elif text:
            assert int(nx.read(self.has, done.state, name)) < 2**32
        if done.wakes:
            assert before.mitigation
        self.state = done.state

    @invariant()
    def what_is_read_can_be_written(self) -> None:
        shown = nx.read(self.has, self.state, nx.SWITCH)
        assert shown == ("never" if self.sticky else "Y" if self.state.mitigation else "N")
        done = nx.write(self.has, self.host, self.state, nx.SWITCH, shown.encode(), self.vms)
        assert done == nx.Written(self.state, "EPERM" if self.sticky else "")

    @invariant()
    def never_is_off_and_keeps_no_period(self) -> None:
        if self.sticky:
            assert self.state.mitigation is False
        period = nx.recovery_period(self.has, self.state)
        assert (period is None) == (not self.state.mitigation or not self.state.ratio)
        assert period is None or period >= 1

    @invariant()
    def the_vulnerability_file_agrees(self) -> None:
        text = nx.vulnerability(self.host, self.state.mitigation)
        assert ("Split huge pages" in text) == (self.host.multihit and self.host.vmx and bool(self.state.mitigation))


TestModule = Module.TestCase


@given(st.binary(max_size=40))
def test_any_bytes_are_a_number_of_32_bits_or_an_error(text: bytes) -> None:
    value, error = nx.number(text)
    assert error in ("", "EINVAL", "ERANGE")
    assert 0 <= value < 2**32
    if not error:
        assert nx.number(b"%d\n" % value) == (value, "")
