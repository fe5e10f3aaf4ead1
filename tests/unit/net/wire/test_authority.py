"""The authority of a cluster key, and the certificates that it signs."""

import datetime as dt

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from serving.core.model.identities import ACTIVATOR, pods_of
from serving.net.wire.authority import SKEW_MAX_S, Authority

KEY = bytes(range(32))
NOW_S = 1_800_000_000.0


def test_all_holders_of_a_key_have_the_same_authority() -> None:
    assert Authority(KEY).certificate == Authority(KEY).certificate
    assert Authority(KEY).certificate != Authority(bytes(32)).certificate


@pytest.mark.parametrize(
    ("identity", "hosts"), [(ACTIVATOR, ["activator.serving.local"]), (f"{pods_of('shop', 'a-00001')}a-x", [])]
)
def test_a_certificate_names_one_id_and_that_of_a_daemon_its_host(identity: str, hosts: list[str]) -> None:
    made = Authority(KEY).issue(identity, now_s=NOW_S, life_s=86_400)
    found = x509.load_pem_x509_certificate(made.certificate.encode())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert [one.value for one in names.value] == [identity, *hosts]
    assert names.critical
    assert len(found.subject) == 0
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    found.verify_directly_issued_by(x509.load_pem_x509_certificate(made.authority.encode()))
    assert load_pem_private_key(made.key.encode(), None).public_key() == found.public_key()


def test_a_certificate_lives_as_long_as_it_should_and_forgives_clocks_that_are_behind() -> None:
    made = Authority(KEY).issue(ACTIVATOR, now_s=NOW_S, life_s=86_400)
    found = x509.load_pem_x509_certificate(made.certificate.encode())
    assert found.not_valid_after_utc == dt.datetime.fromtimestamp(made.not_after_s, dt.UTC)
    assert made.not_after_s == NOW_S + 86_400
    assert found.not_valid_before_utc == dt.datetime.fromtimestamp(NOW_S - SKEW_MAX_S, dt.UTC)
