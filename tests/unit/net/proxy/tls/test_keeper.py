"""Replacement of certificates: the served certificate and the log, without connections."""

import datetime as dt
import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from serving.core.model.errors import InvalidCertificate
from serving.net.proxy.tls.certificate import Pair
from serving.net.proxy.tls.keeper import CertificateFiles, Certificates, Found, silence_unreadable_names
from tests.integration.tls_stage import issued


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, Any]]:
    results = [
        (record.getMessage(), vars(record).get("reason", vars(record)["certificate"])) for record in caplog.records
    ]
    caplog.clear()
    return results


def unreadable(reason: str) -> InvalidCertificate:
    return InvalidCertificate(where="here", reason=reason)


def test_certificate_changes_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    certificates = Certificates(handshake_max_s=1)
    pair, other_pair, bad = issued("a.example"), issued("a.example"), issued("a.example")
    mixed = type(pair)(where="here", certificate_pem=pair.certificate_pem, key_pem=other_pair.key_pem)
    steps: list[tuple[Found, list[tuple[str, str]]]] = [
        ({"a": pair}, [("certificate.loaded", "a")]),
        ({"a": pair}, []),
        ({"a": mixed}, [("certificate.refused", "the key is not this certificate's")]),
        ({"a": mixed}, []),
        ({"a": unreadable("no file")}, [("certificate.refused", "no file")]),
        ({"a": unreadable("no file")}, []),
        # The served pair is back: nothing is logged, and the next failure is logged again.
        ({"a": pair}, []),
        ({"a": mixed}, [("certificate.refused", "the key is not this certificate's")]),
        ({"a": other_pair, "b": bad}, [("certificate.loaded", "a"), ("certificate.loaded", "b")]),
        ({"a": other_pair}, [("certificate.gone", "b")]),
        ({}, [("certificate.gone", "a")]),
    ]
    for result, reported in steps:
        certificates.update(result)
        assert lines(caplog) == reported


def test_last_valid_certificate_is_retained(caplog: pytest.LogCaptureFixture) -> None:
    certificates = Certificates(handshake_max_s=1)
    certificates.update({"a": issued("a.example")})
    before = certificates.expiries()
    certificates.update({"a": unreadable("no file"), "b": unreadable("no file")})
    assert certificates.expiries() == before
    assert certificates.count == 1
    reported = {vars(record)["certificate"]: vars(record)["last_good_stays"] for record in caplog.records}
    assert reported == {"a": True, "b": False}


def test_expired_certificate_is_served_with_warning(caplog: pytest.LogCaptureFixture) -> None:
    old, end = dt.datetime(2019, 1, 1, tzinfo=dt.UTC), dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    certificates = Certificates(handshake_max_s=1)
    certificates.update({"a": issued("a.example", not_before=old, not_after=end)})
    assert certificates.expiries() == {"a": end.timestamp()}
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "certificate.expired")
    ]
    assert vars(caplog.records[0])["not_after"] == "2020-01-01T00:00:00Z"


def test_only_non_ascii_server_name_errors_are_silenced(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    silence_unreadable_names()
    error = UnicodeDecodeError("ascii", b"\xff", 0, 1, "no")
    for raised, about in ((error, b"\xff.example"), (error, "text"), (ValueError(), b"bytes")):
        sys.unraisablehook(cast("Any", SimpleNamespace(exc_value=raised, object=about)))
    assert [vars(cast("Any", report))["object"] for report in reported] == ["text", b"bytes"]


def write(folder: Path, **texts: str) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / name.replace("_", ".")).write_text(text)


def read(files: CertificateFiles) -> dict[str, tuple[bytes, bytes] | str]:
    """Both texts of each pair, or the error."""
    return {
        name: (result.certificate_pem, result.key_pem) if isinstance(result, Pair) else str(result)
        for name, result in files.read().items()
    }


def test_folder_is_read_for_pairs_of_three_layouts(tmp_path: Path) -> None:
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


def test_named_pairs_are_keyed_by_certificate_path(tmp_path: Path) -> None:
    write(tmp_path, a_crt="1", a_key="2")
    where, key = f"{tmp_path}/a.crt", f"{tmp_path}/a.key"
    files = CertificateFiles(pairs=[(where, key)])
    assert read(files) == {where: (b"1", b"2")}
    (tmp_path / "a.key").unlink()
    assert read(files) == {where: f"{key}: No such file or directory"}
    (tmp_path / "a.crt").unlink()
    assert read(files) == {where: f"{where}: No such file or directory"}


def test_changed_file_is_read_again(tmp_path: Path) -> None:
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
    # A rename over the file, with the old modification time.
    write(tmp_path, new="4")
    os.utime(tmp_path / "new", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    (tmp_path / "new").rename(tmp_path / "a.key")
    assert read(files) == {"a": (b"1", b"4")}


def test_unreadable_folder_retains_its_last_pairs(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    write(folder, a_crt="1", a_key="2")
    files = CertificateFiles(folder=str(folder))
    assert read(files) == {"a": (b"1", b"2")}
    folder.rename(tmp_path / "away")
    assert read(files) == {"a": (b"1", b"2"), str(folder): f"{folder}: No such file or directory"}
    write(folder)
    assert read(files) == {}


@pytest.mark.parametrize("size", [1024**2, 1024**2 + 1])
def test_file_larger_than_1_mib_is_rejected(tmp_path: Path, size: int) -> None:
    write(tmp_path, a_crt="1", a_key="k" * size)
    result = CertificateFiles(folder=str(tmp_path)).read()["a"]
    if size > 1024**2:
        assert isinstance(result, InvalidCertificate)
        assert result.reason == "it is larger than 1 MiB"
    else:
        assert isinstance(result, Pair)
