"""Building KVM with changes taken out or put in, from the distribution's headers and source, for its own kernel."""

from __future__ import annotations

import hashlib
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldswitch.errors import MissingError, UsageError, printable
from worldswitch.lab import artifacts, buildroot, cache, compiling, fetch, modules, reversal
from worldswitch.lab.buildroot import KVM_SOURCES, BuildRoot
from worldswitch.lab.packages import KernelPackages, Say, Source

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
_ENVIRONMENT = ("env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C")
_NO_HUNK = re.compile(r"Hunk #(\d+) FAILED at (\d+)")
_FILE = re.compile(r"(?:patching|checking) file '?(.+?)'?$")


@dataclass(frozen=True, slots=True)
class Request:
    """What to build.

    Attributes:
        kernel: The kernel the modules are for, as :func:`artifacts.kernel` takes it.
        name: What to call the build.
        reverts: Facts or commits to take out, in this order.
        patches: Patches to apply after that, in this order.
        tree: A kernel tree of one's own whose KVM is built instead of the distribution's; None for the latter.
    """

    kernel: str
    name: str
    reverts: tuple[str, ...] = ()
    patches: tuple[Path, ...] = ()
    tree: Path | None = None

    @property
    def command(self) -> str:
        """The command that asks for it."""
        words = ["wsw", "lab", "build", self.kernel]
        for wanted in self.reverts:
            words += ["--revert", wanted]
        for patch in self.patches:
            words += ["--patch", str(patch)]
        words += ["--source", str(self.tree)] if self.tree else []
        return shlex.join([*words, "--name", self.name])


@dataclass(frozen=True, slots=True)
class _Patch:
    """A change as text: put in, or taken out if *backwards*."""

    name: str
    text: bytes
    backwards: bool = False

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text).hexdigest()


@dataclass(frozen=True, slots=True)
class _Plan:
    """A request, read and checked: what to do to the source of which kernel."""

    request: Request
    kernel: KernelPackages
    reversals: tuple[reversal.Reversal, ...]
    patches: tuple[_Patch, ...]
    own: str
    """Of an own tree: the hash of its KVM."""

    @property
    def inputs(self) -> dict[str, Any]:
        """Everything the modules depend on; equal inputs need no second build."""
        return {
            "package": self.kernel.package, "reversals": [r.fact for r in self.reversals], "own": self.own,
            "patches": [[p.sha256, p.backwards] for p in self.patches], "steps": 1,
        }  # fmt: skip


def build(request: Request, source: Source, say: Say = fetch.quiet, *, jobs: int = 0) -> artifacts.BuildFiles:
    """KVM's modules as asked for, built unless the same were under that name before.

    Args:
        request: What to build.
        source: Where the kernel's headers, source and compiler come from.
        say: Takes a line per step.
        jobs: Compilers at once; 0 means one per CPU.

    Raises:
        UsageError: The request makes no sense for that kernel.
        UnknownNameError: A fact does not exist.
        MissingError: A package is missing, a change does not apply, or the compiler fails; says where and why.
    """
    plan = _plan(request, source, say)
    here = cache.find("builds", request.name)
    same = here is not None and here.about.get("inputs") == plan.inputs
    if same:
        say(f"{request.name}: nothing changed since it was built")

    def fill(folder: Path) -> Mapping[str, Any]:
        root = buildroot.fetched(plan.kernel, source, say)
        work = folder / ".work"
        work.mkdir()
        clone = buildroot.cloned(root, work)
        removed = _change(plan, clone, say)
        say(f"building KVM for {plan.kernel.release}; this takes about a minute")
        log = compiling.log_of(request.name)
        make = [
            "make",
            "-C",
            f"/{clone.headers}",
            f"M=/{clone.tree}/arch/x86/kvm",
            f"-j{jobs or compiling.jobs()}",
            "modules",
        ]
        compiling.step(buildroot.command(work, [*_ENVIRONMENT, *make]), folder, log, f"building {request.name}")
        files = _collect(clone, folder, plan.kernel.release, log)
        cache.discard(work)
        return _stamp(plan, root, removed, files, folder)

    cache.store("builds", request.name, fill, anew=not same)
    return artifacts.build(request.name)


def _plan(request: Request, source: Source, say: Say) -> _Plan:
    if not _NAME.fullmatch(request.name):
        raise UsageError(f"a build is not named {printable(request.name)!r}: letters, digits and . _ + - only")
    patches = [_Patch(path.name, _read(path)) for path in request.patches]
    found = [(wanted, reversal.named(wanted)) for wanted in request.reverts]
    for wanted, known in found:
        if known is None and request.tree is None:
            raise MissingError(
                f"how to take commit {wanted} out is not described (described: {_described()}); name a git tree with"
                " it by --source DIR, or give the change as --patch FILE"
            )
    own = ""
    if request.tree is not None:
        own = _hash_of_tree(request.tree)
        patches[:0] = [_of_commit(request.tree, wanted) for wanted, known in found if known is None]
    kernel = _kernel(request.kernel, source, say)
    if request.tree is not None:
        _check_line(request.tree, kernel)
    known_reversals = tuple(known for _, known in found if known is not None)
    for known in known_reversals:
        reason = reversal.reason_not(known.fact, kernel.version)
        if reason and request.tree is None:
            raise UsageError(reason)
    return _Plan(request, kernel, known_reversals, tuple(patches), own)


def _described() -> str:
    return ", ".join(f"{r.commit} ({r.fact})" for r in reversal.reversals().values())


def _kernel(spec: str, source: Source, say: Say) -> KernelPackages:
    """The packages of the kernel, fetched to run the modules in; just this version's headers are wanted."""
    files = fetch.kernel(spec, source, say)
    entry = cache.find("kernels", files.release)
    if entry is None:
        raise MissingError(f"kernel {files.release} has gone from the cache; run the command again")
    about = entry.about
    return KernelPackages(files.release, files.version, str(about["suite"]), dict(about["packages"]))


def _change(plan: _Plan, clone: BuildRoot, say: Say) -> dict[str, list[str]]:
    """Change the source as asked for; fact -> what was removed for it."""
    tree = clone.path / clone.tree
    if plan.request.tree is not None:
        _overlay(plan.request.tree, tree)
    removed = {}
    for known in plan.reversals:
        removed[known.fact] = reversal.take_out(known, tree)
        for line in removed[known.fact]:
            say(f"removed {line}")
    for patch in plan.patches:
        _apply(patch, clone)
        say(f"{'took out' if patch.backwards else 'applied'} {patch.name}")
    return removed


def _apply(patch: _Patch, clone: BuildRoot) -> None:
    file = clone.path / "tmp/change.patch"
    file.write_bytes(patch.text)
    arguments = [
        "patch",
        "-p1",
        "--fuzz=0",
        "--batch",
        "--no-backup-if-mismatch",
        "--reject-file=-",
        "-d",
        f"/{clone.tree}",
    ]
    # Without it, --batch would take out a change that is there already.
    arguments += ["--reverse"] if patch.backwards else ["--forward"]
    command = buildroot.command(clone.path, [*_ENVIRONMENT, *arguments, "-i", "/tmp/change.patch"])
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode or "Only garbage was found" in done.stdout + done.stderr:
        raise MissingError(_refusal(patch, done.stdout + done.stderr))


def _refusal(patch: _Patch, said: str) -> str:
    """Why a patch does not apply: the files and hunks."""
    name = printable(patch.name)
    if "Only garbage was found" in said:
        return f"{name} is not a patch; write it with `git format-patch` or `git diff`"
    verb = "cannot be taken out of" if patch.backwards else "does not apply to"
    file, failed = "", []
    for line in said.splitlines():
        if found := _FILE.match(line):
            file = found[1]
        elif found := _NO_HUNK.match(line):
            failed.append(f"hunk {found[1]} of {printable(file)} at line {found[2]}")
        elif "previously applied" in line:
            failed.append(f"{printable(file)} has it already")
    if "can't find file to patch" in said:
        lost = re.findall(r"^\|(?:---|diff --git) a/(\S+)", said, re.MULTILINE)
        what = printable(lost[-1]) if lost else "a file"
        failed.append(f"{what} is not among the sources of KVM's modules and their headers")
    told = "; ".join(dict.fromkeys(failed)) or printable(said.strip()[-300:])
    return f"{name} {verb} this kernel's KVM: {told}"


def _collect(clone: BuildRoot, folder: Path, release: str, log: Path) -> dict[str, str]:
    """Copy the modules out, without debug information; module -> file name."""
    files: dict[str, str] = {}
    for built in sorted((clone.path / clone.tree / "arch/x86/kvm").rglob("*.ko")):
        inside = f"/{built.relative_to(clone.path)}"
        strip = buildroot.command(clone.path, [*_ENVIRONMENT, "strip", "--strip-debug", inside])
        compiling.step(strip, folder, log, f"stripping {built.name}")
        module = modules.load(built)
        if module.release != release:
            raise MissingError(
                f"{built.name} came out for kernel {printable(module.release)}, not {release}; its headers do not fit"
            )
        shutil.copyfile(built, folder / built.name)
        files[module.name] = built.name
    if "kvm" not in files or len(files) < 2:
        raise MissingError(f"the build left no kvm.ko with a vendor module; its output is in {log}")
    return files


def _stamp(
    plan: _Plan, root: BuildRoot, removed: Mapping[str, Sequence[str]], files: Mapping[str, str], folder: Path
) -> dict[str, Any]:
    compilers = {name: version for name, version in root.packages.items() if re.fullmatch(r"gcc-\d+", name)}
    changes = [f"without {r.fact}" for r in plan.reversals]
    changes += [f"{'without' if p.backwards else 'with'} {p.name}" for p in plan.patches]
    changes += [f"from {plan.request.tree}"] if plan.request.tree else []
    return {
        "what": f"KVM of {plan.kernel.version} {', '.join(changes) or 'as it is'}", "release": plan.kernel.release,
        "version": plan.kernel.version, "package": plan.kernel.package, "command": plan.request.command,
        "reversals": [{"fact": r.fact, "commit": r.commit, "removed": removed[r.fact]} for r in plan.reversals],
        "patches": [{"name": p.name, "sha256": p.sha256, "backwards": p.backwards} for p in plan.patches],
        "tree": str(plan.request.tree) if plan.request.tree else None, "compiler": compilers, "modules": dict(files),
        "sha256": {name: hashlib.sha256((folder / file).read_bytes()).hexdigest() for name, file in files.items()},
        "inputs": plan.inputs,
    }  # fmt: skip


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise MissingError(f"cannot read the patch {printable(str(path))}: {error.strerror}") from error


def _own_files(tree: Path) -> list[Path]:
    found = []
    for prefix in KVM_SOURCES:
        folder = tree / prefix
        inside = folder.rglob("*") if prefix.endswith("/") else folder.parent.glob(f"{folder.name}*")
        found += [
            p
            for p in inside
            if p.is_file() and (p.suffix in (".c", ".h", ".S") or p.name.startswith(("Makefile", "Kc")))
        ]
    return sorted(set(found))


def _hash_of_tree(tree: Path) -> str:
    if not (tree / "arch/x86/kvm/x86.c").is_file():
        raise MissingError(f"{printable(str(tree))} is no kernel tree: it has no arch/x86/kvm/x86.c")
    digest = hashlib.sha256()
    for path in _own_files(tree):
        digest.update(f"{path.relative_to(tree)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _overlay(tree: Path, target: Path) -> None:
    for path in _own_files(tree):
        place = target / path.relative_to(tree)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        shutil.copyfile(path, place)


def _check_line(tree: Path, kernel: KernelPackages) -> None:
    """Modules of another line than the headers would not compile, or worse."""
    try:
        head = (tree / "Makefile").read_text("utf-8", "replace")[:2000]
    except OSError:
        return
    found = re.search(r"^VERSION = (\d+)\nPATCHLEVEL = (\d+)$", head, re.MULTILINE)
    if found and not kernel.version.startswith((f"{found[1]}.{found[2]}.", f"{found[1]}.{found[2]}-")):
        raise UsageError(
            f"{printable(str(tree))} is a {found[1]}.{found[2]} kernel, whose KVM does not fit the headers of"
            f" {kernel.version}; build it for {found[1]}.{found[2]}, or check out v{kernel.version} in it"
        )


def _of_commit(tree: Path, commit: str) -> _Patch:
    """The change a commit of a git tree made to KVM, to be taken out."""
    compiling.require({"git": "git"}, "taking out a commit")
    prefixes = [f"{prefix}*" for prefix in KVM_SOURCES]
    command = ["git", "-C", str(tree), "show", "--format=", "--no-color", "--no-ext-diff", commit, "--", *prefixes]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        said = printable(done.stderr.decode("utf-8", "replace").strip().splitlines()[-1] if done.stderr.strip() else "")
        raise MissingError(f"{printable(str(tree))} has no commit {printable(commit)} ({said}); fetch it there first")
    if not done.stdout.strip():
        raise UsageError(f"commit {printable(commit)} changes nothing in KVM's modules")
    return _Patch(f"commit {commit}", done.stdout, backwards=True)
