import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from release import signing, verify
from tests.tidy.sources import ROOT


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    """A small release of two files."""
    folder = tmp_path / "dist"
    folder.mkdir()
    (folder / "serving.whl").write_bytes(b"wheel")
    (folder / "install.yaml").write_bytes(b"kind: List")
    subjects = [{"name": path.name, "digest": {"sha256": digest(path)}} for path in sorted(folder.iterdir())]
    (folder / "provenance.intoto.json").write_text(json.dumps({"subject": subjects}))
    write_sums(folder)
    return folder


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_sums(folder: Path) -> None:
    files = sorted(path for path in folder.iterdir() if not path.name.startswith(verify.SUMS))
    (folder / verify.SUMS).write_text("".join(f"{digest(path)}  {path.name}\n" for path in files))


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    private, public = tmp_path / "key.pem", tmp_path / "key.pub"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public


def sign(dist: Path, private: Path) -> None:
    signature = signing.sign((dist / verify.SUMS).read_bytes(), signing.load(private))
    (dist / f"{verify.SUMS}.sig").write_text(signature)


def problems(dist: Path, key: Path | None = None) -> list[str]:
    return list(verify.problems_of(dist, key=key))


def test_built_release_has_no_problems(dist: Path, keys: tuple[Path, Path]) -> None:
    sign(dist, keys[0])
    assert problems(dist) == []
    assert problems(dist, keys[1]) == []


def test_changed_missing_and_added_files_are_reported(dist: Path) -> None:
    (dist / "serving.whl").write_bytes(b"other")
    (dist / "install.yaml").unlink()
    (dist / "extra").write_bytes(b"")
    results = problems(dist)
    assert [line.partition(":")[0] for line in results] == ["install.yaml", "serving.whl", "extra"]


def test_rewritten_sums_fail_signature_and_provenance(dist: Path, keys: tuple[Path, Path]) -> None:
    sign(dist, keys[0])
    (dist / "serving.whl").write_bytes(b"other")
    write_sums(dist)
    assert problems(dist, keys[1]) == [
        f"SHA256SUMS.sig: no signature of SHA256SUMS by {keys[1]}",
        "provenance.intoto.json: its subjects are not the files of SHA256SUMS",
    ]


def test_missing_signature_is_reported_only_with_key(dist: Path, keys: tuple[Path, Path]) -> None:
    assert problems(dist) == []
    assert problems(dist, keys[1]) == ["SHA256SUMS.sig: missing; the release is not signed"]


@pytest.mark.parametrize("signature", ["", "not base64 at all", "AAAA", "é"])
def test_malformed_signature_is_reported(dist: Path, keys: tuple[Path, Path], signature: str) -> None:
    (dist / f"{verify.SUMS}.sig").write_text(signature)
    assert len(problems(dist, keys[1])) == 1


def test_openssl_accepts_signature(dist: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    sign(dist, keys[0])
    decoded = subprocess.run(
        ["openssl", "base64", "-d", "-A", "-in", str(dist / "SHA256SUMS.sig")], capture_output=True, check=True
    )
    (tmp_path / "raw").write_bytes(decoded.stdout)
    command = ["openssl", "dgst", "-sha256", "-verify", str(keys[1]), "-signature", str(tmp_path / "raw")]
    done = subprocess.run([*command, str(dist / "SHA256SUMS")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "Verified OK\n")


def test_unsupported_or_absent_key_is_rejected_with_its_path(tmp_path: Path) -> None:
    other = tmp_path / "rsa.pem"
    key = rsa.generate_private_key(65537, 2048)
    other.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(signing.BadKey, match=r"rsa\.pem: an EC key is needed"):
        signing.load(other)
    with pytest.raises(signing.BadKey, match="no private key in PEM"):
        signing.load(tmp_path / "absent")


def test_command_reports_folder_without_sums(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "release.verify", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (
        1,
        f"{tmp_path}: no SHA256SUMS; this is no release, or only a part of one\n",
    )
