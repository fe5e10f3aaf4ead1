"""The authority of a cluster key, and the certificates that it signs."""

import datetime as dt

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from serving.core.model.identities import ACTIVATOR, pods_of
from serving.net.wire.authority import SKEW_MAX_S, Authority

KEY = bytes(range(32))
NOW_S = 1_800_000_000.0


def test_authority_certificate_is_determined_by_key() -> None:
    assert Authority(KEY).certificate == Authority(KEY).certificate
    assert Authority(KEY).certificate != Authority(bytes(32)).certificate


@pytest.mark.parametrize(
    ("identity", "hosts"), [(ACTIVATOR, ["activator.serving.local"]), (f"{pods_of('shop', 'a-00001')}a-x", [])]
)
def test_certificate_names_its_identity_and_daemon_host(identity: str, hosts: list[str]) -> None:
    issued_certificate = Authority(KEY).issue(identity, now_s=NOW_S, life_s=86_400)
    certificate = x509.load_pem_x509_certificate(issued_certificate.certificate.encode())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert [name.value for name in names.value] == [identity, *hosts]
    assert names.critical
    assert len(certificate.subject) == 0
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(issued_certificate.authority.encode()))
    assert load_pem_private_key(issued_certificate.key.encode(), None).public_key() == certificate.public_key()


def test_certificate_validity_includes_lifetime_and_clock_skew() -> None:
    issued_certificate = Authority(KEY).issue(ACTIVATOR, now_s=NOW_S, life_s=86_400)
    certificate = x509.load_pem_x509_certificate(issued_certificate.certificate.encode())
    assert certificate.not_valid_after_utc == dt.datetime.fromtimestamp(issued_certificate.not_after_s, dt.UTC)
    assert issued_certificate.not_after_s == NOW_S + 86_400
    assert certificate.not_valid_before_utc == dt.datetime.fromtimestamp(NOW_S - SKEW_MAX_S, dt.UTC)
