"""Pairs in files: what is found in a folder, and when it is read again."""

import os
from pathlib import Path

import pytest

from serving.model.errors import InvalidCertificate
from serving.proxy.tls.certificate import Pair
from serving.proxy.tls.files import CertificateFiles


def write(folder: Path, **texts: str) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / name.replace("_", ".")).write_text(text)


def read(files: CertificateFiles) -> dict[str, tuple[bytes, bytes] | str]:
    """Both texts of each pair, or why there is none."""
    return {
        name: (found.certificate_pem, found.key_pem) if isinstance(found, Pair) else str(found)
        for name, found in files.read().items()
    }


def test_a_folder_has_pairs_of_three_kinds(tmp_path: Path) -> None:
    write(tmp_path, a_crt="1", a_key="2", b_pem="3", b_key="4", c_key="nobody's", README="no")
    write(tmp_path / "secret", tls_crt="5", tls_key="6")
    write(tmp_path / "certbot", fullchain_pem="7", privkey_pem="8")
    write(tmp_path / "..data", tls_crt="9", tls_key="10")
    write(tmp_path / "empty")
    assert read(CertificateFiles(folder=str(tmp_path))) == {
        "a": (b"1", b"2"),
        "b": (b"3", b"4"),
        "secret": (b"5", b"6"),
        "certbot": (b"7", b"8"),
    }


def test_named_pairs_have_the_path_of_their_certificate(tmp_path: Path) -> None:
    write(tmp_path, a_crt="1", a_key="2")
    where, key = f"{tmp_path}/a.crt", f"{tmp_path}/a.key"
    files = CertificateFiles(pairs=[(where, key)])
    assert read(files) == {where: (b"1", b"2")}
    assert repr(files) == f"CertificateFiles(['{where}'])"
    (tmp_path / "a.key").unlink()
    assert read(files) == {where: f"{key}: No such file or directory"}
    (tmp_path / "a.crt").unlink()
    assert read(files) == {where: f"{where}: No such file or directory"}


def test_a_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    write(tmp_path, a_crt="1", a_key="2")
    files = CertificateFiles(folder=str(tmp_path))
    before = files.read()["a"]
    assert files.read()["a"] is before
    status = (tmp_path / "a.key").stat()
    (tmp_path / "a.key").write_text("3")
    os.utime(tmp_path / "a.key", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert files.read()["a"] is before
    os.utime(tmp_path / "a.key", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert read(files) == {"a": (b"1", b"3")}
    # A rename over it, with the old time.
    write(tmp_path, new="4")
    os.utime(tmp_path / "new", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    (tmp_path / "new").rename(tmp_path / "a.key")
    assert read(files) == {"a": (b"1", b"4")}


def test_a_folder_that_cannot_be_read_keeps_what_it_had(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    write(folder, a_crt="1", a_key="2")
    files = CertificateFiles(folder=str(folder))
    assert read(files) == {"a": (b"1", b"2")}
    folder.rename(tmp_path / "away")
    assert read(files) == {"a": (b"1", b"2"), str(folder): f"{folder}: No such file or directory"}
    write(folder)
    assert read(files) == {}


@pytest.mark.parametrize("size", [1024**2, 1024**2 + 1])
def test_a_file_has_at_most_1_mib(tmp_path: Path, size: int) -> None:
    write(tmp_path, a_crt="1", a_key="k" * size)
    found = CertificateFiles(folder=str(tmp_path)).read()["a"]
    if size > 1024**2:
        assert isinstance(found, InvalidCertificate)
        assert found.reason == "it is larger than 1 MiB"
    else:
        assert isinstance(found, Pair)
