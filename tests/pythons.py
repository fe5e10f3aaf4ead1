"""The unit, property and conformance suites and one wake from zero, on every Python that this machine can get.

    python -m tests.pythons [NAME ...] [--roots FOLDER] [--list] [--another]

Names are those that ``--list`` prints: each supported ``python3.N`` of the machine, and the Python of a Debian release
in a root that debootstrap fills, which needs root and Debian's packages from the network. A root stays in FOLDER
(build/roots) and is used again; the tree is copied into it. What cannot be had is printed with its reason and left out;
without ``NAME`` that is no failure. ``--another`` runs the first that can be had and is not the version that runs this:
CI does.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic

import msgspec

ROOT = Path(__file__).resolve().parents[1]
OLDEST, NEWEST = (3, 11, 2), (3, 14)
SUITES = (
    *("tests/unit", "tests/property", "tests/conformance"),
    "tests/e2e/test_up.py::test_service_scales_from_zero_to_many_and_back",
)
PACKAGES = ("python3", "python3-venv", "make", "git", "ca-certificates", "procps", "util-linux")
_SUITE_S, _SETUP_S = 1500.0, 900.0
# All of it ends with the first process: mounts with their namespace, processes with theirs. The machine's certificates,
# because a network may have its own authority.
_ENTER = """
set -e
root=$1; shift
# Isolated pods make their root private, which must be a mount for that.
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777,nosuid,nodev tmp "$root/tmp"
mount --bind /etc/resolv.conf "$root/etc/resolv.conf"
# The smallest Debian 12 has none; every machine has.
[ -e "$root/etc/hosts" ] || echo "127.0.0.1 localhost" > "$root/etc/hosts"
mount --bind /etc/ssl/certs "$root/etc/ssl/certs"
exec chroot "$root" env -i PATH=/usr/bin:/bin:/usr/sbin:/sbin HOME=/root LANG=C.UTF-8 TERM=dumb sh -c 'cd /src && exec "$@"' sh "$@"
"""


class Unavailable(Exception):
    """A Python that this machine cannot get; the text says why."""


class Release(msgspec.Struct, frozen=True):
    """A release of Debian: its name, its interpreter, and what it needs beside ``PACKAGES``."""

    suite: str
    interpreter: str
    packages: tuple[str, ...] = ()
    script: str = ""


RELEASES: Mapping[str, Release] = {
    "debian-13": Release("trixie", "python3"),
    "debian-testing": Release(
        "forky",
        "python3.14",
        packages=("python3.14", "python3.14-venv"),
        # Releases that debootstrap does not know yet.
        script="/usr/share/debootstrap/scripts/sid",
    ),
    "debian-12": Release("bookworm", "python3"),
}


class Place(msgspec.Struct, frozen=True):
    """Where one Python runs: the folder of the tree as it sees it, its interpreter, and what enters it."""

    name: str
    folder: Path
    interpreter: str
    environment: str
    enter: tuple[str, ...] = ()

    @property
    def python(self) -> str:
        """The interpreter of the virtual environment."""
        return f"{self.environment}/bin/python"

    def run(self, *command: str, within_s: float) -> int:
        """Run a command in the tree; its exit code, 124 after ``within_s``."""
        limit = ("timeout", "--kill-after", "30", str(within_s))
        environment = {name: value for name, value in os.environ.items() if name not in {"VENV", "MAKEFLAGS", "PYTHON"}}
        return subprocess.run([*limit, *self.enter, *command], cwd=self.folder, env=environment, check=False).returncode

    def output(self, *command: str, within_s: float) -> str:
        """The standard output of a command in the tree. Raises ``CalledProcessError``."""
        limit = ("timeout", "--kill-after", "30", str(within_s))
        done = subprocess.run(
            [*limit, *self.enter, *command], cwd=self.folder, stdout=subprocess.PIPE, text=True, check=True
        )
        return done.stdout

    def set_up(self) -> None:
        """Install what tests need. Raises ``Unavailable``."""
        variables = (f"PYTHON={self.interpreter}", f"VENV={self.environment}")
        if self.run("make", "setup", *variables, within_s=_SETUP_S):
            raise Unavailable(f"{self.name}: `make setup {' '.join(variables)}` failed")


def version_of(interpreter: str) -> tuple[int, ...]:
    """The version of an interpreter; (0,) where it does not run."""
    program = "import sys; print(*sys.version_info[:3])"
    done = subprocess.run([interpreter, "-c", program], capture_output=True, text=True, check=False)
    return tuple(map(int, done.stdout.split())) if done.returncode == 0 else (0,)


def interpreters() -> dict[str, str]:
    """The machine's interpreters by name: each supported ``python3.N`` of the PATH, and that of the distribution."""
    result: dict[str, str] = {}
    candidates = ["/usr/bin/python3", *(f"python3.{minor}" for minor in range(OLDEST[1], NEWEST[1] + 1))]
    for path in filter(None, map(shutil.which, candidates)):
        version = version_of(path)
        if version >= OLDEST and version[:2] <= NEWEST:
            result.setdefault("python-" + ".".join(map(str, version)), path)
    return result


def machine_place(name: str, interpreter: str) -> Place:
    """A place on the machine itself, with an environment of its own."""
    return Place(name=name, folder=ROOT, interpreter=interpreter, environment=f"build/pythons/{name}")


def root_place(name: str, roots: Path) -> Place:
    """A Debian root with the tree in it; made if it is not there. Raises ``Unavailable``."""
    release = RELEASES[name]
    root = (roots / release.suite).resolve()
    if os.geteuid() != 0:
        raise Unavailable(f"{name}: debootstrap needs root; run this as root, or have {name}'s Python on the PATH")
    if not (root / "usr/bin" / release.interpreter).exists():
        if shutil.which("debootstrap") is None:
            raise Unavailable(f"{name}: debootstrap is not installed: `make system-packages` installs it")
        packages = ",".join((*PACKAGES, *release.packages))
        command = ["debootstrap", "--variant=minbase", f"--include={packages}", release.suite, str(root)]
        # A half-filled root would count as one the next time.
        shutil.rmtree(root, ignore_errors=True)
        root.parent.mkdir(parents=True, exist_ok=True)
        if release.script:
            command += [package_source(), release.script]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            shutil.rmtree(root, ignore_errors=True)
            lines = done.stdout.strip().splitlines()[-3:]
            raise Unavailable(f"{name}: debootstrap failed ({done.returncode}): {' '.join(lines)}")
    copy_tree(root / "src")
    enter = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _ENTER, "sh", str(root))
    return Place(name=name, folder=ROOT, interpreter=release.interpreter, environment=".venv", enter=enter)


def package_source() -> str:
    """The address that the machine's own packages of Debian come from. Raises ``Unavailable``."""
    listing = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode or not listing.stdout.split():
        raise Unavailable("the machine has no source of Debian's packages: see /etc/apt/sources.list")
    return listing.stdout.split()[0]


def copy_tree(folder: Path) -> None:
    """Copy the working tree, uncommitted files too, and remove all else."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.name not in {".venv", ".pytest_cache", ".hypothesis"}:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)


def places(names: Sequence[str], roots: Path) -> Iterator[Place | Unavailable]:
    """The places of some names, each made when it is its turn; or why there is none."""
    local = interpreters()
    for name in names:
        try:
            yield machine_place(name, local[name]) if name in local else root_place(name, roots)
        except Unavailable as error:
            yield error


def names_of(*, another: bool) -> list[str]:
    """All names. With ``another``, Debian's first, and none of the version that runs this."""
    local = interpreters()
    if not another:
        return [*local, *(name for name in RELEASES if name != "debian-12" or (3, 11) not in _minors(local))]
    own = sys.version_info[:2]
    others = [name for name, path in local.items() if version_of(path)[:2] != own]
    return [*(name for name in ("debian-13", "debian-testing") if own != _python_of(name)), *reversed(others)]


def _minors(local: Mapping[str, str]) -> set[tuple[int, ...]]:
    return {version_of(path)[:2] for path in local.values()}


def _python_of(name: str) -> tuple[int, int]:
    return {"debian-13": (3, 13), "debian-testing": (3, 14)}[name]


def tested(place: Place) -> int:
    """Install and run the suites; the exit code."""
    place.set_up()
    place.run(place.python, "-c", "import sys; print(sys.version)", within_s=60.0)
    workers = ("-n", "3", "--dist", "worksteal")
    return place.run(place.python, "-m", "pytest", "-q", "-m", "not slow", *workers, *SUITES, within_s=_SUITE_S)


def run(names: Sequence[str], roots: Path, *, only_first: bool, is_strict: bool) -> int:
    """Run the suites at each place; 0 if none failed."""
    lines: list[str] = []
    failed = False
    for place in places(names, roots):
        began_s = monotonic()
        try:
            if isinstance(place, Unavailable):
                raise place
            print(f"== {place.name}", flush=True)
            code = tested(place)
        except Unavailable as error:
            lines.append(f"left out: {error}")
            failed = failed or is_strict
            continue
        failed = failed or code != 0
        lines.append(f"{'passed' if code == 0 else f'FAILED ({code})'}: {place.name}, {monotonic() - began_s:.0f} s")
        if only_first:
            break
    else:
        if only_first:
            lines.append("no other Python could be had: the suites ran on one version only")
    print("\n".join(lines), flush=True)
    return int(failed)


def main(arguments: Iterable[str] | None = None) -> int:
    """Run; exit 1 if a suite failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--roots", type=Path, default=ROOT / "build" / "roots", metavar="FOLDER")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--another", action="store_true")
    options = parser.parse_args(None if arguments is None else list(arguments))
    every = [*interpreters(), *RELEASES]
    if options.list:
        print("\n".join(every))
        return 0
    unknown = [name for name in options.names if name not in every]
    if unknown:
        parser.error(f"{', '.join(unknown)}: not here; expected some of {', '.join(every)}")
    names = options.names or names_of(another=options.another)
    return run(names, options.roots, only_first=options.another, is_strict=bool(options.names))


if __name__ == "__main__":
    sys.exit(main())
