"""Packages of a Debian mirror, through a private apt state: nothing of the machine's own package system is touched.

apt verifies the signatures of the indexes and the hashes of the files, resumes downloads and knows the machine's
proxies. Each suite has an apt state of its own below the cache, so that no suite's packages are mixed with another's.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote

from worldswitch.errors import MissingError, printable
from worldswitch.lab import cache, deb
from worldswitch.lab.packages import SUITES, NoSuite, Package, Say, Suite, missing_suite

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
SECURITY = ("bullseye", "bookworm", "trixie")
"""Suites that have a security archive; kernels there come and go faster than in the main one."""
_FRESH = 600.0
_PRINTED = re.compile(r"'([^']+)' (\S+) (\d+) (?:SHA256:)?(\S*)")
_INSTALLED = re.compile(r"Inst (\S+) (?:\[\S+\] )?\((\S+) ")
_TARGET = "$(CREATED_BY)|$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(ORIGIN)"
_DAY = 86400.0


@dataclass(frozen=True, slots=True)
class Mirror:
    """A Debian mirror.

    Attributes:
        url: Of the main archive.
        security: Of the security archive; empty if none is known.
        keyring: The keys its indexes must be signed by; None for those apt trusts.
    """

    url: str
    security: str = ""
    keyring: Path | None = None

    @property
    def description(self) -> str:
        return f"the mirror {self.url}"

    def suites(self) -> Sequence[str]:
        return SUITES

    def suite(self, name: str, *, sources: bool = False) -> Suite:
        base, _, part = name.partition("-")
        if base not in SUITES or part not in ("", "security") or (part and base not in SECURITY):
            raise missing_suite(name, self.description, SUITES)
        if part and not self.security:
            raise NoSuite(f"no security archive is known beside {self.url}; this machine's sources name none")
        state = _State(self, name, sources)
        state.refresh()
        return state

    def get(self, packages: Iterable[Package], say: Say) -> list[Path]:
        wanted = list(packages)
        with cache.locked("downloads"), cache.writable():
            folder = cache.root() / "downloads"
            folder.mkdir(parents=True, exist_ok=True)
            _forget_old(folder)
            missing = [p for p in wanted if not _verified(_place(p), p)]
            if missing:
                total = sum(package.size for package in missing)
                say(f"downloading {len(missing)} packages, {total / 1e6:.0f} MB, from {self.url}")
                _download(missing)
            for package in missing:
                if not _verified(_place(package), package):
                    raise MissingError(
                        f"{package.file} from {self.url} is not what its signed index says; run the command again, and"
                        " if it stays so, the mirror is damaged: name another with --mirror URL"
                    )
        return [_place(package) for package in wanted]

    def drop(self, packages: Iterable[Package]) -> None:
        for package in packages:
            _place(package).unlink(missing_ok=True)


def own_mirror(keyring: Path | None = None) -> Mirror:
    """The Debian mirror that this machine's own package sources name.

    Raises:
        MissingError: There is no apt, or its sources name no Debian mirror.
    """
    remedy = "name a mirror with --mirror URL, or a folder of .deb packages with --mirror DIR"
    if not shutil.which("apt-get"):
        raise MissingError(f"this machine has no apt-get, so it has no Debian sources of its own; {remedy}")
    url = security = ""
    for line in _run(
        ["apt-get", "indextargets", "--format", _TARGET], "list this machine's package sources"
    ).splitlines():
        kind, uri, release, component, origin = (line.split("|") + [""] * 5)[:5]
        base, _, part = release.partition("-")
        known = base in SUITES or base in ("stable", "testing", "unstable", "oldstable", "forky")
        if kind != "Packages" or component != "main" or not known or origin not in ("Debian", "") or ":" not in uri:
            continue
        if part == "security":
            security = security or uri.rstrip("/")
        elif not part and not uri.startswith("cdrom:"):
            url = url or uri.rstrip("/")
    if not url:
        raise MissingError(f"this machine's package sources name no Debian mirror; {remedy}")
    return Mirror(url, security, keyring or (KEYRING if KEYRING.exists() else None))


def mirror(url: str, keyring: Path | None = None) -> Mirror:
    """A mirror named by its URL, of the main archive.

    Raises:
        MissingError: There is no apt, or no keyring to verify it by.
    """
    if not shutil.which("apt-get"):
        raise MissingError(
            "a mirror is read through apt-get, which is not installed; install apt (many distributions have it), or"
            " name a folder of .deb packages with --mirror DIR"
        )
    if keyring is not None and not keyring.is_file():
        raise MissingError(f"no keyring {printable(str(keyring))}")
    if keyring is None and not KEYRING.exists():
        raise MissingError(
            f"{KEYRING} is not there, so what {printable(url)} sends could not be verified; install"
            " debian-archive-keyring, or name the mirror's keys with --keyring FILE"
        )
    return Mirror(url.rstrip("/"), "", keyring or KEYRING)


@dataclass(frozen=True, slots=True)
class _State:
    """The apt state of one suite of one mirror."""

    mirror: Mirror
    name: str
    sources: bool

    @property
    def _url(self) -> str:
        return self.mirror.security if self.name.endswith("-security") else self.mirror.url

    @property
    def _folder(self) -> Path:
        known = f"{self._url} {self.mirror.keyring}"
        return cache.root() / "apt" / f"{self.name}-{sha256(known.encode()).hexdigest()[:8]}"

    @property
    def _stamp(self) -> Path:
        return self._folder / ("refreshed-sources" if self.sources else "refreshed")

    def refresh(self) -> None:
        """Download the indexes unless that was done a few minutes ago.

        Raises:
            MissingError: The mirror does not answer, lacks the suite, or its signature is wrong.
        """
        with cache.locked(f"apt-{self._folder.name}"), cache.writable():
            if self._stamp.exists() and 0 <= time.time() - self._stamp.stat().st_mtime < _FRESH:
                return
            self._write()
            try:
                self._apt("apt-get", "update", "-qq", "-o", "APT::Update::Error-Mode=any")
            except MissingError:
                self._stamp.unlink(missing_ok=True)
                raise
            self._stamp.touch()

    def find(self, pattern: str) -> list[tuple[str, str]]:
        text = self._apt("apt-cache", "search", "--names-only", f"^({pattern})$")
        names = sorted({line.split(" ", 1)[0] for line in text.splitlines() if line})
        found = []
        for line in self._apt("apt-cache", "madison", *names).splitlines() if names else ():
            name, version, origin = ([part.strip() for part in line.split("|")] + ["", ""])[:3]
            if origin.endswith("Packages") and f" {self.name}/main " in origin:
                found.append((name, version))
        return found

    def exact(self, wanted: Mapping[str, str]) -> list[Package]:
        specs = [f"{name}={version}" if version else name for name, version in wanted.items()]
        printed = self._apt("apt-get", "download", "--print-uris", "-qq", *specs) if specs else ""
        found = {package.name: package for package in _packages(printed)}
        for name, version in wanted.items():
            if name not in found:
                raise MissingError(f"{self.mirror.description}, suite {self.name}, has no {name} {version}".rstrip())
        return [found[name] for name in wanted]

    def closure(self, names: Sequence[str]) -> list[Package]:
        simulated = self._apt("apt-get", "install", "-s", "-qq", "--no-install-recommends", *names)
        return self.exact({found[1].partition(":")[0]: found[2] for found in _INSTALLED.finditer(simulated)})

    def depends(self, name: str, version: str) -> list[str]:
        fields = deb.parse_stanza(self._apt("apt-cache", "show", f"{name}={version}").partition("\n\n")[0])
        return [names[0] for names in deb.relations(fields)]

    def source(self, name: str) -> list[Package]:
        printed = self._apt("apt-get", "source", "--print-uris", "--download-only", "-qq", name)
        return [package for package in _packages(printed) if not package.file.endswith(".dsc")]

    def _write(self) -> None:
        folder = self._folder
        for below in ("lists/partial", "cache/archives/partial", "state"):
            (folder / below).mkdir(parents=True, exist_ok=True)
        (folder / "status").touch()
        signed = f"signed-by={self.mirror.keyring} " if self.mirror.keyring else ""
        kinds = ("deb", "deb-src") if self.sources or (folder / "refreshed-sources").exists() else ("deb",)
        places = [(self._url, self.name), *([(self.mirror.url, base)] if (base := _base(self.name)) else [])]
        lines = [f"{kind} [{signed}arch=amd64] {url} {name} main\n" for kind in kinds for url, name in places]
        (folder / "sources.list").write_text("".join(lines))
        (folder / "apt.conf").write_text(_CONF.format(folder=folder))

    def _apt(self, program: str, *arguments: str) -> str:
        command = [program, "-c", str(self._folder / "apt.conf"), *arguments]
        what = f"read suite {self.name} of {self._url}"
        return _run(command, what)


def _base(suite: str) -> str:
    """The suite whose packages those of this one build upon; empty for a whole suite."""
    return "sid" if suite == "experimental" else suite.removesuffix("-security") if "-" in suite else ""


_CONF = """\
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear APT::Architectures;
#clear APT::Default-Release;
APT::Architecture "amd64";
APT::Architectures {{ "amd64"; }};
APT::Sandbox::User "root";
APT::Get::List-Cleanup "true";
Acquire::Languages "none";
Acquire::GzipIndexes "true";
Acquire::Retries "2";
Acquire::http::Timeout "30";
Acquire::https::Timeout "30";
Dir::Etc::sourcelist "{folder}/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State "{folder}/state";
Dir::State::lists "{folder}/lists";
Dir::State::status "{folder}/status";
Dir::Cache "{folder}/cache";
Dir::Cache::pkgcache "pkgcache.bin";
Dir::Cache::srcpkgcache "srcpkgcache.bin";
Dir::Log "{folder}/state";
"""


def _packages(printed: str) -> list[Package]:
    """What ``--print-uris`` said."""
    found = []
    for url, file, size, digest in _PRINTED.findall(printed):
        parts = re.sub(r"(\.deb|\.(orig|debian)\.tar\..*|\.dsc)$", "", unquote(file)).split("_")
        version = parts[1] if len(parts) > 1 else ""
        found.append(Package(parts[0], version, unquote(file), url, digest, int(size)))
    return found


def _place(package: Package) -> Path:
    return cache.root() / "downloads" / f"{package.sha256[:16]}-{package.file}"


def _verified(path: Path, package: Package) -> bool:
    from hashlib import file_digest

    try:
        if path.stat().st_size != package.size:
            return False
        with path.open("rb") as source:
            return file_digest(source, "sha256").hexdigest() == package.sha256
    except OSError:
        return False


def _download(packages: Sequence[Package]) -> None:
    arguments = []
    for package in packages:
        if not re.fullmatch(r"[0-9a-f]{64}", package.sha256):
            raise MissingError(f"the index has no SHA-256 of {package.file}, so it cannot be verified")
        arguments += [package.url, str(_place(package)), f"SHA256:{package.sha256}"]
    _run([_helper(), *_OPTIONS, "download-file", *arguments], "download packages")
    for package in packages:
        # apt leaves a file whose hash was wrong under this name.
        _place(package).with_name(_place(package).name + ".FAILED").unlink(missing_ok=True)


_OPTIONS = ("-q", "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=2", "-o", "Acquire::http::Timeout=30")


def _helper() -> str:
    said = _run(["apt-config", "shell", "folder", "Dir::Bin::methods"], "ask apt where it lies")
    methods = Path(said.partition("=")[2].strip().strip("'\"/ ") or "usr/lib/apt/methods")
    for folder in (Path("/") / methods.parent, Path("/usr/lib/apt"), Path("/usr/libexec/apt")):
        if (folder / "apt-helper").exists():
            return str(folder / "apt-helper")
    raise MissingError("apt-helper, a part of apt, is not installed; install apt whole")


def _forget_old(folder: Path) -> None:
    """Parts of downloads nobody came back for."""
    for path in folder.iterdir():
        if time.time() - path.stat().st_mtime > 30 * _DAY:
            path.unlink(missing_ok=True)


def _run(command: Sequence[str], what: str) -> str:
    environment = {**os.environ, "LC_ALL": "C", "LANGUAGE": ""}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=environment, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError as error:
        raise MissingError(f"cannot {what}: {command[0]} cannot be started ({error.strerror})") from error
    if done.returncode:
        raise _failure(what, done.stderr or done.stdout)
    return done.stdout


def _failure(what: str, text: str) -> MissingError:
    if "No space left on device" in text or "not have enough free space" in text:
        return cache.full()
    errors = [line[2:].strip() for line in text.splitlines() if line.startswith(("E:", "W:"))]
    told = printable(
        next((line for line in text.splitlines() if line.startswith("E:")), "E: no reason given")[2:].strip()
    )
    joined = " ".join(errors)
    remedy = "run the command again; what was downloaded is kept"
    if (
        "NO_PUBKEY" in joined
        or "is not signed" in joined
        or "signatures were invalid" in joined
        or "EXPKEYSIG" in joined
    ):
        remedy = (
            "its signature cannot be verified: install a newer debian-archive-keyring, or name the keys with --keyring"
        )
    elif any(
        sign in joined for sign in ("Unable to locate", "Unable to find", "was not found", "installation candidate")
    ):
        remedy = "the mirror no longer has it: `wsw lab fetch KERNEL --newest` gets what it has, or name another mirror"
    elif "does not have a Release file" in joined or "404" in joined:
        gone = "the mirror no longer has it: name another with --mirror URL (archive.debian.org keeps old suites)"
        return NoSuite(f"cannot {what}: {told}; {gone}")
    elif "Could not resolve" in joined or "Could not connect" in joined or "Temporary failure" in joined:
        remedy = "the mirror does not answer: name another with --mirror URL, or a folder of packages with --mirror DIR"
    return MissingError(f"cannot {what}: {told}; {remedy}")
