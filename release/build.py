"""Build a release from the last commit: ``python -m release.build DIST [--key FILE]``; ``make release`` runs it.

DIST then has the wheel, the source distribution, the images as OCI archives, ``install.yaml`` and the kustomize base, a
bill of materials of each, a provenance statement, ``SHA256SUMS`` and, with a key, its signature. The same commit gives
the same bytes in any folder: a file's time is the commit's, archives are sorted, and nothing that is not committed is
read. Needs what rootfs.py needs.
"""

import argparse
import gzip
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from release import chart, image, oci, signing
from release.verify import SUMS, digest_of
from release.version import WrongTag, commit, version

ROOT = Path(__file__).resolve().parent.parent
PROVENANCE = "provenance.intoto.json"
NAMES = {"daemons": "serving", "queue-proxy": "serving-queue-proxy", "placement": "serving-placement"}
# Bytes of an unpacked image. What is larger is a mistake in rootfs.py or a new dependency: decide, then raise.
# Python 3.11 has it from 3.11.4 on.
_FILTER: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
SIZE_MAX = {"daemons": 150_000_000, "queue-proxy": 50_000_000, "placement": 220_000_000}
_SOURCE = "https://example.org/serving"


class Unbuildable(Exception):
    """The tree cannot be released as it is."""


def main() -> None:
    """Build, or say in one line why not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dist", type=Path)
    parser.add_argument("--key", type=Path, help="EC private key in PEM, as cosign imports it: signs SHA256SUMS")
    parser.add_argument("--image", action="append", choices=NAMES, help="only these images; all without it")
    options = parser.parse_args()
    try:
        build(options.dist.absolute(), options.image or list(NAMES), key=options.key)
    except (Unbuildable, WrongTag, signing.BadKey) as error:
        sys.exit(f"release: {error}")


def build(dist: Path, targets: Sequence[str], *, key: Path | None) -> None:
    """Write the release into ``dist``, which is emptied first."""
    if key is not None:
        signing.load(key)
    if changed := git("status", "--porcelain", "--untracked-files=no"):
        raise Unbuildable(f"commit or stash first; a release is built from a commit, and these differ:\n{changed}")
    number, made_s = version(), int(os.environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct"))
    if shutil.which("strip") is None:
        raise Unbuildable("strip is missing: apt-get install binutils")
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch, "tree")
        checkout(tree)
        environment = {
            **os.environ,
            "SERVING_VERSION": number,
            "SERVING_COMMIT": commit(),
            "SOURCE_DATE_EPOCH": str(made_s),
            "PYTHONHASHSEED": "0",
        }
        run("-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(dist), at=tree, environment=environment)
        (wheel,) = dist.glob("*.whl")
        sizes = {target: build_image(target, wheel, Path(scratch), dist, number, made_s) for target in targets}
        write_manifests(tree, dist, number, made_s)
        lock = tree / "release/locks/serving.txt"
        bill = [
            "-m",
            "cyclonedx_py",
            "requirements",
            str(lock),
            "--output-reproducible",
            "--pyproject",
            "pyproject.toml",
        ]
        run(*bill, "--output-file", str(dist / f"serving-{number}.cdx.json"), at=tree, environment=environment)
    write_json(dist / PROVENANCE, provenance(dist, number))
    (dist / SUMS).write_text("".join(f"{digest_of(path)}  {path.name}\n" for path in files(dist)))
    if key is not None:
        (dist / f"{SUMS}.sig").write_text(signing.sign((dist / SUMS).read_bytes(), signing.load(key)))
    report(dist, number, sizes, is_signed=key is not None)


def checkout(tree: Path) -> None:
    """Write the files of the commit, and nothing else, to a folder."""
    tree.mkdir()
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", "HEAD"], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        packed.extractall(tree, **_FILTER)  # noqa: S202 - git's own archive


def build_image(target: str, wheel: Path, scratch: Path, dist: Path, number: str, made_s: int) -> int:
    """Write the OCI archive of a target and its bill of materials, and return its unpacked size in bytes."""
    root = scratch / target
    image.build(target, wheel, root)
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    if size > SIZE_MAX[target]:
        raise Unbuildable(f"the image of {target} has {size:,} bytes; release/build.py allows {SIZE_MAX[target]:,}")
    name = NAMES[target]
    shutil.copyfile(root / image.SBOM, dist / f"{name}-{number}.image.cdx.json")
    prefix = "org.opencontainers.image"
    described = oci.Image(
        name=f"localhost/{name}:{number.replace('+', '-')}",
        layers=("opt/serving/lib", f"{packages_of(root)}/serving"),
        config=configuration(target),
        labels={f"{prefix}.version": number, f"{prefix}.revision": commit(), f"{prefix}.licenses": "Apache-2.0"},
        epoch_s=made_s,
    )
    oci.pack(root, dist / f"{name}-{number}.oci.tar", described)
    return size


def packages_of(root: Path) -> str:
    """The folder of packages in an image."""
    (packages,) = root.glob("opt/serving/lib/python*/site-packages")
    return str(packages.relative_to(root))


def configuration(target: str) -> dict[str, Any]:
    """User, environment and command of an image, as the last stages of the Containerfile set them."""
    lines = [line for line in (ROOT / "Containerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    config: dict[str, Any] = {}
    stage = ""
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        instruction, _, rest = line.partition(" ")
        match instruction, stage:
            case "FROM", _:
                stage = rest.rpartition(" ")[2]
            case "ENV", "runtime":
                config["Env"] = rest.split()
            case "USER", "runtime":
                config["User"] = rest
            case "CMD", _ if stage == target:
                config["Cmd"] = json.loads(rest)
    return config


def write_manifests(tree: Path, dist: Path, number: str, made_s: int) -> None:
    """Write ``install.yaml``, the definitions in it, the kustomize base with its components, and the Helm chart."""
    tag = number.replace("+", "-")
    for path in sorted((tree / "config").rglob("*.yaml")):
        text = path.read_text()
        path.write_text(text.replace(f"newTag: {number.partition('.dev')[0]}", f"newTag: {tag}"))
    # As the archives name them: no registry has them before a push.
    images = ["--image", f"localhost/serving:{tag}", "--queue-proxy-image", f"localhost/serving-queue-proxy:{tag}"]
    dry_run = subprocess.run(
        [sys.executable, "-m", "serving", "install", "--dry-run", *images],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        check=True,
    )
    (dist / "install.yaml").write_bytes(dry_run.stdout)
    documents = dry_run.stdout.decode().split("\n---\n")
    definitions = [text for text in documents if "kind: CustomResourceDefinition\n" in text]
    (dist / "definitions.yaml").write_text("\n---\n".join(definitions) + "\n")
    names = [name for name in oci.paths_of(tree) if name.partition("/")[0] == "config"]
    (dist / f"serving-{number}-kustomize.tar.gz").write_bytes(
        gzip.compress(oci.tar_of(tree, names, epoch_s=made_s), mtime=0)
    )
    folder = tree / "chart"
    for name, text in chart.chart_files(tree / "config", chart.chart_version(number), image_tag=tag).items():
        (folder / "serving" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "serving" / name).write_text(text)
    packed = oci.tar_of(folder, [*oci.paths_of(folder)], epoch_s=made_s)
    (dist / f"serving-{chart.chart_version(number)}.tgz").write_bytes(gzip.compress(packed, mtime=0))


def provenance(dist: Path, number: str) -> dict[str, Any]:
    """An in-toto statement about every file, with SLSA provenance of how it was built (slsa.dev/provenance/v1)."""
    locks = sorted((ROOT / "release/locks").glob("*.txt"))
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": path.name, "digest": {"sha256": digest_of(path)}} for path in files(dist)],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"{_SOURCE}/release/build.py@v1",
                "externalParameters": {"version": number, "commit": commit()},
                "internalParameters": {"python": platform.python_version(), "machine": platform.machine()},
                "resolvedDependencies": [
                    {"uri": f"git+{_SOURCE}", "digest": {"gitCommit": commit()}},
                    *({"uri": f"release/locks/{path.name}", "digest": {"sha256": digest_of(path)}} for path in locks),
                    *base(),
                ],
            },
            "runDetails": {"builder": {"id": os.environ.get("SERVING_BUILDER", "make release")}},
        },
    }


def base() -> list[dict[str, Any]]:
    """The image that the build runs in, as its environment names it."""
    name, _, digest = os.environ.get("SERVING_BUILD_IMAGE", "").partition("@sha256:")
    return [{"uri": f"docker://{name}", "digest": {"sha256": digest}}] if digest else []


def files(dist: Path) -> list[Path]:
    """What a release consists of so far, but for the sums themselves."""
    return sorted(path for path in dist.iterdir() if not path.name.startswith((SUMS, ".")))


def report(dist: Path, number: str, sizes: Mapping[str, int], *, is_signed: bool) -> None:
    """Print what was built."""
    for path in files(dist):
        print(f"{path.stat().st_size:>12,}  {path.name}")
    for target, size in sizes.items():
        print(f"{size:>12,}  unpacked: {NAMES[target]}")
    print(f"serving {number} in {dist}{'' if is_signed else ', unsigned: give KEY=<EC private key in PEM> to sign'}")


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a value with sorted keys."""
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


def git(*arguments: str) -> str:
    """What git prints for this checkout. Raises ``Unbuildable`` where there is none."""
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        raise Unbuildable(f"a release is built from a git checkout: {error}") from error
    return done.stdout.strip()


def run(*arguments: str, at: Path, environment: Mapping[str, str]) -> None:
    """Run a module of this Python; what it prints is shown only when it fails."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=at, env=dict(environment), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Unbuildable(f"{' '.join(arguments[:3])} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
