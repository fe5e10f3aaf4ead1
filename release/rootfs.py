"""Fill the root file system of an image: this Python, installed packages, and the libraries that they are linked to.

The root has the interpreter and its standard library below ``/usr/local``, as byte code and without what servers never
import; packages below ``/opt/serving``; every shared library that one of them needs; certificates; and a user without
rights. It has no shell and no package manager. For scanners ``/var/lib/dpkg/status.d`` names the Debian packages of the
libraries, as in distroless images.

The content depends on the interpreter, the packages and the machine's libraries alone: no time, no folder of the build.
"""

import os
import py_compile
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Iterable, Iterator
from importlib.util import cache_from_source
from pathlib import Path

# Of the standard library: development, documentation, graphics, and modules that are only there to be tested.
_UNUSED = {
    *(
        "test",
        "idlelib",
        "tkinter",
        "turtledemo",
        "turtle.py",
        "ensurepip",
        "lib2to3",
        "pydoc_data",
        "distutils",
        "venv",
    ),
    *("site-packages", "dist-packages", "unittest", "doctest.py", "xmlrpc", "mailbox.py"),
    *("dbm", "curses", "ctypes/test", "pdb.py", "pickletools.py"),
    # Removed from later versions (PEP 594).
    *("msilib", "nntplib.py", "telnetlib.py", "smtpd.py", "aifc.py", "sunau.py", "cgitb.py"),
}
_UNUSED_EXTENSIONS: tuple[str, ...] = ("_tkinter", "_test", "_ctypes_test", "_xxtestfuzz", "xx", "nis.", "readline")
_UNUSED_EXTENSIONS += ("_dbm", "_gdbm", "_curses", "_codecs_", "audioop", "ossaudiodev")
# Only the dashboard keeps something.
_DATABASE, _KEEPER = ("sqlite3", "_sqlite3"), "tools/dashboard"
# Of installed packages: what only their development needs. numpy imports these two when they are asked for.
_UNUSED_FOLDERS = {"tests", "__pycache__", "include", "f2py", "distutils"}
_UNUSED_SUFFIXES = {".pyi", ".pyx", ".pxd", ".h", ".c", ".a"}
# All but the project itself is byte code without source, as in an installation with `compileall -b`. The Kubernetes
# client is generated: 75 MB of source, 36 of byte code without docstrings, 12 in an archive, which Python imports as
# fast.
_PROJECT = "serving"
_ARCHIVED = "kubernetes"
_USER = 65532
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_PLAIN_FILES = (_CERTIFICATES, Path("/etc/os-release"), Path("/etc/ld.so.cache"))


def fill(root: Path, site_packages: Path) -> None:
    """Fill an empty root with this Python and the packages of a folder."""
    root.mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        if Path("/", name).is_symlink():
            root.joinpath(name).symlink_to(Path("/", name).readlink())
    library = Path(sysconfig.get_path("stdlib"))
    home = root / "usr/local" / library.relative_to(sys.base_prefix)
    is_unused = _is_unused_in(library, keeps_data=(site_packages / _PROJECT / _KEEPER).exists())
    # Without links: those of Debian lead to sources, which go, and to /etc.
    shutil.copytree(library, home, ignore=_left_out(is_unused))
    _forget_the_build(home)
    packages = root / "opt/serving/lib" / library.name / "site-packages"
    shutil.copytree(site_packages, packages, symlinks=True, ignore=_left_out(_is_unused_package))
    interpreter = Path(os.path.realpath(sys.executable))
    libraries = _libraries([interpreter, *_extensions(home), *_extensions(packages)], inside=packages)
    _add_interpreter(root, interpreter, library.name)
    owned = {_copy(path, root) for path in (*libraries, *_PLAIN_FILES) if path.exists()}
    _strip(root)
    _keep_byte_code_alone(home, root, optimize=-1)
    for package in sorted(packages.iterdir()):
        if package.name != _PROJECT:
            _keep_byte_code_alone(package, root, optimize=2 if package.name == _ARCHIVED else -1)
    _archive(packages / _ARCHIVED)
    _compile(root)
    _describe_packages(owned, root)
    _add_user(root)


def _add_interpreter(root: Path, interpreter: Path, name: str) -> None:
    """Copy the interpreter, and make ``/opt/serving/bin/python`` run it with the packages, as a virtual environment does."""
    place = root / "usr/local/bin" / name
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(interpreter, place)
    environment = root / "opt/serving"
    (environment / "bin").mkdir()
    for link in ("python", "python3"):
        (environment / "bin" / link).symlink_to(f"/usr/local/bin/{name}")
    version = ".".join(map(str, sys.version_info[:3]))
    (environment / "pyvenv.cfg").write_text(
        f"home = /usr/local/bin\ninclude-system-site-packages = false\nversion = {version}\n"
    )


def _forget_the_build(library: Path) -> None:
    """Let the interpreter's own record of its build name ``/usr/local``, wherever it was built."""
    for path in library.glob("_sysconfigdata_*.py"):
        path.write_text(path.read_text().replace(sys.base_prefix, "/usr/local"))


def _is_unused_in(library: Path, *, keeps_data: bool) -> Callable[[Path], bool]:
    def is_unused(path: Path) -> bool:
        if path.name.startswith(_DATABASE):
            return not keeps_data
        name = str(path.relative_to(library))
        is_extension = path.parent.name == "lib-dynload" and path.name.startswith(_UNUSED_EXTENSIONS)
        return name in _UNUSED or path.name == "__pycache__" or name.startswith("config-") or is_extension

    return is_unused


def _is_unused_package(path: Path) -> bool:
    return path.name in _UNUSED_FOLDERS or path.suffix in _UNUSED_SUFFIXES


def _left_out(is_left_out: Callable[[Path], bool]) -> Callable[[str, list[str]], list[str]]:
    return lambda folder, names: [name for name in names if is_left_out(Path(folder, name))]


def _copy(path: Path, root: Path) -> Path:
    """Copy one file, with the links that lead to it, and return its own place."""
    place = Path(os.path.realpath(path.parent), path.name)
    target = _place_of(place, root)
    target.parent.mkdir(parents=True, exist_ok=True)
    if place.is_symlink() and not target.is_symlink():
        target.symlink_to(place.readlink())
    if place.is_symlink():
        return _copy(Path(os.path.normpath(place.parent / place.readlink())), root)
    if not target.exists():
        shutil.copy2(place, target)
    return place


def _place_of(path: Path, root: Path) -> Path:
    """Where a file of the machine goes; the interpreter's own libraries go to where every loader looks.

    A distribution's interpreter has its libraries among all others below ``/usr``, where loaders look.
    """
    if sys.base_prefix != "/usr" and path.is_relative_to(sys.base_prefix):
        return root / "usr/lib" / str(sysconfig.get_config_var("MULTIARCH")) / path.name
    return root / path.relative_to("/")


def _extensions(folder: Path) -> Iterator[Path]:
    """Extension modules and bundled libraries below a folder."""
    return (path for path in sorted(folder.rglob("*.so*")) if path.is_file())


def _libraries(binaries: Iterable[Path], *, inside: Path) -> set[Path]:
    """Shared libraries outside the packages that the loader resolves for some binaries."""
    # Binaries without libraries make ldd exit with 1, and are named on standard error.
    listed = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, check=False).stdout
    # A library that a wheel bundles finds its neighbours through the extension that loads it.
    bundled = {path.name for path in _extensions(inside)}
    libraries: set[Path] = set()
    for line in listed.splitlines():
        name, _, path = line.strip().rpartition(" => ")
        path = path.split(" (")[0]
        if path == "not found" and name not in bundled:
            sys.exit(f"rootfs: {name} is missing")
        if path.startswith("/") and not path.endswith(":") and not Path(path).is_relative_to(inside):
            libraries.add(Path(path))
    return libraries


def _strip(root: Path) -> None:
    """Remove symbols that only debuggers read; for uvloop they are three quarters of the file."""
    if shutil.which("strip") is None:
        sys.exit("rootfs: strip is missing; install binutils")
    for path in root.rglob("*"):
        # Libraries of wheels are patched in a way that strip breaks.
        is_bundled = any(part.endswith(".libs") for part in path.parts)
        if path.is_file() and not path.is_symlink() and not is_bundled and path.read_bytes()[:4] == b"\x7fELF":
            subprocess.run(["strip", "--strip-unneeded", "--preserve-dates", path], check=True)


def _keep_byte_code_alone(package: Path, root: Path, *, optimize: int) -> None:
    sources = [package] if package.suffix == ".py" else sorted(package.rglob("*.py"))
    for source in sources:
        if _compile_one(source, source.with_suffix(".pyc"), root, optimize=optimize):
            source.unlink()


def _archive(package: Path) -> None:
    """Replace a package by an archive beside it, which a ``.pth`` file puts on the path."""
    if not package.exists():
        return
    place = package.with_suffix(".zip")
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for path in sorted(package.rglob("*.pyc")):
            archive.writestr(
                zipfile.ZipInfo(str(path.relative_to(package.parent))), path.read_bytes(), zipfile.ZIP_DEFLATED
            )
    place.chmod(0o644)
    package.with_suffix(".pth").write_text(f"{place.name}\n")
    shutil.rmtree(package)


def _compile(root: Path) -> None:
    for source in sorted(root.rglob("*.py")):
        _compile_one(source, Path(cache_from_source(str(source))), root, optimize=-1)


def _compile_one(source: Path, target: Path, root: Path, *, optimize: int) -> bool:
    """Compile a file as it is called in the image.

    Returns whether it is Python of this version: some packages carry templates.
    """
    try:
        py_compile.compile(
            str(source),
            cfile=str(target),
            dfile=f"/{source.relative_to(root)}",
            optimize=optimize,
            doraise=True,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
    except py_compile.PyCompileError:
        return False
    return True


def _describe_packages(files: Iterable[Path], root: Path) -> None:
    """Write the dpkg entry of each package that owns one of the files."""
    status = root / "var/lib/dpkg/status.d"
    status.mkdir(parents=True)
    for file in sorted(files):
        # Where /lib is a link to /usr/lib, a package may know its file by either name.
        names = [str(file), str(file).removeprefix("/usr")]
        owners = subprocess.run(["dpkg", "-S", *names], capture_output=True, text=True, check=False).stdout
        for line in owners.splitlines():
            package = line.split(": ")[0]
            entry = subprocess.run(["dpkg", "-s", package], capture_output=True, text=True, check=True).stdout
            (status / package.partition(":")[0]).write_text(entry)


def _add_user(root: Path) -> None:
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/passwd").write_text(f"root:x:0:0::/:/none\nnonroot:x:{_USER}:{_USER}::/tmp:/none\n")
    (root / "etc/group").write_text(f"root:x:0:\nnonroot:x:{_USER}:\n")
    (root / "tmp").mkdir(exist_ok=True)
    (root / "tmp").chmod(0o1777)
