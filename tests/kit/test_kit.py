"""The kit's one file, run by interpreters that have nothing else."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from worldswitch.cli import UNSTABLE
from worldswitch.cli.bundle import all_images, kit
from worldswitch.cli.work import assembled
from worldswitch.record.resultfile import load, loads

QUICK = ("-n", "20", "--repeat", "1")
OLD = pytest.mark.needs("python3.9")


@pytest.fixture(scope="module")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kit") / "wsw.pyz"
    path.write_bytes(kit(all_images(["nop:count=7"])))
    return path


def run(pyz: Path, *arguments: object, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    """Run it isolated, without site-packages; again where a busy host kept its counts from settling."""
    command = [str(word) for word in (python, "-I", "-S", pyz, *arguments)]
    for _ in range(5):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=pyz.parent)
        if done.returncode != UNSTABLE:
            break
    return done


@pytest.fixture(params=["this", pytest.param("3.9", marks=OLD)])
def python(request: pytest.FixtureRequest, python39: str | None) -> str:
    """This interpreter, and a 3.9 where there is one."""
    return sys.executable if request.param == "this" else str(python39)


def test_the_same_programs_give_the_same_bytes() -> None:
    images = [assembled("nop"), assembled("cpuid")]
    assert kit(images) == kit(reversed(images))


@pytest.mark.needs("kvm")
def test_a_program_runs(pyz: Path, python: str) -> None:
    done = run(pyz, "run", "cr0-wp,nop", "--on", "kvm", *QUICK, "--json", "--save", "kept.json", python=python)
    assert done.returncode == 0, done.stderr
    result = loads(done.stdout)
    assert [cell.dimensions["program"] for cell in result.cells] == ["cr0-wp", "nop"]
    assert result.cells == load(pyz.parent / "kept.json").cells
    text = run(pyz, "run", "page-fault", *QUICK, python=python)
    assert "#PF" in text.stdout
    assert "wsw:" not in text.stderr


@pytest.mark.needs("kvm")
def test_create_vm_runs(pyz: Path, python: str) -> None:
    done = run(pyz, "run", "create-vm", "--vms", 2, "--burst", 2, "--repeat", 2, "--json", python=python)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["results"][0]["create_vm_ns"]) == 4
    assert "KVM_CREATE_VM" in run(pyz, "run", "create-vm", "--repeat", 1, python=python).stdout


@pytest.mark.needs("kvm")
def test_it_counts_what_wsw_counts(pyz: Path) -> None:
    from click.testing import CliRunner

    from worldswitch.cli import wsw

    here = json.loads(CliRunner().invoke(wsw, ["run", "io", *QUICK, "--json"]).stdout)["results"][0]
    there = json.loads(run(pyz, "run", "io", *QUICK, "--json").stdout)["results"][0]
    assert there["dimensions"] == here["dimensions"]
    assert there["per_op"]["exits"] == here["per_op"]["exits"] == 1


@pytest.mark.needs("kvm")
def test_variants_are_told_apart(pyz: Path) -> None:
    rows = [
        line.split()[0] for line in run(pyz, "run", "nop,nop:count=7", *QUICK).stdout.splitlines() if "pass" in line
    ]
    assert rows == ["nop", "nop:count=7"]


@pytest.mark.needs("kvm")
def test_images_in_files_run(pyz: Path, python: str) -> None:
    files = []
    for number, spec in enumerate(["nop:count=3", "cpuid"]):
        files.append(pyz.parent / f"{number}.img")
        files[-1].write_bytes(assembled(spec).to_bytes())
    done = run(pyz, "run", "--image", files[0], "--image", files[1], *QUICK, "--json", python=python)
    assert done.returncode == 0, done.stderr
    assert [cell["program"] for cell in json.loads(done.stdout)["results"]] == ["nop", "cpuid"]
    assert run(pyz, "run", files[0], *QUICK, python=python).returncode == 0


@pytest.mark.parametrize(
    "spec", ["nop:count=7", "cr0-wp:single=yes", "context-switch:noflush=1,pcid=true", "io:read=1"]
)
def test_parameters_find_their_variant(pyz: Path, spec: str) -> None:
    from worldswitch.kit.programs import find

    listed = json.loads(run(pyz, "programs", "--json").stdout)
    assert find(listed, spec)["parameters"] == assembled(spec).parameters


def test_it_lists_its_programs(pyz: Path, python: str) -> None:
    listed = json.loads(run(pyz, "programs", "--json", python=python).stdout)
    assert listed["cr0-wp"]["unit"] == "pair"
    assert listed["nop:count=7"]["parameters"] == {"count": 7}
    text = run(pyz, "programs", python=python).stdout
    assert "create-vm" in text


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("run", "cr0-wpx"), 2, "unknown program 'cr0-wpx'; nearest: cr0-wp"),
        (("run", "nop:count=9"), 2, "to put it in: wsw bundle -o wsw.pyz nop:count=9"),
        (("run", "nop:coun=9"), 2, "nearest: count"),
        (("run",), 2, "no program is named"),
        (("run", "nop", "--vms", 3), 2, "create-vm"),
        (("run", "nop", "--set", "kvm.x=1"), 2, "cpuid.FEATURE"),
        (("run", "nop", "--deadline", 0), 2, "more than 0"),
        (("run", "nop", "--deadline", "0ms"), 2, "more than 0"),
        (("run", "nop", "--deadline", "1e9s"), 2, "less than 1e9"),
        (("run", "nop", "--deadline", "nan"), 2, "not a duration"),
        (("run", "nothing.img"), 3, "cannot be read"),
        (("run", "--image", "wsw.pyz"), 2, "wsw.pyz: not an image"),
        (("counters", 1), 3, "no"),
    ],
)
def test_bad_input_is_one_sentence(pyz: Path, python: str, arguments: tuple, status: int, says: str) -> None:
    done = run(pyz, *arguments, python=python)
    assert done.returncode == status, done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("wsw: ")
    assert says in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("arguments", [("run", "nop", "-n", "0"), ("run", "nop", "-n", "x"), ("walk",), ()])
def test_argparse_refuses(pyz: Path, python: str, arguments: tuple[str, ...]) -> None:
    assert run(pyz, *arguments, python=python).returncode == 2


@pytest.mark.needs("kvm")
def test_counters_of_a_process_with_a_vm(pyz: Path) -> None:
    from worldswitch.live.device import Kvm

    if not Path("/sys/kernel/debug/kvm").is_dir():
        pytest.skip("debugfs is not mounted")
    with Kvm() as kvm, kvm.create_vm() as vm, vm.create_vcpu():
        done = run(pyz, "counters", os.getpid())
    assert done.returncode == 0, done.stderr
    assert "pages_4k" in done.stdout


@pytest.mark.needs("kvm")
def test_an_interrupt_shows_what_is_finished(pyz: Path, python: str) -> None:
    image = pyz.parent / "long.img"
    image.write_bytes(assembled("hlt").to_bytes())
    words = [python, "-I", "-S", str(pyz), "run", "nop", str(image), "-n", "10000000", "--deadline", "60s", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        # nop's ten million passes and the count of halts take a while; the halts take minutes.
        time.sleep(3)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130, stderr
    assert stderr.endswith("wsw: interrupted; what was finished is shown\n")
    assert len(json.loads(stdout)["results"]) <= 1


@pytest.mark.needs("kvm", "kvm-events")
def test_it_records(pyz: Path, python: str) -> None:
    from worldswitch.trace import open_source

    out = pyz.parent / "kit.trace.txt.gz"
    words = ("record", "--tool", "tracefs", "-o", out, "--", python, "-I", "-S", pyz, "run", "io", *QUICK)
    done = run(pyz, *words, python=python)
    assert done.returncode == 0, done.stderr
    assert "wsw analyze" in done.stderr
    source = open_source(out)
    assert sum(len(batch) for batch in source.batches())


def test_the_file_runs_by_its_name(pyz: Path) -> None:
    pyz.chmod(0o755)
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run([pyz, "programs"], capture_output=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert shutil.which("python3") is not None
