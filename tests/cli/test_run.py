"""``wsw run``: what it prints, keeps and refuses."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from worldswitch.cli import INTERRUPTED, MISSING, UNSTABLE, USAGE, wsw
from worldswitch.errors import MissingError, TraceFormatError, UsageError
from worldswitch.kit.running import Failure
from worldswitch.record.result import BY_REASON, Cell, Environment, FaultSeen, Spread
from worldswitch.record.resultfile import load

WSW = [sys.executable, "-c", "from worldswitch.cli import main; main()"]
QUICK = ("-n", "20", "--repeat", "1")

OVERLAPPING = """
name = "overlap"
summary = "Two mappings of one page."
unit = "pass"
[[spaces]]
name = "main"
pages = [{ va = 0x40000000, pa = 0x200000, count = 4 }, { va = 0x40002000, pa = 0x300000 }]
[[vcpus]]
body = [{ op = "nop" }]
"""
BILLION = """
name = "billion"
summary = "10**9 repeats."
unit = "pass"
[[vcpus]]
body = [{ op = "repeat", count = 1000000000, body = [{ op = "nop" }] }]
"""
BAD_OPERATION = """
name = "bad"
summary = "No such operation."
unit = "pass"
[[vcpus]]
body = [{ op = "write-crx", cr = 0 }]
"""
TRIPLE_FAULT = """
name = "triple"
summary = "A fault without descriptor tables."
unit = "pass"
[layout]
code = 0x1000
tables = 0x10000
[[spaces]]
name = "main"
pages = [{ va = 0x1000, pa = 0x1000 }]
[[vcpus]]
body = [{ op = "load", va = 0x50000000 }]
"""
ENDLESS = """
name = "endless"
summary = "Many halts."
unit = "pass"
[[vcpus]]
body = [{ op = "repeat", count = 400000, body = [{ op = "hlt" }] }]
"""


def run(*arguments: object) -> Result:
    """The command in this process; its status is ``return_value``."""
    return CliRunner().invoke(wsw, ["run", *map(str, arguments)], standalone_mode=False, catch_exceptions=True)


def settled(*arguments: object, status: int = 0) -> Result:
    """The command, again where a busy host kept its counts from settling."""
    for _ in range(5):
        done = run(*arguments)
        if done.return_value != UNSTABLE:
            break
    assert done.return_value == status, done.output
    return done


def results(*arguments: object) -> list[dict]:
    return json.loads(settled(*arguments, "--json").stdout)["results"]


def written(folder: Path, text: str) -> Path:
    path = folder / "program.toml"
    path.write_text(text)
    return path


# On this host's KVM.


@pytest.mark.needs("kvm")
def test_a_table_tells_exits_time_and_module_of_each_program() -> None:
    done = settled("nop,cr0-wp", *QUICK)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("on         kvm")
    table, _, others = done.stdout.partition("KVM's other counters")
    rows = [line.split()[0] for line in table.splitlines() if line[:3] in ("nop", "cr0")]
    assert rows == ["nop", "cr0-wp"]
    # A KVM without kvm_exit events (the software one) at least says what its statistics count.
    assert "of these exits" in table or "cr0-wp" in others
    assert all(len(line) <= 100 for line in lines)


@pytest.mark.needs("kvm")
def test_json_has_the_keys_other_tools_rely_on() -> None:
    (cell,) = results("cpuid", "-n", "30", "--repeat", "2")
    assert {"on", "kernel", "cpu", "mmu", "program", "n", "unit", "counters", "per_op"} <= set(cell)
    assert (cell["on"], cell["program"], cell["n"], cell["unit"]) == ("kvm", "cpuid", 30, "instruction")
    assert BY_REASON in cell["counters"]
    assert cell["time_ns"]["low"] <= cell["time_ns"]["mid"] <= cell["time_ns"]["high"]
    assert cell["create_vm_ns"] is None


@pytest.mark.needs("kvm")
def test_port_accesses_exit_once_each() -> None:
    # Port 0x80 has no device in a VM without one: each access ends in userspace (KVM_EXIT_IO), on every KVM.
    (cell,) = results("io", *QUICK)
    assert cell["per_op"]["exits"] == 1


@pytest.mark.needs("kvm")
def test_faults_tell_vector_error_code_and_address() -> None:
    # A read at CPL 0 of a page that is not present: P, W/R and U/S of the error code are 0 (SDM 3A, 4.7).
    (cell,) = results("page-fault", *QUICK)
    assert cell["faults_total"] == cell["counters"]["passes"]
    assert {(f["vector"], f["error_code"]) for f in cell["faults"]} == {(14, 0)}
    assert "#PF" in run("page-fault", *QUICK).stdout


@pytest.mark.needs("kvm")
def test_parameters_tell_programs_of_one_name_apart() -> None:
    pair, single = results("cr0-wp,cr0-wp:single=1", *QUICK)
    assert (pair["dimensions"]["parameters"], single["dimensions"]["parameters"]) == (
        {"single": False},
        {"single": True},
    )
    assert "cr0-wp:single=1 " in run("cr0-wp,cr0-wp:single=1", *QUICK).stdout


@pytest.mark.needs("kvm")
def test_a_file_runs_like_a_shipped_program(tmp_path: Path) -> None:
    shipped = CliRunner().invoke(wsw, ["programs", "nop"], catch_exceptions=False).output
    (cell,) = results(written(tmp_path, shipped), *QUICK)
    assert (cell["program"], cell["unit"]) == ("nop", "pass")


@pytest.mark.needs("kvm")
def test_an_image_runs_like_its_program(tmp_path: Path) -> None:
    image = tmp_path / "nop.img"
    CliRunner().invoke(wsw, ["bundle", "-o", str(image), "nop:count=7"], catch_exceptions=False)
    (cell,) = results(image, *QUICK)
    assert (cell["program"], cell["dimensions"]["parameters"]) == ("nop", {"count": 7})


@pytest.mark.needs("kvm")
def test_results_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    settled("nop", *QUICK, "--save", path)
    kept = load(path)
    assert kept.cells[0].dimensions["program"] == "nop"
    assert kept.provenance.argv[:3] == ("wsw", "run", "nop")


@pytest.mark.needs("kvm")
def test_create_vm_tells_percentiles_and_interruptions() -> None:
    options = ("create-vm", "--vms", "5", "--burst", "3", "--repeat", "2", "--workers", "threads", "--first-run")
    (cell,) = results(*options)
    assert len(cell["create_vm_ns"]) == 6
    assert cell["counters"]["eintr"] >= 0
    assert {metric["name"] for metric in cell["metrics"]} == {"create_vm", "first_run", "close_vm"}
    text = run(*options).stdout
    assert all(word in text for word in ("KVM_CREATE_VM", "first KVM_RUN", "p99", "EINTR"))


def _needs_what_is_not_here() -> str:
    """A shipped program with a feature this host does not offer."""
    from worldswitch.cli.work import assembled
    from worldswitch.guest.library import names
    from worldswitch.live.device import Kvm
    from worldswitch.x86.features import has

    with Kvm() as kvm:
        offered = kvm.supported_cpuid()
    for name in names():
        if not all(has(offered, feature) for feature in assembled(name).features):
            return name
    pytest.skip("this host offers all features that shipped programs need")


@pytest.mark.needs("kvm")
def test_a_feature_that_is_not_here_is_missing_and_the_others_go_on() -> None:
    lacking = _needs_what_is_not_here()
    done = run(f"{lacking},nop", *QUICK, "--json")
    assert done.return_value == MISSING
    document = json.loads(done.stdout)
    assert [cell["program"] for cell in document["results"]] == ["nop"]
    assert [one["program"] for one in document["failures"]] == [lacking]
    assert "which is not offered to guests here" in done.stderr


@pytest.mark.needs("kvm")
def test_a_feature_that_is_needed_cannot_be_hidden() -> None:
    done = run("cr4-cet,nop", *QUICK, "--set", "cpuid.shstk=0", "--json")
    assert done.return_value == USAGE
    (cell,) = json.loads(done.stdout)["results"]
    assert cell["dimensions"]["cpuid"] == {"shstk": False}
    assert "shstk" in done.stderr


@pytest.mark.needs("kvm")
@pytest.mark.parametrize(("text", "says"), [(TRIPLE_FAULT, "triple fault"), (ENDLESS, "did not end within 0.3 s")])
def test_a_guest_that_dies_or_hangs_is_told_and_the_others_go_on(text: str, says: str, tmp_path: Path) -> None:
    done = run("nop", written(tmp_path, text), "cpuid", *QUICK, "--deadline", "300ms", "--save", tmp_path / "kept")
    assert done.return_value == MISSING
    # Beside it there may be lines that say how far it is.
    (told,) = [line for line in done.stderr.splitlines() if line.startswith("wsw: ") and "not stable" not in line]
    assert says in told
    assert [cell.dimensions["program"] for cell in load(tmp_path / "kept").cells] == ["nop", "cpuid"]


@pytest.mark.needs("kvm")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_is_finished(number: int, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    words = ["run", "nop", str(written(tmp_path, ENDLESS)), "--deadline", "60s", "--repeat", "1", "--save", str(kept)]
    # How long nop takes depends on how busy this host is.
    for seconds in (2, 5, 12, 30):
        with subprocess.Popen([*WSW, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            time.sleep(seconds)
            process.send_signal(number)
            stdout, stderr = process.communicate(timeout=30)
        if kept.exists():
            break
    assert process.returncode == INTERRUPTED
    assert stderr.endswith("wsw: interrupted; what was finished is shown\n")
    assert "\nnop " in stdout
    assert [cell.dimensions["program"] for cell in load(kept).cells] == ["nop"]


@pytest.mark.needs("kvm", "kvm-events")
def test_a_trace_of_the_run_is_saved_and_its_status_is_the_runs(tmp_path: Path) -> None:
    from worldswitch.trace import open_source

    out = tmp_path / "io.dat"
    words = [*WSW, "run", "io", "cr4-cet", "--set", "cpuid.shstk=0", *QUICK, "--trace", str(out)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == USAGE, done.stderr
    assert "\nio " in done.stdout
    source = open_source(out)
    assert source.meta.format.startswith("trace.dat")
    events = sum(len(batch) for batch in source.batches())
    assert events
    assert f"{events:,} events, none lost" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["io.dat"]


# Anywhere.


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (OVERLAPPING, "overlaps"),
        (BILLION, "count 1000000000 is not from 1 to"),
        (BAD_OPERATION, "unknown operation 'write-crx'; nearest: write-cr"),
        ("name = [", "program.toml"),
        ("", "program.toml"),
    ],
)
def test_a_bad_program_is_refused_before_anything_runs(text: str, says: str, tmp_path: Path) -> None:
    done = run("nop", written(tmp_path, text))
    assert isinstance(done.exception, UsageError)
    assert says in str(done.exception)
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("cr0-wpx",), "unknown program 'cr0-wpx'; nearest: cr0-wp"),
        (("creat-vm",), "nearest: create-vm"),
        (("create-vm:vms=3",), "--vms"),
        (("cr0-wp:singl=1",), "unknown parameter of cr0-wp 'singl'; nearest: single"),
        (("single=1",), "no program before it"),
        (("nop,,cpuid",), "empty program"),
        (("nop", "--vms", "3"), "create-vm, which is not among"),
        (("nop", "--set", "cpuid.pcidd=0"), "unknown CPUID feature 'pcidd'; nearest: pcid"),
        (("nop", "--set", "cpuid.pcid=2"), "0 or 1"),
        (("nop", "--set", "kvm.tdp_mmu=0"), "--set kvm.tdp_mmu is for --on lab or model"),
        (("nop", "--set", "tdp_mmu"), "is not NAME=VALUE"),
        (("nop", "--kernel", "6.12"), "--kernel is for --on lab or model, not for kvm"),
        (("nop", "--on", "lab"), "--on lab needs a kernel"),
        (("nop", "--on", "lab", "--kernel", "6.12,"), "names nothing between commas"),
        (("nop", "--on", "lab", "--kernel", "6.12", "--cpu", "amd,amd"), "names amd twice"),
        (("nop", "--on", "lab", "--kernel", "6.12", "--mmu", "tpd"), "unknown mmu 'tpd'; nearest: tdp"),
        (("nop", "--on", "lab", "--kernel-image", "bzImage"), "go together"),
        (("nop", "--deadline", "0s"), "no time"),
        (("nop", "--deadline", "soon"), "not a duration"),
        (("nop", "--on", "kvn"), "unknown machine 'kvn'; nearest: kvm"),
        (("nop", "--on", "kvm,kvm"), "twice"),
        (("nop", "--on", ","), "names no machine"),
        (("nop", "--trace", "out.xyz"), "does not tell the format"),
        (("nop", "--trace", "-"), "standard output"),
        (("nop", "--save", "."), "folder"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(arguments: tuple[str, ...], says: str) -> None:
    done = run(*arguments)
    assert isinstance(done.exception, UsageError), done.exception
    assert says in str(done.exception)


@pytest.mark.parametrize("n", ["0", "-1", "1000000001", "many"])
def test_n_has_bounds(n: str) -> None:
    assert subprocess.run([*WSW, "run", "nop", "-n", n], capture_output=True, check=False).returncode == USAGE


@pytest.mark.parametrize(
    "arguments",
    [("nothing.toml",), ("nothing.img",), ("nop", "--save", "no/such/folder/x"), ("nop", "--trace", "no/x.dat")],
)
def test_what_is_not_there_is_missing(arguments: tuple[str, ...]) -> None:
    assert isinstance(run(*arguments).exception, MissingError)


def image_headed(head: bytes) -> bytes:
    """An image whose checksum is right and whose head is *head*."""
    from worldswitch.guest.image import MAGIC

    return MAGIC + zlib.compress(len(head).to_bytes(4, "little") + head)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"wsw-image 1\nrubbish",
        b"\x7fELF",
        *map(image_headed, (b"null", b"3", b"[1]", b"{}", b'{"segments": 1}', b"x")),
    ],
)
def test_what_is_no_image_is_refused_by_its_files_name(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.img"
    path.write_bytes(data)
    done = run(path)
    assert isinstance(done.exception, TraceFormatError)
    assert str(done.exception).startswith(f"{path}: ")
    assert "image of a guest program" in str(done.exception)


@pytest.mark.parametrize("number", ["ENOENT", "EACCES"])
def test_without_kvm_one_sentence_says_so(number: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import errno

    from worldswitch.live.device import HostDevice

    def refuse(_self: HostDevice) -> int:
        raise OSError(getattr(errno, number), "refused")

    monkeypatch.setattr(HostDevice, "open", refuse)
    done = run("nop,cpuid", "--save", tmp_path / "kept")
    assert done.return_value == MISSING
    assert done.stderr.count("\n") == 1
    assert "/dev/kvm" in done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "kept").exists()


def test_python_is_runnable_as_it_is_printed() -> None:
    shown = run("--python", "cr0-wp,create-vm", "-n", "5", "--vms", "3", "--set", "cpuid.pcid=0").stdout
    compile(shown, "printed", "exec")
    assert "n=5" in shown
    assert "vms=3" in shown
    assert "hide=['pcid']" in shown


# Machines that others provide.


def cell(kernel: str, exits: float, **more) -> Cell:
    dimensions = {"on": "fake", "program": "cr0-wp", "parameters": {}, "kernel": kernel, "mmu": "tdp"}
    counts = {"exits": exits, BY_REASON: {"CR_ACCESS": exits} if exits else {}}
    return Cell(dimensions, 100, "pair", counters={**counts, "passes": 100}, per_op=counts, **more)


class Fake:
    """A machine with several conditions, given what to yield or raise."""

    def __init__(self, *steps: object) -> None:
        self.steps = steps

    def environment(self) -> Environment:
        return Environment(cpu_model="Some CPU")

    def run(self, work, settings, say) -> Iterator[Cell | Failure]:
        for step in self.steps:
            if isinstance(step, BaseException):
                raise step
            yield step


def run_fake(monkeypatch: pytest.MonkeyPatch, *steps: object, arguments: tuple[str, ...] = ()) -> Result:
    monkeypatch.setattr("worldswitch.cli.run.machines", lambda names, conditions: [("fake", Fake(*steps))])
    return run("cr0-wp", "--on", "fake", *arguments)


def test_conditions_that_vary_are_columns_and_differences_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    done = run_fake(monkeypatch, cell("5.10", 2), cell("6.12", 0), cell("6.1", 2.025))
    head, _, table = done.stdout.partition("cr0-wp: for each pair")
    rows = [line.split() for line in table.splitlines() if line[:2] in ("5.", "6.")]
    assert [row[0] for row in rows] == ["5.10", "6.12", "6.1"]
    assert ["≠" in row for row in rows] == [False, True, False]
    assert "kernel" not in head
    document = json.loads(run_fake(monkeypatch, cell("5.10", 2), cell("6.12", 0), arguments=("--json",)).stdout)
    assert document["differences"][0]["counter"] == "exits"


def test_a_note_names_the_machine_it_is_about(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = cell("6.1", 2, notes=("host busy", "shared")), cell("6.1", 2, notes=("shared",))
    there.dimensions["on"] = "other"
    lines = run_fake(monkeypatch, here, there).stdout.splitlines()
    assert "- fake: host busy" in lines
    assert "- shared" in lines


def test_reasons_are_told_most_frequent_first(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = cell("6.1", 3)
    seen.per_op[BY_REASON].update({"CR_ACCESS": 0.5, "EPT_VIOLATION": 2.5})
    assert "2.5 EPT_VIOLATION, 0.5 CR_ACCESS" in run_fake(monkeypatch, seen).stdout


def test_counts_that_do_not_settle_are_status_4(monkeypatch: pytest.MonkeyPatch) -> None:
    done = run_fake(monkeypatch, cell("6.1", 2, steady=False, notes=("no two runs agreed on exits",)))
    assert done.return_value == UNSTABLE
    assert "not stable" in done.stderr
    assert "no two runs agreed on exits" in done.stdout


@pytest.mark.parametrize(
    ("last", "status"),
    [
        (Failure("x", MissingError("gone")), MISSING),
        (MissingError("gone"), MISSING),
        (Failure("x", UsageError("wrong")), USAGE),
        (KeyboardInterrupt(), INTERRUPTED),
    ],
)
def test_what_was_finished_before_is_shown_and_kept(
    last: object, status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    done = run_fake(monkeypatch, cell("6.1", 2), last, arguments=("--save", str(kept)))
    assert done.return_value == status
    assert "cr0-wp" in done.stdout
    assert len(load(kept).cells) == 1


def test_a_result_that_cannot_be_kept_is_still_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(result: object, path: object) -> None:
        raise MissingError("no space left on device")

    monkeypatch.setattr("worldswitch.record.resultfile.save", full)
    done = run_fake(monkeypatch, cell("6.1", 2), arguments=("--save", str(tmp_path / "kept")))
    assert isinstance(done.exception, MissingError)
    assert "cr0-wp" in done.stdout


def test_text_from_a_program_does_not_steer_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    nasty = Cell(
        {"on": "fake", "program": "\x1b[31mred"}, 1, "\x1b[2J", time_ns=Spread(1, 2, 3), notes=("\x1b]0;x\x07",),
        faults=(FaultSeen("\x1b[1m", 14, 0, 0, 0),), faults_total=1,
    )  # fmt: skip
    done = run_fake(monkeypatch, nasty, Failure("\x1b[31m", MissingError("gone")))
    assert "\x1b" not in done.stdout + done.stderr


def test_progress_is_a_line_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Fake):
        def run(self, work, settings, say):
            say("halfway")
            yield cell("6.1", 2)

    monkeypatch.setattr("worldswitch.cli.run.machines", lambda names, conditions: [("fake", Slow())])
    clock = iter(range(0, 1000, 7))
    monkeypatch.setattr("worldswitch.cli.progress.time.monotonic", lambda: next(clock))
    done = run("cr0-wp")
    assert "halfway" in done.stderr
    assert "halfway" not in done.stdout
