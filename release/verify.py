"""Verify a release offline: ``python -m release.verify DIST [--key PUBLIC_KEY]``; ``make verify-release`` runs it.

Checks the signature of ``SHA256SUMS``, every file's sum, that the provenance statement names the same files, and that
each blob of an image archive has the digest that its manifest names. Prints each problem on a line, and exits with 1 if
there is one.
"""

import argparse
import hashlib
import json
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from release import signing

SUMS = "SHA256SUMS"
_CHUNK_BYTES = 1 << 20


def main() -> None:
    """Print problems, or what was verified."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dist", type=Path)
    parser.add_argument("--key", type=Path, help="the EC public key in PEM; without it the signature is not checked")
    options = parser.parse_args()
    try:
        problems = list(problems_of(options.dist, key=options.key))
    except signing.BadKey as error:
        sys.exit(f"verify-release: {error}")
    for problem in problems:
        print(problem)
    if problems:
        sys.exit(1)
    by = f"signed by {options.key}" if options.key else "signature not checked: give PUBLIC_KEY=<public key in PEM>"
    print(f"{options.dist}: {len(sums_of(options.dist))} files are as built; {by}")


def problems_of(dist: Path, *, key: Path | None) -> Iterator[str]:
    """Each difference between a folder and the release that it says it is."""
    if not (dist / SUMS).exists():
        yield f"{dist}: no {SUMS}; this is no release, or only a part of one"
        return
    if key is not None:
        signature = dist / f"{SUMS}.sig"
        if not signature.exists():
            yield f"{signature.name}: missing; the release is not signed"
        elif not signing.is_signed((dist / SUMS).read_bytes(), signature.read_text(), signing.load_public(key)):
            yield f"{signature.name}: no signature of {SUMS} by {key}"
    sums = sums_of(dist)
    for name, expected in sums.items():
        if not (dist / name).is_file():
            yield f"{name}: missing"
        elif (digest := digest_of(dist / name)) != expected:
            yield f"{name}: sha256 is {digest}, {SUMS} says {expected}"
    present = {path.name for path in dist.iterdir() if not path.name.startswith((SUMS, "."))}
    yield from (f"{name}: not in {SUMS}" for name in sorted(present - sums.keys()))
    yield from _statement_problems(dist, sums)
    for name in sums:
        if name.endswith(".oci.tar") and (dist / name).is_file():
            yield from _image_problems(dist / name)


def sums_of(dist: Path) -> dict[str, str]:
    """The expected SHA-256 of each file, by name."""
    lines = (dist / SUMS).read_text().splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def digest_of(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _statement_problems(dist: Path, sums: dict[str, str]) -> Iterator[str]:
    path = dist / "provenance.intoto.json"
    try:
        subjects = {subject["name"]: subject["digest"]["sha256"] for subject in json.loads(path.read_text())["subject"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        yield f"{path.name}: no in-toto statement: {error!r}"
        return
    expected = {name: digest for name, digest in sums.items() if name != path.name}
    if subjects != expected:
        yield f"{path.name}: its subjects are not the files of {SUMS}"


def _image_problems(path: Path) -> Iterator[str]:
    with tarfile.open(path) as archive:
        for entry in archive:
            if not entry.name.startswith("blobs/sha256/"):
                continue
            content, digest = archive.extractfile(entry), hashlib.sha256()
            while content is not None and (chunk := content.read(_CHUNK_BYTES)):
                digest.update(chunk)
            if digest.hexdigest() != entry.name.rpartition("/")[2]:
                yield f"{path.name}: {entry.name} has another digest"


if __name__ == "__main__":
    main()
