"""Build the root file system of an image from the wheel and the locked packages: ``python -m release.image TARGET WHEEL ROOT``.

The Containerfile runs this in its build stage, and ``make release`` on the machine, so that both give the same content.
It needs Debian, binutils, pip and cyclonedx-bom. Packages are installed with the hashes of ``release/locks``, as wheels
only.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from shutil import rmtree

from release import rootfs

LOCKS = Path(__file__).with_name("locks")
# The packages of the project that an image holds: what its programs import, held by tests/unit/config/test_image.py.
PACKAGES = {
    "queue-proxy": "core/model core/settings core/traffic net/aio net/proxy net/wire queueproxy",
    "placement": "core/model core/settings core/traffic net/aio net/cluster net/metrics net/proxy nodes/extender nodes/placement",
    # With the queue-proxy, which runs from this image where the installation names no other.
    "daemons": "activator autoscaler controller core/model core/scaling core/settings core/traffic net/aio net/cluster net/metrics net/proxy"
    " net/wire nodes/nodegroup nodes/placement queueproxy tools/dashboard",
}
SBOM = "usr/share/sbom/serving.cdx.json"


def build(target: str, wheel: Path, root: Path) -> None:
    """Fill ``root``, which must not exist yet."""
    with tempfile.TemporaryDirectory() as scratch:
        environment = Path(scratch, "environment")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
        _install(environment, "--require-hashes", "--only-binary=:all:", "--requirement", str(LOCKS / f"{target}.txt"))
        _install(environment, str(wheel))
        (packages,) = environment.glob("lib/python*/site-packages")
        _drop_unused(packages, set(PACKAGES[target].split()))
        rootfs.fill(root, packages)
        (root / SBOM).parent.mkdir(parents=True)
        bill = [
            "environment",
            "--output-reproducible",
            "--output-file",
            str(root / SBOM),
            str(environment / "bin/python"),
        ]
        subprocess.run([sys.executable, "-m", "cyclonedx_py", *bill], check=True)


def _drop_unused(packages: Path, used_packages: set[str]) -> None:
    """Remove the project's other packages, and pip's notes of the folder that it installed to."""
    root = packages / "serving"
    for entry in filter(Path.is_dir, list(root.iterdir())):
        inner = {path for path in used_packages if path.startswith(f"{entry.name}/")}
        if entry.name not in used_packages and not inner:
            rmtree(entry)
        for package in filter(Path.is_dir, list(entry.iterdir()) if inner else ()):
            if f"{entry.name}/{package.name}" not in inner:
                rmtree(package)
    for name in ("direct_url.json", "RECORD"):
        for note in packages.glob(f"*.dist-info/{name}"):
            note.unlink()


def _install(environment: Path, *what: str) -> None:
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin/python"), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-compile", *what], check=True)


if __name__ == "__main__":
    build(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
