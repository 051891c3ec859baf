"""``wsw lab``: real kernels with real KVM inside an emulator. Here: what to fetch, what is there, what to build."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from worldswitch.cli import options
from worldswitch.errors import UsageError, printable
from worldswitch.units import format_size

if TYPE_CHECKING:
    from worldswitch.lab.cache import Entry
    from worldswitch.lab.packages import Source

TOOLS = ("perf", "trace-cmd", "strace")
ELSEWHERE: dict[str, tuple[str, str]] = {
    "boot": ("lab_boot", "Boot a kernel and give a shell in it."),
    "exec": ("lab_boot", "Run a program in a kernel of the lab."),
    "command": ("lab_boot", "Print the command that would boot, and do nothing."),
}
"""Subcommand -> the module of this package it lives in, and one line of help; imported only when called."""


class Subcommands(click.Group):
    """Commands of this module, and those that are imported only when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*self.commands, *ELSEWHERE])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        module = import_module(f"worldswitch.cli.{ELSEWHERE[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        here = [(name, command.get_short_help_str(90)) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(sorted([*here, *((name, line) for name, (_, line) in ELSEWHERE.items())]))


@click.group(cls=Subcommands)
def lab() -> None:
    """Real kernels with real KVM inside an emulator; no hardware virtualization needed."""


_mirror = click.option(
    "--mirror", metavar="URL|DIR", help="A Debian mirror, or a folder of .deb packages.  [default: this machine's own]"
)
_keyring = click.option(
    "--keyring", metavar="FILE", type=click.Path(path_type=Path), help="Keys the mirror's indexes are signed by."
)
_jobs = click.option("-j", "--jobs", type=click.IntRange(1), help="Compilers at once.  [default: one per CPU]")


@lab.command()
@click.argument("kernels", nargs=-1, metavar="[KERNEL]...")
@click.option("--fast-bochs", is_flag=True, help="Build a Bochs without debugger: several times faster; takes minutes.")
@click.option("--emulators", is_flag=True, help="QEMU, Bochs and what makes its boot image, for hosts without them.")
@click.option("--tool", "tools", multiple=True, type=click.Choice(TOOLS), help="A tool for the guest; may be repeated.")
@click.option("--newest", is_flag=True, help="Look for a newer kernel of the line although one is there.")
@_mirror
@_keyring
@_jobs
@options.as_json
@options.as_python
def fetch(
    kernels: tuple[str, ...],
    fast_bochs: bool,
    emulators: bool,
    tools: tuple[str, ...],
    newest: bool,
    mirror: str | None,
    keyring: Path | None,
    jobs: int | None,
    as_json: bool,
    as_python: bool,
) -> int:
    """Fetch distribution kernels and the lab's userland into the cache.

    A KERNEL is X.Y (the newest of that line in Debian's main archive), X.Y.Z, or a release such as 6.1.0-50.
    Signatures are verified, the machine's own package system is not touched, and what is there is not fetched again.
    """
    if not (kernels or fast_bochs or emulators or tools):
        raise UsageError("name what to fetch: kernels, such as `wsw lab fetch 5.10 6.1 6.12 7.2`, or --fast-bochs")
    if as_python:
        click.echo(_fetch_python(kernels, fast_bochs, emulators, tools, mirror))
        return 0
    from worldswitch.lab import fastbochs, fetch

    source = _source(mirror, keyring)
    done: list[dict[str, Any]] = []
    for spec in kernels:
        found = fetch.kernel(spec, source, _say, newest=newest)
        done.append({"spec": spec, "version": found.version, "release": found.release, "path": str(found.vmlinuz)})
    if kernels:
        done.append({"userland": str(fetch.userland(source, _say))})
    done += [{"tool": name, "path": str(fetch.tool(name, source, _say))} for name in tools]
    if emulators:
        done += [
            {"emulator": name, "path": str(fetch.emulator(name, source, _say))} for name in fetch.EMULATOR_PACKAGES
        ]
    if fast_bochs:
        built = fastbochs.build(source, _say, jobs=jobs or 0)
        done.append({"emulator": fastbochs.NAME, "path": str(built.root), "version": built.version})
    if as_json:
        options.print_json({"fetched": done})
    else:
        _say("all there; `wsw lab list` shows it")
    return 0


@lab.command("list")
@click.option("--check", is_flag=True, help="Read every file and compare its hash.")
@options.as_json
@options.as_python
def list_(check: bool, as_json: bool, as_python: bool) -> int:
    """List the kernels, builds, emulators and programs that are there, and where.

    With --check the exit status is 3 if something is damaged.
    """
    if as_python:
        click.echo("from worldswitch.lab import cache\n\nfor entry in cache.entries('kernels'):\n    print(entry)")
        return 0
    from worldswitch.lab import cache

    found = [entry for kind in cache.kinds() for entry in cache.entries(kind)]
    damage = {entry.path: entry.damage(thorough=check) for entry in found}
    installed = _installed()
    if as_json:
        entries = [{**_document(entry), "damage": damage[entry.path]} for entry in found]
        options.print_json({"cache": str(cache.root()), "entries": entries, "installed": installed})
    else:
        click.echo(_table(found, damage, installed, cache.root()), nl=False)
    return 3 if any(damage.values()) else 0


@lab.command()
@click.argument("kernel")
@click.option("--revert", "reverts", multiple=True, metavar="COMMIT|FACT", help="Take this change out; repeatable.")
@click.option("--patch", "patches", multiple=True, metavar="FILE", type=click.Path(path_type=Path), help="Apply this.")
@click.option("--source", "tree", metavar="DIR", type=click.Path(path_type=Path), help="A kernel tree of your own.")
@click.option("--name", required=True, metavar="NAME", help="What to call the build.")
@_mirror
@_keyring
@_jobs
@options.as_json
@options.as_python
def build(
    kernel: str,
    reverts: tuple[str, ...],
    patches: tuple[Path, ...],
    tree: Path | None,
    name: str,
    mirror: str | None,
    keyring: Path | None,
    jobs: int | None,
    as_json: bool,
    as_python: bool,
) -> int:
    """Build kvm.ko and the vendor modules of KERNEL with changes taken out or put in.

    \b
    wsw lab build 6.1 --revert cr0-wp-owned --name no-wp
    wsw run cr0-wp --on lab --kernel 6.1 --build no-wp
    """
    from worldswitch.lab.build import Request
    from worldswitch.lab.build import build as build_modules

    request = Request(kernel, name, reverts, patches, tree)
    if as_python:
        click.echo("from pathlib import Path, PosixPath\nfrom worldswitch.lab import apt, build\n")
        click.echo(f"build.build(build.{request!r}, apt.own_mirror())")
        return 0
    built = build_modules(request, _source(mirror, keyring), _say, jobs=jobs or 0)
    if as_json:
        modules = {module: str(path) for module, path in built.modules.items()}
        options.print_json({"name": built.name, "release": built.release, "modules": modules, "stamp": built.stamp})
    else:
        _say(f"{name}: {', '.join(sorted(built.modules))} for {built.release}; use them with --build {name}")
    return 0


def _say(line: str) -> None:
    click.echo(f"wsw: {printable(line)}", err=True)


def _source(mirror: str | None, keyring: Path | None) -> Source:
    from worldswitch.lab import apt
    from worldswitch.lab.folder import Folder

    if mirror is None:
        return apt.own_mirror(keyring)
    path = Path(mirror)
    if path.is_dir() and not (path / "dists").is_dir():
        return Folder(path)
    if path.is_dir():
        return apt.mirror(f"file:{path.resolve()}", keyring)
    if "://" not in mirror and not mirror.startswith("file:"):
        raise UsageError(
            f"--mirror {printable(mirror)} is neither a URL nor a folder; such as https://deb.debian.org/debian"
        )
    return apt.mirror(mirror, keyring)


def _installed() -> list[dict[str, str]]:
    """Emulators that are installed, not in the cache."""
    from worldswitch.errors import MissingError
    from worldswitch.lab import artifacts, cache

    found = []
    for name, ask in (("qemu", artifacts.qemu), ("bochs", artifacts.bochs)):
        try:
            program = ask()
        except MissingError:
            continue
        if not program.root.is_relative_to(cache.root()):
            found.append({"name": name, "version": program.version, "path": str(program.executable)})
    return found


def _document(entry: Entry) -> dict[str, Any]:
    return {"kind": entry.kind, "name": entry.name, "path": str(entry.path), "size": entry.size, "about": entry.about}


def _table(found: list[Entry], damage: dict[Path, str | None], installed: list[dict[str, str]], root: Path) -> str:
    from worldswitch.report.tables import table

    rows = [
        [entry.kind, entry.name, str(entry.about["what"]), format_size(entry.size), damage[entry.path] or ""]
        for entry in found
        if "what" in entry.about
    ]
    # What is made from the rest when it is needed has no name worth reading.
    made = [entry for entry in found if "what" not in entry.about]
    for kind in dict.fromkeys(entry.kind for entry in made):
        those = [entry for entry in made if entry.kind == kind]
        harm = next((told for entry in those if (told := damage[entry.path])), "")
        rows.append([kind, "", f"{len(those)}, made when needed", format_size(sum(e.size for e in those)), harm])
    rows += [["installed", one["name"], f"{one['version']}, {one['path']}", "", ""] for one in installed]
    if not rows:
        return f"Nothing is in {printable(str(root))}; wsw lab fetch 6.12 gets a kernel.\n"
    headings = ["kind", "name", "what", "size", "damage"]
    return table(headings, rows, f"In {printable(str(root))}", ["kind", "name", "what", "damage"])


def _fetch_python(
    kernels: tuple[str, ...], fast_bochs: bool, emulators: bool, tools: tuple[str, ...], mirror: str | None
) -> str:
    if mirror is None:
        source = "apt.own_mirror()"
    else:
        source = f"Folder(Path({mirror!r}))" if Path(mirror).is_dir() else f"apt.mirror({mirror!r})"
    lines = ["from pathlib import Path", "from worldswitch.lab import apt, fastbochs, fetch"]
    lines += ["from worldswitch.lab.folder import Folder", "", f"source = {source}"]
    lines += [f"fetch.kernel({spec!r}, source)" for spec in kernels]
    lines += ["fetch.userland(source)"] if kernels else []
    lines += [f"fetch.tool({name!r}, source)" for name in tools]
    lines += [f"fetch.emulator({name!r}, source)" for name in ("qemu", "bochs", "iso") if emulators]
    lines += ["fastbochs.build(source)"] if fast_bochs else []
    return "\n".join(lines)
