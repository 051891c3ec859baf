"""``wsw run --on model``: the same table and JSON as on any machine, for hosts nobody has at hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from worldswitch.cli import MISSING, USAGE, wsw


def run(*words: object) -> Result:
    return CliRunner().invoke(wsw, ["run", "--on", "model", *map(str, words)], standalone_mode=False)


def cells(*words: object) -> list[dict[str, Any]]:
    done = run(*words, "--json")
    assert done.return_value == 0, done.output
    found: list[dict[str, Any]] = json.loads(done.stdout)["results"]
    return found


def test_one_cell_for_each_kernel_processor_and_mmu() -> None:
    found = cells("cr0-wp", "--kernel", "5.10,6.12", "--cpu", "intel,amd", "--mmu", "default,shadow", "-n", 100)
    exits = [(c["kernel"].partition(".")[0], c["cpu"], c["mmu"], round(c["per_op"]["exits"])) for c in found]
    assert exits == [
        ("5", "intel", "legacy", 2),
        ("5", "intel", "shadow", 2),
        ("5", "amd", "legacy", 2),
        ("5", "amd", "shadow", 2),
        ("6", "intel", "tdp", 0),
        ("6", "intel", "shadow", 2),
        ("6", "amd", "tdp", 2),
        ("6", "amd", "shadow", 2),
    ]
    assert {c["on"] for c in found} == {"model"}
    assert all(c["time_ns"] is None and c["steady"] for c in found)


def test_the_keys_that_other_tools_rely_on() -> None:
    (cell,) = cells("page-touch:size=2M,pages=4,huge=true", "--kernel", "6.12", "--cpu", "intel")
    keys = ("exits", "exits_by_reason", "root_loads", "root_unloads", "mmu_resets", "pages_4k", "pages_2m", "nx_splits")
    assert set(keys) <= cell["counters"].keys() and set(keys) <= cell["per_op"].keys()
    assert cell["counters"]["pages_2m"] == 4 and cell["per_op"]["pages_2m"] == 1
    # A violation for each page, and two for the guest tables that map them.
    assert cell["per_op"]["exits_by_reason"] == {"EPT_VIOLATION": 1.5}


def test_faults_and_values_are_those_of_the_guest() -> None:
    (cell,) = cells("page-fault", "--kernel", "6.12", "-n", 5)
    (fault,) = cell["faults"]
    assert (fault["operation"], fault["vector"], fault["error_code"], fault["count"]) == ("vcpu 0 body 0", 14, 0, 5)


def test_settings_decide() -> None:
    def splits(*sets: str) -> int:
        words = [word for one in sets for word in ("--set", one)]
        (cell,) = cells("exec-huge", "--kernel", "6.12", "--cpu", "intel", *words)
        counted: int = cell["counters"]["nx_splits"]
        return counted

    assert splits() == 8
    assert splits("nx_huge_pages=never") == 0
    assert splits("host.itlb_multihit=0") == 0
    assert splits("host.huge_pages=0") == 0
    (cell,) = cells("cr4-tsd", "--kernel", "5.10", "--mmu", "tdp", "--set", "cpuid.pcid=0")
    assert cell["dimensions"]["cpuid"] == {"pcid": False}


REFUSED = [
    (("cr0-wp",), "--on model needs a kernel"),
    (("cr0-wp", "--kernel", "6.13.5", "--set", "tdp_mu=0"), "nearest: tdp_mmu"),
    (("cr0-wp", "--kernel", "6.12", "--set", "host.hugepages=0"), "nearest: host.huge_pages"),
    (("cr0-wp", "--kernel", "6.12", "--set", "host.huge_pages=maybe"), "say 1 or 0"),
    (("cr0-wp", "--kernel", "5.4", "--mmu", "tdp"), "has no TDP MMU"),
    (("cr0-wp", "--kernel", "6.12", "--mmu", "shadow", "--set", "kvm_amd.npt=1"), "npt=1 is set"),
    (("cr0-wp", "--kernel", "6.12", "--mmu", "legacy", "--set", "tdp_mmu=1"), "mmu legacy means kvm.tdp_mmu=0"),
    (("cr0-wp", "--kernel", "6.12", "--mmu", "legacy", "--set", "npt=0"), "mmu legacy needs kvm_amd.npt=1"),
    (("cr0-wp", "--kernel", "6.12", "--mmu", "legcy"), "nearest: legacy"),
    (("cr0-wp", "--kernel", "6.12", "--set", "npt=0", "--set", "npt=1"), "gives npt both 0 and 1"),
    (("cr0-wp", "--kernel", "6.12", "--set", "kvm_intel.ept=0"), "the module of the other vendor"),
    (("cr0-wp", "--kernel", "6.12", "--cpu", "intel", "--set", "cet=1"), "has no such parameter (comes with mainline"),
    (("cr0-wp", "--kernel", "6.12", "--set", "cpuid.shstk=1"), "CET for guests comes with mainline 6.18"),
    (("cr0-wp", "--kernel", "6.2.0+cr0-wp-owend"), "nearest: cr0-wp-owned"),
    (("cr0-wp", "--kernel", "6.12+cr0-wp-owned"), "changes nothing"),
    (("cr0-wp", "--kernel", "99.1"), "The facts reach from"),
    (("cr0-wp", "--kernel", "6.12", "--smp", "2"), "is for --on lab"),
    (("nop", "--kernel", "6.12", "--set", "sim.hz=100"), "create-vm, which is not among"),
    (("create-vm", "--kernel", "6.12", "--set", "sim.hzz=100"), "nearest: sim.hz"),
    (("create-vm", "--kernel", "6.12", "--set", "sim.hz=fast"), "say a whole number"),
    (("create-vm", "--kernel", "6.12", "--set", "sim.hz=1"), "from 24 to 10,000"),
    (("create-vm", "--kernel", "6.12", "--set", "sim.load=full"), "say idle or busy"),
    (("nop", "--kernel", "6.12", "--set", "sim.load=idle"), "create-vm, which is not among"),
    (("create-vm", "--kernel", "6.12", "--set", "sim.arrival=poisson"), "need VMs per second"),
    (("create-vm", "--kernel", "6.12", "--set", "sim.arrival=poisson:often"), "poisson:VMS_A_SECOND"),
    (("create-vm", "--kernel", "6.12", "--set", "sim.arrival=never:1"), "it must be burst, rate, poisson"),
    (("create-vm", "--kernel", "6.12", "--set", "cgroup=mine"), "cgroup=root or cgroup=own"),
    (("create-vm", "--kernel", "5.10", "--set", "favordynmods=late"), "has no such option"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED)
def test_what_makes_no_sense_is_one_sentence(words: tuple[str, ...], said: str) -> None:
    command = [sys.executable, "-c", "from worldswitch.cli import main; main()", "run", "--on", "model", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == USAGE
    assert said in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_a_feature_that_is_not_offered_is_missing_and_the_rest_runs() -> None:
    done = run("cr4-cet", "cr0-wp", "--kernel", "5.10", "--json")
    assert done.return_value == MISSING
    document = json.loads(done.stdout)
    assert [cell["program"] for cell in document["results"]] == ["cr0-wp"]
    assert "needs shstk" in document["failures"][0]["error"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--kernel", "5.10"), "CET for guests comes with mainline 6.18"),
        (
            ("--kernel", "7.2", "--cpu", "intel", "--set", "ept=0"),
            "CET for guests needs EPT, and this is shadow paging",
        ),
        (("--kernel", "7.2", "--mmu", "shadow"), "needs NPT, and this is shadow paging"),
        (("--kernel", "7.2", "--cpu", "intel", "--set", "cet=0"), "kvm_intel.cet=0 forbids CET for guests"),
        (("--kernel", "7.2", "--set", "cpuid.shstk=0"), "cpuid.SHSTK=0 hides it"),
    ],
)
def test_why_cet_is_missing_is_said(words: tuple[str, ...], why: str) -> None:
    done = run("kernexec:cet=true", *words)
    assert done.return_value == MISSING
    assert why in done.stderr and len(done.stderr.strip().splitlines()) == 1


CREATE_VM = ("create-vm", "--kernel", "5.4,6.1,6.12", "--vms", 800, "--burst", 20)


def test_create_vm_gives_times_with_limits_and_origins() -> None:
    found = cells(*CREATE_VM)
    assert [cell["kernel"].rpartition(".")[0] for cell in found] == ["5.4", "6.1", "6.12"]
    for cell in found:
        assert len(cell["create_vm_ns"]) == 20
        assert 0 < cell["time_ns"]["low"] <= cell["time_ns"]["mid"] <= cell["time_ns"]["high"]
        used = [note for note in cell["notes"] if note.startswith("time by the cost of ")]
        assert used and all(len(note.partition(": ")[2]) > 20 for note in used)
    # Thread of June 2023: a grace period on 6.1, none before 6.0, and none once the thread is made later.
    old, waiting, new = (cell["time_ns"]["mid"] for cell in found)
    assert waiting > 10 * max(old, new)


def test_the_ways_out_of_the_wait() -> None:
    def mid(*words: str) -> float:
        (cell,) = cells("create-vm", *words)
        time: float = cell["time_ns"]["mid"]
        return time

    waits = mid("--kernel", "6.1")
    assert mid("--kernel", "6.1", "--set", "nx_huge_pages=never") < waits / 10
    assert mid("--kernel", "6.1", "--set", "favordynmods=1") < waits / 10
    assert mid("--kernel", "5.4") < waits / 10 < mid("--kernel", "5.4", "--set", "cgroup=own")
    assert mid("--kernel", "5.4", "--cgroup", "/sys/fs/cgroup/cpuset/vms") == mid(
        "--kernel", "5.4", "--set", "cgroup=own"
    )


def test_costs_are_a_set_by_name_or_a_file(tmp_path: Path) -> None:
    from worldswitch.costs.atoms import Atom, Costs, dumps

    (cell,) = cells("create-vm", "--kernel", "6.1", "--costs", "lab")
    # The lab, 6.1-auto: 14.9 ms.
    assert cell["time_ns"]["mid"] == pytest.approx(14.9e6)
    own = tmp_path / "mine.toml"
    own.write_text(dumps(Costs((Atom("grace-period", 1e6, 2e6, 3e6, "ns", "measured here"),))))
    (cell,) = cells("create-vm", "--kernel", "6.1", "--costs", own)
    assert cell["time_ns"]["mid"] == pytest.approx(2e6 + 504e3 + 11e3 + 42e3)
    assert any("not of this host" in note for note in cell["notes"])
    assert "measured here" in " ".join(cell["notes"])


def test_the_table_has_the_limits_beside_the_median() -> None:
    text = run("create-vm", "--kernel", "6.1,6.12", "--burst", 4).stdout
    assert "low – high" in text
    assert max(map(len, text.splitlines())) <= 100
    rows = [line.split() for line in text.splitlines() if "KVM_CREATE_VM " in line and line[0].isdigit()]
    assert [row[2] for row in rows] == ["4", "4"]


def test_what_has_no_cost_has_no_time() -> None:
    (cell,) = cells("create-vm", "--kernel", "6.12", "--first-run")
    assert [metric["name"] for metric in cell["metrics"]] == ["create_vm", "create_vm_low", "create_vm_high"]
    assert any(note == "no time: first-run has no cost in published" for note in cell["notes"])
    (cell,) = cells("create-vm", "--kernel", "6.12", "--first-run", "--costs", "lab")
    assert "first_run" in [metric["name"] for metric in cell["metrics"]]


def test_the_readers_side_of_favordynmods_is_told() -> None:
    (cell,) = cells("create-vm", "--kernel", "6.1", "--set", "favordynmods=late")
    assert any("each fork with its exit takes longer, by 0.11 to 39 µs" in note for note in cell["notes"])
    (cell,) = cells("create-vm", "--kernel", "6.1")
    assert not any("fork" in note for note in cell["notes"] if not note.startswith("time by"))


def test_costs_of_making_vms_give_guests_no_time_and_say_so() -> None:
    (cell,) = cells("cr0-wp", "--kernel", "6.12", "--costs", "published")
    assert cell["time_ns"] is None
    assert "no time: the costs published are those of creating VMs" in " ".join(cell["notes"])


def test_equal_faults_stand_once_and_are_not_cut() -> None:
    told = str(run("ssdd:steps=10", "--kernel", "5.10,6.12", "--cpu", "intel,amd", "--mmu", "tdp,shadow").stdout)
    rows = told.partition("Faults")[2].splitlines()[3:4]
    assert rows[0].split() == [
        "ssdd:steps=10",
        *["vcpu", "0", "body", "12", "#DB", "0x0", "-", "0xffffffffffc1802d", "10"],
    ]
