"""Small Debian packages, and kernels of a few bytes, written by hand after deb(5)."""

from __future__ import annotations

import hashlib
import io
import lzma
import struct
import subprocess
import tarfile
from pathlib import Path


def deb(folder: Path, name: str, version: str, files: dict[str, bytes | str] | None = None, **fields: str) -> Path:
    """Write NAME_VERSION.deb; a file whose content is a str is a symbolic link to it."""
    control = {"Package": name, "Version": version, "Architecture": "amd64", "Maintainer": "nobody <n@example.org>"}
    control |= {key.replace("_", "-"): value for key, value in fields.items()} | {"Description": "a test"}
    text = "".join(f"{key}: {value}\n" for key, value in control.items()).encode()
    path = folder / f"{name}_{version.replace(':', '%3a')}_amd64.deb"
    path.write_bytes(archive(tar({"./control": text}), tar({f"./{k}": v for k, v in (files or {}).items()})))
    return path


def tar(files: dict[str, bytes | str]) -> bytes:
    """A tar archive with the folders the files need."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.GNU_FORMAT) as packed:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.mode = 0o755 if "bin/" in name else 0o644
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                packed.addfile(member)
            else:
                member.size = len(content)
                packed.addfile(member, io.BytesIO(content))
    return sink.getvalue()


def archive(control: bytes, data: bytes) -> bytes:
    """The ar archive of a binary package."""
    members = [
        ("debian-binary", b"2.0\n"),
        ("control.tar.xz", lzma.compress(control, preset=0)),
        ("data.tar.xz", lzma.compress(data, preset=0)),
    ]
    out = b"!<arch>\n"
    for name, content in members:
        out += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode() + content
        out += b"\n" * (len(content) % 2)
    return out


def bzimage(release: str) -> bytes:
    """The start of a bzImage: magic, and where its version string is (Documentation/arch/x86/boot.rst)."""
    head = bytearray(0x400)
    head[0x202:0x206] = b"HdrS"
    struct.pack_into("<H", head, 0x20E, 0x100)
    return bytes(head[:0x300]) + f"{release} (builder) #1 SMP\0".encode() + bytes(64)


def kernel(folder: Path, version: str, release: str, *, split: bool = False, modules: bytes = b"ko") -> None:
    """The package of a kernel, or the two packages of one of 7.x."""
    ko = f"lib/modules/{release}/kernel/arch/x86/kvm/kvm.ko"
    if split:
        image = {f"usr/lib/modules/{release}/vmlinuz": bzimage(release)}
        deb(folder, f"linux-binary-{release}", version, image)
        deb(folder, f"linux-modules-{release}", version, {f"usr/{ko}.xz": lzma.compress(modules)})
    else:
        files = {f"boot/vmlinuz-{release}": bzimage(release), ko: modules, "usr/share/doc/x/copyright": b"text"}
        deb(folder, f"linux-image-{release}", version, files)


def repository(folder: Path, debs: list[Path], suite: str, home: Path) -> Path:
    """Make a signed Debian archive of one suite in *folder*; return the keyring it is signed by."""
    pool, index = folder / "pool", folder / f"dists/{suite}/main/binary-amd64"
    pool.mkdir(parents=True, exist_ok=True)
    index.mkdir(parents=True)
    stanzas = []
    for path in debs:
        data = path.read_bytes()
        (pool / path.name).write_bytes(data)
        control = subprocess.run(["dpkg-deb", "-f", str(path)], capture_output=True, text=True, check=True).stdout
        digest = hashlib.sha256(data).hexdigest()
        stanzas.append(f"{control}Filename: pool/{path.name}\nSize: {len(data)}\nSHA256: {digest}\n")
    (index / "Packages").write_text("\n".join(stanzas))
    packages = (index / "Packages").read_bytes()
    release = f"Origin: Debian\nSuite: {suite}\nCodename: {suite}\nArchitectures: amd64\nComponents: main\n"
    release += "Date: Mon, 05 Jan 2026 00:00:00 UTC\nSHA256:\n"
    release += f" {hashlib.sha256(packages).hexdigest()} {len(packages)} main/binary-amd64/Packages\n"
    (folder / f"dists/{suite}/Release").write_text(release)
    return sign(folder / f"dists/{suite}", home)


def sign(dist: Path, home: Path) -> Path:
    """Sign a Release file as InRelease with a key made in *home*; return the public key."""
    home.mkdir(mode=0o700, exist_ok=True)
    gpg = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--no-tty"]
    keyring = home / "public.gpg"
    if not keyring.exists():
        quick = ["--passphrase", "", "--quick-generate-key", "lab <lab@example.org>", "rsa2048", "sign", "never"]
        subprocess.run([*gpg, *quick], check=True, capture_output=True)
        subprocess.run([*gpg, "--output", str(keyring), "--export"], check=True, capture_output=True)
    (dist / "InRelease").unlink(missing_ok=True)
    subprocess.run(
        [*gpg, "--output", str(dist / "InRelease"), "--clearsign", str(dist / "Release")],
        check=True,
        capture_output=True,
    )
    return keyring
