"""``wsw run --on lab``: which machines are started, with what, and what becomes of their results. No emulator runs."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from worldswitch.cli import INTERRUPTED, MISSING, USAGE, wsw
from worldswitch.cli.side_by_side import side_by_side
from worldswitch.errors import MissingError
from worldswitch.guest.image import Image
from worldswitch.kit.__main__ import _parser
from worldswitch.lab import artifacts
from worldswitch.lab import machine as lab
from worldswitch.lab.artifacts import BuildFiles, KernelFiles
from worldswitch.lab.failures import MachineCrashed, MachineHung
from worldswitch.lab.initramfs import Kit
from worldswitch.lab.jobs import About, Job, JobResult
from worldswitch.record.result import BY_REASON, Cell, Environment, Provenance
from worldswitch.record.result import Result as Found
from worldswitch.record.resultfile import dumps, load
from worldswitch.units import parse_duration

OWNED = {"5.10": 2, "6.1": 0, "6.12": 0}
"""Exits per pair of CR0.WP that the stand-in of a kernel gives on Intel with EPT."""


def kernel_files(spec: str) -> KernelFiles:
    if spec not in OWNED and not spec.startswith("6.1.0-"):
        raise MissingError(f"no kernel {spec} is fetched (there: 5.10.223); get it with `wsw lab fetch {spec}`")
    release = spec if spec.startswith("6.1.0-") else f"{spec}.0-cloud-amd64"
    version = {"5.10": "5.10.223", "6.12": "6.12.117"}.get(spec, "6.1.190")
    return KernelFiles(spec, version, release, Path("vmlinuz"), Path("modules"), f"linux-image-{release} {version}-1")


def build_files(name: str) -> BuildFiles:
    return BuildFiles(name, "6.1.0-50-cloud-amd64", Path(name), {}, {"version": "6.1.176"})


class Lab:
    """Stands in for :func:`worldswitch.lab.machine.run`: the kit's answers, by what it is asked."""

    def __init__(self) -> None:
        self.started: list[tuple[lab.Machine, list[Job]]] = []
        self.crashes: set[str] = set()
        self.refuses: set[str] = set()
        self.status = 0

    def __call__(self, machine: lab.Machine, jobs: list[Job], **options: object) -> lab.Run:
        self.started.append((machine, jobs))
        results = [self.result(machine, job) for job in jobs]
        about = About(machine.kernel.release, "#1 SMP", "quiet", {"kvm.tdp_mmu": "Y"})
        return lab.Run(results, about, "qemu 7.2", restored=True, seconds=1.0)

    def result(self, machine: lab.Machine, job: Job) -> JobResult:
        asked = _parser().parse_args(list(job.argv[job.argv.index("wsw") + 1 :]))
        cells, failures = [self.cell(machine, spec, {}, 33) for spec in asked.programs], []
        for path in asked.image:
            content = job.files[path]
            assert isinstance(content, bytes)
            image = Image.from_bytes(content)
            name = image.name.partition(":")[0]
            if name in self.crashes:
                raise MachineCrashed("the kernel panicked", ["Oops"], "running")
            if name in self.refuses:
                failures.append({"program": path, "error": f"{name} needs shstk, which is not offered"})
            else:
                cells.append(self.cell(machine, name, image.parameters, asked.n or image.default_n))
        here = Environment("EPYC", machine.kernel.release, "#1 SMP", "kvm_amd", {"kvm.tdp_mmu": "Y"})
        document = json.loads(dumps(Found(tuple(cells), Provenance("0"), here)))
        text = json.dumps({**document, "failures": failures})
        files = {"trace.dat": b"recorded", "perf.data": b"perf"} if job.argv[0] != "wsw" else {}
        return JobResult(MISSING if failures else self.status, text.encode(), b"", files)

    def cell(self, machine: lab.Machine, program: str, parameters: dict, n: int) -> Cell:
        nested = machine.settings.get({"intel": "kvm_intel.ept", "amd": "kvm_amd.npt"}[machine.cpu], "1")
        exits = OWNED.get(machine.kernel.spec, 0) if machine.cpu == "intel" and nested == "1" else 2
        reason = "CR_ACCESS" if machine.cpu == "intel" else "cr0_sel_write"
        counts = {"exits": exits, BY_REASON: {reason: exits} if exits else {}}
        dimensions = {"on": "kvm", "program": program, "parameters": parameters, "kernel": machine.kernel.release,
                      "cpu": machine.cpu, "mmu": "tdp" if nested == "1" else "shadow", "module": None}  # fmt: skip
        return Cell(dimensions, n, "pair", counters=counts, per_op=counts)


@pytest.fixture(autouse=True)
def machines(monkeypatch: pytest.MonkeyPatch) -> Lab:
    stand_in = Lab()
    monkeypatch.setattr(lab, "run", stand_in)
    monkeypatch.setattr(artifacts, "kernel", kernel_files)
    monkeypatch.setattr(artifacts, "build", build_files)
    monkeypatch.setattr("worldswitch.cli.lab_kit.lab_kit", lambda: Kit("k", lambda: b""))
    return stand_in


def run(*arguments: str) -> Result:
    return CliRunner().invoke(wsw, ["run", "--on", "lab", "-j", "1", *arguments], standalone_mode=False)


def document(*arguments: str) -> dict:
    return json.loads(run(*arguments, "--json").stdout)


def test_every_kernel_processor_and_way_to_page_is_a_cell(machines: Lab) -> None:
    found = document("cr0-wp", "--kernel", "5.10,6.1", "--cpu", "intel,amd", "--mmu", "default,shadow")
    cells = [(one["kernel"], one["cpu"], one["mmu"], one["per_op"]["exits"]) for one in found["results"]]
    assert cells == [
        ("5.10.223", "intel", "tdp", 2), ("5.10.223", "intel", "shadow", 2),
        ("5.10.223", "amd", "tdp", 2), ("5.10.223", "amd", "shadow", 2),
        ("6.1.190", "intel", "tdp", 0), ("6.1.190", "intel", "shadow", 2),
        ("6.1.190", "amd", "tdp", 2), ("6.1.190", "amd", "shadow", 2),
    ]  # fmt: skip
    assert {"exits", "exits_by_reason.CR_ACCESS"} <= {one["counter"] for one in found["differences"]}
    assert [dict(machine.settings) for machine, _ in machines.started[:4]] == [
        {}, {"kvm_intel.ept": "0"}, {}, {"kvm_amd.npt": "0"}
    ]  # fmt: skip


def test_all_programs_share_one_start_and_one_command(machines: Lab) -> None:
    found = document("cr0-wp,nop", "cr4-pge", "--kernel", "6.12")
    assert [one["program"] for one in found["results"]] == ["cr0-wp", "nop", "cr4-pge"]
    ((_, jobs),) = machines.started
    assert len(jobs) == 1


def test_counts_need_few_passes_and_no_times_unless_asked_for(machines: Lab) -> None:
    run("cr0-wp", "--kernel", "6.12")
    run("cr0-wp", "--kernel", "6.12", "-n", "7", "--repeat", "3", "--set", "cpuid.pcid=0", "--deadline", "30s")
    quick, asked = (jobs[0].argv for _, jobs in machines.started)
    assert quick[quick.index("--repeat") + 1] == "0"
    assert "-n" not in quick
    parsed = _parser().parse_args(list(asked[1:]))
    assert (parsed.n, parsed.repeat, parsed.set) == (7, 3, ["cpuid.pcid=0"])
    assert parse_duration(parsed.deadline) == 30e9
    assert document("cr0-wp", "--kernel", "6.12")["results"][0]["n"] == 200


def test_create_vm_runs_beside_guest_programs_with_its_options(machines: Lab) -> None:
    found = document("create-vm,nop", "--kernel", "6.1", "--burst", "4", "--first-run", "--smp", "2",
                     "--set", "nx_huge_pages=never", "--set", "favordynmods=1")  # fmt: skip
    assert sorted(one["program"] for one in found["results"]) == ["create-vm", "nop"]
    ((machine, jobs),) = machines.started
    parsed = [_parser().parse_args(list(job.argv[1:])) for job in jobs]
    assert (parsed[1].programs, parsed[1].burst, parsed[1].first_run) == (["create-vm"], 4, True)
    assert machine.smp == 2
    assert dict(machine.settings) == {"nx_huge_pages": "never", "favordynmods": "1"}
    assert found["results"][0]["dimensions"]["smp"] == 2
    assert found["results"][0]["dimensions"]["set"] == {"nx_huge_pages": "never", "favordynmods": "1"}


def test_builds_are_compared_on_the_kernel_they_are_for(machines: Lab) -> None:
    found = document("cr0-wp", "--cpu", "intel", "--build", "before,between,stock")
    assert [one["dimensions"]["build"] for one in found["results"]] == ["before", "between", "stock"]
    assert [machine.build and machine.build.name for machine, _ in machines.started] == ["before", "between", None]
    assert {machine.kernel.release for machine, _ in machines.started} == {"6.1.0-50-cloud-amd64"}
    assert json.loads(found["results"][0]["environment"]["machine"]["built_from"]) == {"version": "6.1.176"}


def test_a_line_named_beside_a_build_is_the_kernel_the_build_is_for(machines: Lab) -> None:
    """A newer kernel of the line was fetched since; the build's modules would not load in it."""
    run("cr0-wp", "--kernel", "6.1,6.12", "--build", "stock,before")
    releases = [machine.kernel.release for machine, _ in machines.started]
    assert releases == ["6.1.0-50-cloud-amd64", "6.1.0-50-cloud-amd64", "6.12.0-cloud-amd64", "6.12.0-cloud-amd64"]
    run("cr0-wp", "--kernel", "6.1")
    assert machines.started[-1][0].kernel.release == "6.1.0-cloud-amd64"


def test_builds_are_a_column_of_the_table() -> None:
    table = run("cr0-wp", "--build", "before,stock").stdout
    rows = [line.split()[0] for line in table.partition("cr0-wp: for each pair")[2].splitlines() if line[:1].isalpha()]
    assert rows == ["build", "before", "stock", "What"][: len(rows)]
    assert len(rows) > 2


def test_a_cell_says_what_it_was_found_on(machines: Lab) -> None:
    (cell,) = document("cr0-wp", "--kernel", "6.12")["results"]
    assert cell["on"] == "lab"
    assert cell["environment"]["kernel"] == "6.12.0-cloud-amd64"
    assert cell["environment"]["parameters"] == {"kvm.tdp_mmu": "Y"}
    stamp = cell["environment"]["machine"]
    assert (stamp["emulator"], stamp["restored"], stamp["cpus"]) == ("qemu 7.2", "yes", "1")
    assert stamp["package"] == "linux-image-6.12.0-cloud-amd64 6.12.117-1"


def test_what_is_kept_can_be_loaded(tmp_path: Path) -> None:
    run("cr0-wp", "--kernel", "6.12", "--save", str(tmp_path / "a.json"))
    (cell,) = load(tmp_path / "a.json").cells
    assert cell.environment is not None
    assert cell.environment.machine["emulator"] == "qemu 7.2"


def test_a_kernel_that_is_not_fetched_fails_alone() -> None:
    done = run("cr0-wp", "--kernel", "6.6,6.12")
    assert done.return_value == MISSING
    assert "6.6 amd: no kernel 6.6 is fetched" in done.stderr
    assert "6.12.117" in done.stdout


def test_a_program_that_cannot_run_fails_alone(machines: Lab) -> None:
    machines.refuses = {"cr4-cet"}
    done = run("cr4-cet,cr0-wp", "--kernel", "5.10")
    assert done.return_value == MISSING
    assert "cr4-cet: 5.10 amd: cr4-cet needs shstk, which is not offered" in done.stderr
    assert "cr0-wp" in done.stdout


def test_a_program_that_brings_the_machine_down_takes_no_other_with_it(machines: Lab) -> None:
    machines.crashes = {"nop"}
    done = run("cr0-wp,nop,cr4-pge", "--kernel", "6.12")
    assert done.return_value == MISSING
    assert "nop: 6.12 amd: the kernel panicked" in done.stderr
    assert "| Oops" in done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines() if " pair " in line] == ["cr0-wp", "cr4-pge"]
    assert len(machines.started) == 4


def test_a_machine_that_does_not_boot_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def hang(*arguments: object, **options: object) -> None:
        tried.append(arguments)
        raise MachineHung("it was still booting after 120 s", [], "booting")

    monkeypatch.setattr(lab, "run", hang)
    done = run("cr0-wp,nop", "--kernel", "6.12")
    assert done.return_value == MISSING
    assert len(tried) == 1
    assert "still booting" in done.stderr


@pytest.mark.parametrize("said", [b"", b"Traceback ...", b"[1, 2]", b'{"format": "worldswitch-result"}'])
def test_a_guest_that_prints_no_result_is_one_sentence(monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    about = About("6.12", "#1", "", {})
    answer = lab.Run([JobResult(1, said, b"first\nwsw: no memory")], about, "qemu 7.2", False, 1.0)
    monkeypatch.setattr(lab, "run", lambda *arguments, **options: answer)
    done = run("cr0-wp", "--kernel", "6.12")
    assert done.return_value == MISSING
    assert done.stderr.count("wsw: ") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--kernel", "6.12", "--mmu", "shadow", "--set", "npt=1"), "--mmu shadow is kvm_amd.npt=0, and --set gives"),
        (("--build", "stock"), "name the kernel with --kernel"),
        (("--kernel", "6.12", "--trace", "x.xyz"), "does not tell the format"),
        (("--kernel", "6.12", "--trace", "-"), "a file or folder"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(machines: Lab, arguments: tuple[str, ...], said: str) -> None:
    done = run("nop", *arguments)
    assert said in (str(done.exception) if done.exception else done.stderr)
    assert done.exception is not None or done.return_value == USAGE
    assert not machines.started


def test_a_recording_is_kept_under_its_name(machines: Lab, tmp_path: Path) -> None:
    done = run("cr0-wp", "--kernel", "6.12", "--trace", str(tmp_path / "out.dat"))
    assert not done.return_value
    assert (tmp_path / "out.dat").read_bytes() == b"recorded"
    ((machine, jobs),) = machines.started
    assert machine.tools == ("trace-cmd",)
    assert jobs[0].argv[:3] == ("/lab/bin/traced", "trace-cmd", "wsw")


def test_a_recording_that_cannot_be_kept_takes_no_count_with_it(
    machines: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lab, "result", lambda self, machine, job, old=Lab.result: replace(
        old(self, machine, job), files={}))  # fmt: skip
    done = run("cr0-wp", "--kernel", "6.12", "--trace", str(tmp_path / "out.dat"), "--json")
    assert done.return_value == MISSING
    assert "left no recording" in done.stderr
    assert [one["per_op"]["exits"] for one in json.loads(done.stdout)["results"]] == [2]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "exists and is no saved trace"),
        ("none/out.dat", "no folder for"),
        ("x.xyz", "or a file that ends in .data"),
    ],
)
def test_where_no_recording_can_be_nothing_starts(machines: Lab, tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "mine").touch()
    done = run("nop", "--kernel", "6.12", "--trace", str(tmp_path / name))
    assert said in (str(done.exception) if done.exception else done.stderr)
    assert not machines.started


def test_recordings_of_several_machines_have_names_of_their_own(tmp_path: Path) -> None:
    run("cr0-wp", "--kernel", "6.1,6.12", "--mmu", "shadow", "--trace", str(tmp_path / "out.data"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out-6.1-amd-shadow.data", "out-6.12-amd-shadow.data"]


def test_machines_side_by_side_give_the_same_in_the_same_order() -> None:
    arguments = ("cr0-wp", "--kernel", "5.10,6.1,6.12", "--cpu", "intel,amd", "--json")
    alone = json.loads(run(*arguments).stdout)
    together = json.loads(
        CliRunner().invoke(wsw, ["run", "--on", "lab", "-j", "3", *arguments], standalone_mode=False).stdout
    )
    assert together["results"] == alone["results"]


def test_tasks_run_at_the_same_time_but_not_more_than_allowed() -> None:
    def task(say):
        begin = time.monotonic()
        time.sleep(0.3)
        return begin, time.monotonic()

    spans = list(side_by_side([task] * 4, 2, lambda text: None))
    overlaps = [sum(a < end and begin < b for a, b in spans) for begin, end in spans]
    assert max(overlaps) >= 2
    points = sorted(point for span in spans for point in span)
    assert max(sum(begin <= point < end for begin, end in spans) for point in points) == 2


def test_an_interrupt_ends_what_runs_and_gives_what_was_finished(tmp_path: Path) -> None:
    def quick(say):
        (tmp_path / "quick").write_text(f"{os.getpid()}\n")
        return "quick"

    def slow(say):
        try:
            (tmp_path / "started").touch()
            time.sleep(60)
        finally:
            (tmp_path / "cleaned up").touch()

    def quick_was_heard() -> bool:
        name = tmp_path / "quick"
        return (
            name.exists() and name.read_text().endswith("\n") and not Path("/proc", name.read_text().strip()).exists()
        )

    def interrupting(say):
        while not (tmp_path / "started").exists() or not quick_was_heard():
            time.sleep(0.01)
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(60)

    found = []
    with pytest.raises(KeyboardInterrupt):
        for one in side_by_side([slow, quick, interrupting], 3, lambda text: None):
            found.append(one)
    assert found == ["quick"]
    assert (tmp_path / "cleaned up").exists()


def test_a_task_that_dies_is_told_of() -> None:
    with pytest.raises(RuntimeError, match="ended with 7 and no result"):
        list(side_by_side([lambda say: os._exit(7), lambda say: 1], 2, lambda text: None))


def test_finished_machines_are_kept_at_ctrl_c(monkeypatch: pytest.MonkeyPatch, machines: Lab, tmp_path: Path) -> None:
    def second_is_interrupted(machine: lab.Machine, jobs: list[Job], **options: object) -> lab.Run:
        if machine.kernel.spec == "6.12":
            raise KeyboardInterrupt
        return machines(machine, jobs)

    monkeypatch.setattr(lab, "run", second_is_interrupted)
    done = run("cr0-wp", "--kernel", "6.1,6.12", "--save", str(tmp_path / "kept.json"))
    assert done.return_value == INTERRUPTED
    assert len(load(tmp_path / "kept.json").cells) == 1


def test_the_python_it_prints_does_the_same(machines: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(
        "cr0-wp", "--kernel", "5.10", "--cpu", "intel", "--set", "nx_huge_pages=never", "-n", "5", "--python"
    ).stdout
    assert not machines.started
    exec(code, {})
    assert "'exits': 2" in capsys.readouterr().out
    ((machine, (job,)),) = machines.started
    assert (machine.cpu, dict(machine.settings)) == ("intel", {"nx_huge_pages": "never"})
    assert job.argv[job.argv.index("-n") + 1] == "5"
