"""What goes into the guest and what comes out of it."""

from __future__ import annotations

import io
import subprocess
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.machines import results
from worldswitch.errors import UnknownNameError, UsageError
from worldswitch.lab.jobs import Job, Setup, pack, traced, unpack


def inside(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as source:
        return {m.name: source.extractfile(m).read() for m in source if m.isfile()}


words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=0, max_size=12)


@settings(deadline=None, max_examples=30)  # each starts two processes
@given(st.lists(words, max_size=4), st.dictionaries(st.sampled_from(["A", "B_1"]), words, max_size=2))
def test_the_guest_runs_the_words_as_they_are(arguments, environment):
    program = ("python3", "-c", "import os,sys; print(ascii((sys.argv[1:], [os.environ.get(n) for n in ('A','B_1')])))")
    script = inside(pack(Setup(), [Job((*program, *arguments), environment=environment)]))["jobs/0/run"]
    done = subprocess.run(["sh", "-c", script], capture_output=True, check=True, text=True)
    assert done.stdout == ascii((arguments, [environment.get(n) for n in ("A", "B_1")])) + "\n"


def test_files_and_folders_come_along(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/data").write_bytes(b"1")
    (tmp_path / "tool").write_bytes(b"2")
    (tmp_path / "tool").chmod(0o755)
    archive = pack(Setup(), [Job(("./tool",), {"tool": tmp_path / "tool", "d": tmp_path / "sub", "x": b"3"})])
    found = inside(archive)
    assert {name: found[f"jobs/0/files/{name}"] for name in ("tool", "d/data", "x")} == {
        "tool": b"2",
        "d/data": b"1",
        "x": b"3",
    }
    with tarfile.open(fileobj=io.BytesIO(archive)) as source:
        assert source.getmember("jobs/0/files/tool").mode & 0o111
        assert {m.uid for m in source} == {0}


@pytest.mark.parametrize("name", ["/etc/passwd", "../up", "a/../../b", ""])
def test_no_path_leaves_the_working_folder(name):
    with pytest.raises(UsageError):
        pack(Setup(), [Job(("true",), {name: b""})])


def test_the_setup_is_what_the_guest_reads():
    setup = Setup((("/lab/modules/kvm.ko", ("tdp_mmu=0",)),), (("kvm", "tdp_mmu"),), favordynmods=True, save=True)
    found = inside(pack(setup, ()))
    assert found["setup/modules"] == b"/lab/modules/kvm.ko tdp_mmu=0\n"
    assert found["setup/requested"] == b"kvm tdp_mmu\n"
    read = subprocess.run(
        ["sh", "-c", found["setup/variables"].decode() + "echo $FAVORDYNMODS$SAVE$SHELL_WANTED"],
        capture_output=True, check=True,
    )  # fmt: skip
    assert read.stdout == b"110\n"


def test_only_the_kits_own_jobs_go_to_the_kit_that_waits():
    found = inside(pack(Setup(), [Job(("wsw", "run", "a b")), Job(("wsw", "run"), limit=3.0), Job(("true",))]))
    assert found["jobs/0/kit"] == b"run\0a b"
    assert "jobs/1/kit" not in found
    assert "jobs/2/kit" not in found
    assert found["jobs/1/seconds"] == b"3"


def test_results_are_read():
    about, (first, second) = unpack(results(2, 7, {"deep/file": b"x"}), 2)
    assert about.release == "6.99.0"
    assert dict(about.parameters) == {"kvm.tdp_mmu": "Y", "kvm_amd.npt": "1"}
    assert (first.status, first.stdout, dict(first.files), first.seconds) == (7, b"hello\n", {"deep/file": b"x"}, 2.5)
    assert second == first


@pytest.mark.parametrize("archive", [results(1), results(2)[:3000], b"", b"no archive" * 100])
def test_fewer_results_than_jobs_are_missing(archive):
    with pytest.raises(ValueError):
        unpack(archive, 2)


def test_a_traced_job_is_run_by_the_recorder():
    assert traced(Job(("wsw", "run")), "perf").argv == ("/lab/bin/traced", "perf", "wsw", "run")
    with pytest.raises(UnknownNameError, match="trace-cmd"):
        traced(Job(("true",)), "tracecmd")
