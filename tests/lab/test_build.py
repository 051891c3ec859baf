"""Builds of KVM: what is refused before anything is fetched, what is said when one fails, and a real one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from worldswitch.errors import MissingError, UsageError
from worldswitch.lab import artifacts, build, buildroot, cache, compiling, modules
from worldswitch.lab.build import Request


class NoSource:
    """A source that must not be asked."""

    description = "no source"

    def __getattr__(self, name):
        raise AssertionError(f"the source was asked for {name}")


def git_tree(folder: Path) -> Path:
    """A tree with one file of KVM, changed by a second commit."""
    (folder / "arch/x86/kvm").mkdir(parents=True)
    (folder / "Makefile").write_text("# SPDX\nVERSION = 6\nPATCHLEVEL = 1\nSUBLEVEL = 5\n")
    git = [
        "git",
        "-C",
        str(folder),
        "-c",
        "user.name=n",
        "-c",
        "user.email=n@example.org",
        "-c",
        "commit.gpgsign=false",
    ]
    for text in ("one\n", "one\ntwo\n"):
        (folder / "arch/x86/kvm/x86.c").write_text(text)
        (folder / "README").write_text(text)
        for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", text]):
            subprocess.run([*git, *command], check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("name", ["", "../x", ".hidden", "a/b", "a b", "x" * 65])
def test_a_name_that_is_no_folder_name_is_refused(name):
    with pytest.raises(UsageError, match="letters, digits"):
        build.build(Request("6.1", name), NoSource())


def test_a_commit_without_description_asks_for_a_tree_or_a_patch():
    with pytest.raises(
        MissingError, match=r"commit 0123456789ab out is not described .*--source DIR, or .*--patch FILE"
    ):
        build.build(Request("6.1", "x", ("0123456789ab",)), NoSource())


def test_a_patch_that_cannot_be_read(tmp_path):
    with pytest.raises(MissingError, match=r"cannot read the patch .*No such file"):
        build.build(Request("6.1", "x", patches=(tmp_path / "no.patch",)), NoSource())


def test_a_tree_that_is_no_kernel(tmp_path):
    with pytest.raises(MissingError, match=r"is no kernel tree: it has no arch/x86/kvm/x86\.c"):
        build.build(Request("6.1", "x", tree=tmp_path), NoSource())


@pytest.mark.needs("git")
def test_a_commit_is_taken_from_the_tree_for_kvm_alone(tmp_path):
    tree = git_tree(tmp_path / "linux")
    patch = build._of_commit(tree, "HEAD")
    assert patch.backwards
    assert b"+two" in patch.text and b"README" not in patch.text
    with pytest.raises(MissingError, match="has no commit 0123456789ab"):
        build._of_commit(tree, "0123456789ab")


def test_the_same_request_reads_as_its_command():
    request = Request("6.1", "x", ("cr0-wp-owned",), (Path("a b.patch"),), Path("/src/linux"))
    assert request.command == "wsw lab build 6.1 --revert cr0-wp-owned --patch 'a b.patch' --source /src/linux --name x"


PATCH = """\
--- a/arch/x86/kvm/x86.c
+++ b/arch/x86/kvm/x86.c
@@ -1,3 +1,3 @@
 one
-{old}
+{new}
 three
"""


def refused(tmp_path, text, *, content="one\ntwo\nthree\n", backwards=False) -> str:
    """What is said of a patch that the real patch program refuses."""
    (tmp_path / "arch/x86/kvm").mkdir(parents=True, exist_ok=True)
    (tmp_path / "arch/x86/kvm/x86.c").write_text(content)
    arguments = [
        "patch",
        "-p1",
        "--batch",
        "--reject-file=-",
        "-d",
        str(tmp_path),
        "--reverse" if backwards else "--forward",
    ]
    done = subprocess.run(arguments, input=text, capture_output=True, text=True, check=False)
    assert done.returncode or "garbage" in done.stdout + done.stderr
    return build._refusal(build._Patch("my.patch", text.encode(), backwards), done.stdout + done.stderr)


@pytest.mark.needs("patch")
def test_a_patch_that_does_not_apply_names_the_file_and_hunk(tmp_path):
    said = refused(tmp_path, PATCH.format(old="2", new="II"))
    assert said == "my.patch does not apply to this kernel's KVM: hunk 1 of arch/x86/kvm/x86.c at line 1"
    said = refused(tmp_path, PATCH.format(old="2", new="II"), backwards=True)
    assert said == "my.patch cannot be taken out of this kernel's KVM: hunk 1 of arch/x86/kvm/x86.c at line 1"


@pytest.mark.needs("patch")
def test_a_patch_that_is_applied_already_is_not_taken_out(tmp_path):
    said = refused(tmp_path, PATCH.format(old="two", new="II"), content="one\nII\nthree\n")
    assert "arch/x86/kvm/x86.c has it already" in said


@pytest.mark.needs("patch")
def test_a_patch_of_other_files_names_them(tmp_path):
    said = refused(tmp_path, PATCH.format(old="two", new="II").replace("kvm/x86.c", "mm/fault.c"))
    assert "arch/x86/mm/fault.c is not among the sources of KVM's modules" in said


@pytest.mark.needs("patch")
def test_what_is_no_patch_is_said_so(tmp_path):
    assert refused(tmp_path, "hello\n") == "my.patch is not a patch; write it with `git format-patch` or `git diff`"


def test_the_compilers_last_lines_are_those_that_tell():
    text = "  CC a.o\n" * 50 + "x.c:3:5: error: no such thing\n   3 | thing\nmake: *** [x.o] Error 1\n"
    assert compiling.last_lines(text).splitlines() == [
        "  x.c:3:5: error: no such thing",
        "     3 | thing",
        "  make: *** [x.o] Error 1",
    ]
    assert compiling.last_lines("a\n\nb\n") == "  a\n  b"


def test_a_step_that_fails_says_why_and_where_all_of_it_is(tmp_path):
    log = tmp_path / "log"
    with pytest.raises(MissingError, match=r"building x failed; all of it is in .*log:\n  x\.c:1: error: wrong"):
        compiling.step(["sh", "-c", "echo fine; echo x.c:1: error: wrong; exit 2"], tmp_path, log, "building x")
    assert "fine" in log.read_text()


def test_a_compiler_that_is_not_there_is_named_with_its_package():
    with pytest.raises(MissingError, match=r"needs no-such-cc, not found on PATH; install the packages gcc-99"):
        compiling.require({"no-such-cc": "gcc-99", "sh": "dash"}, "building x")


def test_an_interrupted_step_leaves_nothing_running(tmp_path):
    code = (
        "from pathlib import Path\nfrom worldswitch.lab import compiling\n"
        f"command, folder = ['sh', '-c', 'echo $$ > pid; sleep 600 & wait'], Path({str(tmp_path)!r})\n"
        "compiling.step(command, folder, Path('/dev/null'), 'x')"
    )
    run = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    pid = tmp_path / "pid"
    deadline = time.monotonic() + 60
    while not (pid.exists() and pid.read_text().strip()) and time.monotonic() < deadline:
        time.sleep(0.02)
    run.send_signal(signal.SIGINT)
    run.wait(30)
    group = int(pid.read_text())
    while time.monotonic() < deadline:
        try:
            os.killpg(os.getpgid(group), 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail(f"process {group} is still there")


@pytest.fixture
def root():
    """A build root that is in the cache, the smallest kernel's."""
    entries = cache.entries("buildroots")
    entry = min(entries, key=lambda e: artifacts.version_key(e.about["what"].rpartition(" ")[2]))
    about = entry.about
    return buildroot.BuildRoot(entry.path, about["headers"], about["tree"], about["packages"])


@pytest.mark.needs("buildroot")
def test_changing_a_clone_leaves_the_build_root_as_it_was(root, tmp_path):
    entry = next(e for e in cache.entries("buildroots") if e.path == root.path)
    clone = buildroot.cloned(root, tmp_path / "clone")
    file = "arch/x86/kvm/x86.c"
    first, second = (root.path / root.tree / file).read_text().splitlines()[:2]
    text = f"--- a/{file}\n+++ b/{file}\n@@ -1,2 +1,3 @@\n {first}\n+/* more */\n {second}\n"
    build._apply(build._Patch("a.patch", text.encode()), clone)
    assert (clone.path / clone.tree / file).read_text().splitlines()[1] == "/* more */"
    with pytest.raises(MissingError, match=r"a\.patch does not apply .*arch/x86/kvm/x86.c"):
        build._apply(build._Patch("a.patch", text.replace(first, "nothing like it").encode()), clone)
    build._apply(build._Patch("a.patch", text.encode(), backwards=True), clone)
    assert (clone.path / clone.tree / file).read_text() == (root.path / root.tree / file).read_text()
    assert entry.damage(thorough=True) is None


@pytest.mark.needs("buildroot")
def test_a_build_root_has_the_kernels_own_compiler(root):
    said = subprocess.run(
        buildroot.command(root.path, ["sh", "-c", "gcc-* --version; make --version"]),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Free Software Foundation" in said.stdout and "GNU Make" in said.stdout


@pytest.mark.needs("build")
def test_builds_of_the_cache_fit_their_kernels():
    for entry in cache.entries("builds"):
        files = artifacts.build(entry.name)
        assert set(files.modules) >= {"kvm", "kvm_intel"}
        for name, path in files.modules.items():
            module = modules.load(path)
            assert (module.name, module.release) == (name, files.release)
