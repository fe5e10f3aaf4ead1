"""Removes folders of any depth, such as those of apps or images.

Each subfolder is moved to the top and processed there. So a deep tree needs neither stack nor descriptors, and no path
exceeds the kernel's limit. Links are not followed, and files below a mount are not removed.
"""

import contextlib
import os
import stat
from pathlib import Path

_OWNED = 0o700
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def is_virtualenv(folder: Path) -> bool:
    """Whether a folder is a virtual environment of Python."""
    return (folder / "pyvenv.cfg").is_file()


def remove_tree(path: Path) -> None:
    """Remove a folder and its contents, or a file or link. A missing path is no error.

    If something cannot be removed, the rest is removed, and the first ``OSError`` is raised.
    """
    try:
        if not stat.S_ISDIR(path.lstat().st_mode):
            path.unlink()
            return
        top = _opened(str(path))
    except FileNotFoundError:
        return
    try:
        # No entry made by an app can conflict with a moved one.
        errors = _empty(top, prefix=f".gone-{os.urandom(8).hex()}-")
    finally:
        os.close(top)
    try:
        path.rmdir()
    except FileNotFoundError:
        return
    except OSError as error:
        raise (errors or [error])[0] from None


def discard_tree(path: Path) -> None:
    """Remove a folder and its contents as far as possible."""
    with contextlib.suppress(OSError):
        remove_tree(path)


def _empty(top: int, *, prefix: str) -> list[OSError]:
    """Remove the content of the folder ``top``; return the errors."""
    errors: list[OSError] = []
    moved = 0
    folders = [""]
    while folders:
        folder = folders.pop()
        try:
            here = _opened(folder, top) if folder else os.dup(top)
        except OSError as error:
            errors.append(error)
            continue
        try:
            with os.scandir(here) as listing:
                entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in listing]
            for name, is_folder in entries:
                try:
                    if not is_folder:
                        os.unlink(name, dir_fd=here)
                        continue
                    moved += 1
                    # Changing the parent of a folder requires write access to the folder.
                    _grant_access(name, here)
                    os.rename(name, f"{prefix}{moved}", src_dir_fd=here, dst_dir_fd=top)
                    folders.append(f"{prefix}{moved}")
                except OSError as error:
                    errors.append(error)
            if folder:
                os.rmdir(folder, dir_fd=top)
        except OSError as error:
            errors.append(error)
        finally:
            os.close(here)
    return errors


def _opened(name: str, folder: int | None = None) -> int:
    _grant_access(name, folder)
    return os.open(name, _FOLDER, dir_fd=folder)


def _grant_access(name: str, folder: int | None) -> None:
    """Without root, give the owner read and write access to a folder, so that its content can be removed."""
    if os.geteuid() == 0:
        return
    # Not by name, because a link in its place would be followed.
    descriptor = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        if os.fstat(descriptor).st_mode & _OWNED != _OWNED:
            with contextlib.suppress(OSError):
                os.chmod(f"/proc/self/fd/{descriptor}", _OWNED)  # noqa: PTH101 - a descriptor's path
    finally:
        os.close(descriptor)
