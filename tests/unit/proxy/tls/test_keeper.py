"""How certificates take each other's place, without a connection: what is served, and what the log says."""

import datetime as dt
import logging
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from serving.model.errors import InvalidCertificate
from serving.proxy.tls.keeper import Certificates, Found, silence_unreadable_names
from tests.integration.tls_stage import issued


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, Any]]:
    found = [
        (record.getMessage(), vars(record).get("reason", vars(record)["certificate"])) for record in caplog.records
    ]
    caplog.clear()
    return found


def unreadable(reason: str) -> InvalidCertificate:
    return InvalidCertificate(where="here", reason=reason)


def test_each_change_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    certificates = Certificates(handshake_max_s=1)
    one, two, bad = issued("a.example"), issued("a.example"), issued("a.example")
    mixed = type(one)(where="here", certificate_pem=one.certificate_pem, key_pem=two.key_pem)
    steps: list[tuple[Found, list[tuple[str, str]]]] = [
        ({"a": one}, [("certificate.loaded", "a")]),
        ({"a": one}, []),
        ({"a": mixed}, [("certificate.refused", "the key is not this certificate's")]),
        ({"a": mixed}, []),
        ({"a": unreadable("no file")}, [("certificate.refused", "no file")]),
        ({"a": unreadable("no file")}, []),
        # Back to what is served already: nothing to tell, but the next trouble is new.
        ({"a": one}, []),
        ({"a": mixed}, [("certificate.refused", "the key is not this certificate's")]),
        ({"a": two, "b": bad}, [("certificate.loaded", "a"), ("certificate.loaded", "b")]),
        ({"a": two}, [("certificate.gone", "b")]),
        ({}, [("certificate.gone", "a")]),
    ]
    for found, told in steps:
        certificates.update(found)
        assert lines(caplog) == told
    assert repr(certificates) == "Certificates([], refused [])"


def test_the_last_good_one_stays(caplog: pytest.LogCaptureFixture) -> None:
    certificates = Certificates(handshake_max_s=1)
    certificates.update({"a": issued("a.example")})
    before = certificates.expiries()
    certificates.update({"a": unreadable("no file"), "b": unreadable("no file")})
    assert certificates.expiries() == before
    assert certificates.count == 1
    told = {vars(record)["certificate"]: vars(record)["last_good_stays"] for record in caplog.records}
    assert told == {"a": True, "b": False}


def test_an_expired_one_is_served_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    old, end = dt.datetime(2019, 1, 1, tzinfo=dt.UTC), dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    certificates = Certificates(handshake_max_s=1)
    certificates.update({"a": issued("a.example", not_before=old, not_after=end)})
    assert certificates.expiries() == {"a": end.timestamp()}
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "certificate.expired")
    ]
    assert vars(caplog.records[0])["not_after"] == "2020-01-01T00:00:00Z"


def test_only_names_that_are_not_ascii_are_passed_over_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    silence_unreadable_names()
    error = UnicodeDecodeError("ascii", b"\xff", 0, 1, "no")
    for raised, about in ((error, b"\xff.example"), (error, "text"), (ValueError(), b"bytes")):
        sys.unraisablehook(cast("Any", SimpleNamespace(exc_value=raised, object=about)))
    assert [vars(cast("Any", one))["object"] for one in told] == ["text", b"bytes"]
