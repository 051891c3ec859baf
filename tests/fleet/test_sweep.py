"""Cells of a sweep, against the model asked directly."""

from pathlib import Path

import polars as pl
import pytest

from worldswitch.cli.fleet_cells import run_cells
from worldswitch.fleet.engine import Here
from worldswitch.fleet.folder import Folder
from worldswitch.fleet.spec import load
from worldswitch.fleet.sweep import FAILED, sweep
from worldswitch.guest import library
from worldswitch.kvm.policy import Policy
from worldswitch.kvm.vcpu import run

SPEC = """
cells_per_piece = 5
[axes]
program = ["cr0-wp", "page-touch"]
kernel = ["5.10", "6.12"]
cpu = ["intel", "amd"]
mmu = ["default", "shadow"]
n = [3, 50]
"""


def swept(tmp_path, text, name="out"):
    (tmp_path / "sweep.toml").write_text(text)
    folder = Folder(str(tmp_path / name))
    with folder.held():
        found = sweep(load(str(tmp_path / "sweep.toml")), run_cells, folder, Here(), lambda _: None)
    return found, pl.read_parquet(f"{tmp_path}/{name}/cells/**/*.parquet").sort("cell")


def test_counts_are_those_of_the_model(tmp_path):
    found, rows = swept(tmp_path, SPEC)
    assert found.status == {"done": 32}
    for row in rows.iter_rows(named=True):
        policy = Policy.of(row["kernel"], row["cpu"], row["mmu"], [])
        alone = run(library.program(row["program"]), policy, row["n"])
        assert row["exits"] == alone.counters["exits"]
        assert {one["reason"]: one["count"] for one in row["reasons"]} == dict(alone.exits_by_reason)


def test_values_that_exclude_each_other_are_refused_and_the_others_run(tmp_path):
    found, rows = swept(
        tmp_path, '[axes]\nprogram = ["cr0-wp", "cr4-cet"]\nkernel = ["5.10", "7.2"]\ncpu = ["intel"]\n'
    )
    assert found.status == {"done": 3, "refused": 1}
    (refused,) = rows.filter(pl.col("status") == "refused").iter_rows(named=True)
    assert (refused["program"], refused["kernel"]) == ("cr4-cet", "5.10")
    assert "CET" in refused["error"]


def test_a_program_nobody_knows_is_refused_with_the_nearest(tmp_path):
    found, rows = swept(tmp_path, '[axes]\nprogram = ["cr0-wq"]\nkernel = ["6.1"]\n')
    assert found.status == {"refused": 1}
    assert "nearest: cr0-wp" in rows["error"][0]


def test_a_program_file_beside_the_spec_runs(tmp_path):
    source = Path(__file__).parents[1] / "kvm" / "programs"
    (tmp_path / "mine.toml").write_text(next(iter(sorted(source.glob("*.toml")))).read_text())
    found, _ = swept(tmp_path, '[axes]\nprogram = ["mine.toml"]\nkernel = ["6.1"]\n')
    assert found.status == {"done": 1}


def test_parameters_of_programs_are_axes(tmp_path):
    _, rows = swept(
        tmp_path, '[axes]\nprogram = ["page-touch"]\nkernel = ["6.1"]\nn = [32]\n"program.pages" = [4, 16]\n'
    )
    exits = dict(rows.select("program.pages", "pages_4k").iter_rows())
    assert exits["16"] - exits["4"] == 12


def test_bursts_of_new_vms_are_cells_too(tmp_path):
    _, rows = swept(
        tmp_path,
        '[axes]\nprogram = ["create-vm"]\nkernel = ["6.1"]\ncpu = ["intel"]\nset.nx_huge_pages = ["auto", "never"]\n',
    )
    times = dict(rows.select("set.nx_huge_pages", "create_vm_p50_ns").iter_rows())
    assert times["auto"] > times["never"] > 0


def test_what_could_not_be_run_is_failed_and_may_be_tried_again(tmp_path):
    calls = []

    def fails_once(cells, folder):
        calls.append(len(cells))
        return [OSError("no room") if len(calls) == 1 else one for one in run_cells(cells, folder)]

    (tmp_path / "sweep.toml").write_text('[axes]\nprogram = ["cr0-wp"]\nkernel = ["6.1"]\n')
    for retry, status in ((False, {FAILED: 1}), (False, {FAILED: 1}), (True, {"done": 1})):
        folder = Folder(str(tmp_path / "out"))
        with folder.held():
            found = sweep(load(str(tmp_path / "sweep.toml")), fails_once, folder, Here(), lambda _: None, retry)
        assert found.status == status
    assert calls == [1, 1]


@pytest.mark.needs("lab-amd")
def test_the_lab_runs_cells_where_it_is_asked_to(tmp_path):
    found, rows = swept(
        tmp_path, 'on = ["model", "lab"]\n[axes]\nprogram = ["cr0-wp"]\nkernel = ["6.12"]\ncpu = ["amd"]\nn = [200]\n'
    )
    assert found.status == {"done": 2}
    assert rows["exits_per_op"].to_list() == [pytest.approx(rows["exits_per_op"][0])] * 2
