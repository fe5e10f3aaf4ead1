"""Copy a virtual environment and its Python into an empty root file system: ``rootfs.py VENV ROOT [PACKAGE...]``.

The root holds the interpreter, the standard library without what servers never import, the environment, every shared
library that one of them is linked to, certificates, and a user without rights. It has no shell and no package manager. With
PACKAGE arguments the project itself is copied without its other packages.
For scanners it names the Debian packages of the copied libraries, in ``/var/lib/dpkg/status.d`` as distroless images do.
Runs in the build stage of the Containerfile, on Debian, with the standard library alone.
"""

import compileall
import os
import py_compile
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

# Of the standard library: development, documentation, graphics, databases, and modules that are only there to be tested.
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
    *("sqlite3", "dbm", "curses"),
}
_UNUSED_EXTENSIONS = ("_tkinter", "_test", "_ctypes_test", "_xxtestfuzz", "xx", "nis.", "readline")
_UNUSED_EXTENSIONS += ("_sqlite3", "_dbm", "_gdbm", "_curses", "_codecs_")
# Of installed packages: what only their development needs.
_UNUSED_FOLDERS = {"tests", "__pycache__", "include"}
_UNUSED_SUFFIXES = {".pyi", ".pyx", ".pxd", ".h", ".c", ".a"}
# Generated, 75 MB of which most are docstrings: byte code without them is a third of that.
_WITHOUT_SOURCE = "kubernetes"
_PROJECT = "serving"
_USER = 65532
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_PLAIN_FILES = (_CERTIFICATES, Path("/etc/os-release"), Path("/etc/ld.so.cache"))


def main(venv: Path, root: Path, packages: set[str]) -> None:
    """Fill the root; ``packages`` of the project are copied, all of them where none is named."""
    root.mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        if Path("/", name).is_symlink():
            root.joinpath(name).symlink_to(Path("/", name).readlink())
    library = Path(sysconfig.get_path("stdlib"))
    _copy_tree(library, root, is_left_out=_is_unused_in(library))
    _copy_tree(venv, root, is_left_out=_is_unused_package(packages))
    interpreters = [*_links(venv / "bin" / "python"), Path(os.path.realpath(sys.executable))]
    binaries = [interpreters[-1], *_extensions(root)]
    copied = {_copy(path, root) for path in (*interpreters, *_libraries(binaries), *_PLAIN_FILES) if path.exists()}
    for found in root.rglob(f"site-packages/{_WITHOUT_SOURCE}"):
        _keep_byte_code_alone(found, root)
    compileall.compile_dir(
        root, quiet=1, stripdir=root, workers=0, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )
    _describe_packages(copied, root)
    _write_bill_of_materials(venv, root)
    _add_user(root)


def _is_unused_in(library: Path) -> Callable[[Path], bool]:
    def is_unused(path: Path) -> bool:
        name = str(path.relative_to(library))
        is_extension = path.parent.name == "lib-dynload" and path.name.startswith(_UNUSED_EXTENSIONS)
        return name in _UNUSED or path.name == "__pycache__" or name.startswith("config-") or is_extension

    return is_unused


def _is_unused_package(packages: set[str]) -> Callable[[Path], bool]:
    def is_unused(path: Path) -> bool:
        if packages and path.parent.name == _PROJECT and path.parent.parent.name == "site-packages" and path.is_dir():
            return path.name not in packages
        return path.name in _UNUSED_FOLDERS or path.suffix in _UNUSED_SUFFIXES

    return is_unused


def _copy_tree(source: Path, root: Path, *, is_left_out: Callable[[Path], bool]) -> None:
    def left_out(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if is_left_out(Path(folder, name))]

    shutil.copytree(source, _inside(source, root), symlinks=True, ignore=left_out, dirs_exist_ok=True)


def _inside(path: Path, root: Path) -> Path:
    return root / path.relative_to("/")


def _links(path: Path) -> Iterator[Path]:
    """A path and what it leads to, link by link."""
    yield path
    while path.is_symlink():
        path = Path(os.path.normpath(path.parent / path.readlink()))
        yield path


def _copy(path: Path, root: Path) -> Path:
    """Copy one file or link to where its folder really is, and return that place."""
    place = Path(os.path.realpath(path.parent), path.name)
    target = _inside(place, root)
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.is_symlink() and not target.exists():
        shutil.copy2(place, target, follow_symlinks=False)
        if place.is_symlink():
            _copy(Path(os.path.normpath(place.parent / place.readlink())), root)
    return Path(os.path.realpath(place))


def _extensions(root: Path) -> Iterator[Path]:
    """Extension modules and bundled libraries of the root, by the path at which they were found."""
    for path in root.rglob("*.so*"):
        if path.is_file():
            yield Path("/", path.relative_to(root))


def _libraries(binaries: Iterable[Path]) -> set[Path]:
    """Shared libraries outside the environment that the loader resolves for some binaries."""
    listed = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, check=False).stdout  # noqa: S603, S607 - Debian's own
    found: set[Path] = set()
    for line in listed.splitlines():
        name, _, path = line.strip().rpartition(" => ")
        path = path.split(" (")[0]
        if path == "not found":
            sys.exit(f"rootfs: {name} is missing")
        if path.startswith("/") and not path.endswith(":") and "site-packages" not in path:
            found.add(Path(path))
    return found


def _keep_byte_code_alone(folder: Path, root: Path) -> None:
    for source in folder.rglob("*.py"):
        py_compile.compile(
            str(source),
            cfile=str(source.with_suffix(".pyc")),
            dfile=f"/{source.relative_to(root)}",
            optimize=2,
            doraise=True,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
        source.unlink()


def _describe_packages(files: Iterable[Path], root: Path) -> None:
    """Write the dpkg entry of each package that owns one of the files."""
    status = root / "var/lib/dpkg/status.d"
    status.mkdir(parents=True)
    for file in files:
        # Where /lib is a link to /usr/lib, a package may know its file by either name.
        names = [str(file), str(file).removeprefix("/usr")]
        answer = subprocess.run(["dpkg", "-S", *names], capture_output=True, text=True, check=False).stdout  # noqa: S603, S607 - as above
        for line in answer.splitlines():
            package = line.split(": ")[0]
            entry = subprocess.run(["dpkg", "-s", package], capture_output=True, text=True, check=True).stdout  # noqa: S603, S607 - as above
            (status / package.partition(":")[0]).write_text(entry)


def _write_bill_of_materials(venv: Path, root: Path) -> None:
    """List the Python packages of the environment, by the tool that is installed beside this file."""
    place = root / "usr/share/sbom"
    place.mkdir(parents=True)
    tool = Path(__file__).with_name("bin") / "cyclonedx-py"
    command = [tool, "environment", venv / "bin/python", "--output-file", place / "serving.cdx.json"]
    subprocess.run(command, check=True)  # noqa: S603 - as above


def _add_user(root: Path) -> None:
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/passwd").write_text(f"root:x:0:0::/:/none\nnonroot:x:{_USER}:{_USER}::/tmp:/none\n")
    (root / "etc/group").write_text(f"root:x:0:\nnonroot:x:{_USER}:\n")
    (root / "tmp").mkdir(exist_ok=True)
    (root / "tmp").chmod(0o1777)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), set(sys.argv[3:]))
