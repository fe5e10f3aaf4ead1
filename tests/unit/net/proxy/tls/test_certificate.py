"""Accepted pairs, and the reasons to reject others."""

import datetime as dt

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given
from hypothesis import strategies as st

from serving.core.model.errors import InvalidCertificate
from serving.net.proxy.tls.certificate import CertificateChoice, Identity, Pair, load_certificate
from tests.integration.tls_stage import AUTHORITY, issued

labels = st.text("ab-", min_size=1, max_size=3)
names = st.lists(labels, min_size=1, max_size=4).map(".".join)


def refused(certificate_pem: bytes, key_pem: bytes) -> str:
    with pytest.raises(InvalidCertificate) as caught:
        load_certificate("one", Pair(where="Secret a/b", certificate_pem=certificate_pem, key_pem=key_pem))
    assert str(caught.value) == f"Secret a/b: {caught.value.reason}"
    return caught.value.reason


def test_valid_pair_has_hosts_and_expiry() -> None:
    end = dt.datetime(2999, 12, 31, tzinfo=dt.UTC)
    pair = issued("a.example", "*.b.example", "127.0.0.1", not_after=end)
    certificate = load_certificate("one", pair)
    assert (certificate.identity.name, certificate.identity.hosts) == ("one", ("a.example", "*.b.example"))
    assert certificate.identity.not_after_s == end.timestamp()
    assert certificate.pair is pair


def test_certificate_for_address_only_is_accepted_without_hosts() -> None:
    assert load_certificate("one", issued("127.0.0.1")).identity.hosts == ()


def test_expired_certificate_is_accepted() -> None:
    old, end = dt.datetime(2019, 1, 1, tzinfo=dt.UTC), dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    certificate = load_certificate("one", issued("a.example", not_before=old, not_after=end))
    assert certificate.identity.not_after_s == end.timestamp()


def test_mismatched_or_unreadable_pair_is_rejected_with_reason() -> None:
    pair, other_pair = issued("a.example"), issued("b.example")
    assert refused(pair.certificate_pem, other_pair.key_pem) == "the key is not this certificate's"
    assert refused(pair.key_pem, pair.key_pem) == "there is no certificate as PEM in the certificate's file"
    assert refused(pair.certificate_pem, pair.certificate_pem) == "there is no key as PEM in the key's file"
    assert refused(b"", b"") == "there is no certificate as PEM in the certificate's file"
    assert "cannot be read" in refused(pair.certificate_pem[:200], pair.key_pem)
    assert "cannot be read" in refused(pair.certificate_pem.replace(b"M", b"?"), pair.key_pem)


def test_certificate_without_host_is_rejected_unless_pair_has_hosts() -> None:
    ca, key = AUTHORITY.cert_pem.bytes(), AUTHORITY.private_key_pem.bytes()
    assert refused(ca, key) == "it names no host (subjectAltName)"
    pair = Pair(where="here", certificate_pem=ca, key_pem=key, hosts=("a.example",))
    assert load_certificate("one", pair).identity.hosts == ("a.example",)


_SIGNS_ONLY = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


@pytest.mark.parametrize(
    "usage",
    [x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), _SIGNS_ONLY],
    ids=["of a client", "of an authority"],
)
def test_certificate_for_other_usage_is_rejected(usage: x509.ExtensionType) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a.example")])
    builder = x509.CertificateBuilder(
        subject_name=name,
        issuer_name=name,
        public_key=key.public_key(),
        serial_number=1,
        not_valid_before=dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
        not_valid_after=dt.datetime(2999, 1, 1, tzinfo=dt.UTC),
    )
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("a.example")]), critical=False)
    builder = builder.add_extension(usage, critical=False)
    pem = serialization.Encoding.PEM
    key_pem = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    certificate_pem = builder.sign(key, hashes.SHA256()).public_bytes(pem)
    assert "unsuitable certificate purpose" in refused(certificate_pem, key_pem)


def test_encrypted_key_is_rejected_without_prompt() -> None:
    pair = issued("a.example")
    key = serialization.load_pem_private_key(pair.key_pem, password=None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"word"),
    )
    assert refused(pair.certificate_pem, encrypted) == "the key has a password"


def identity(name: str, *hosts: str, until_s: float = 1.0) -> Identity:
    return Identity(name=name, hosts=hosts, not_after_s=until_s)


def test_exact_host_precedes_wildcard() -> None:
    choice = CertificateChoice([identity("wild", "*.example"), identity("one", "a.example")])
    assert [choice.find(name) for name in ("a.example", "A.Example.", "b.example")] == ["one", "one", "wild"]


def test_wildcard_matches_exactly_one_label() -> None:
    choice = CertificateChoice([identity("wild", "*.default.localhost")])
    assert choice.find("hello.default.localhost") == "wild"
    for name in ("a.b.default.localhost", "default.localhost", "localhost", ".default", ""):
        assert choice.find(name) is None


def test_unknown_name_without_default_has_no_certificate() -> None:
    assert CertificateChoice([identity("one", "a.example")]).find(None) is None
    assert CertificateChoice([identity("one", "a.example")], default="two").find("x") is None


def test_default_certificate_applies_to_all_other_names() -> None:
    choice = CertificateChoice([identity("one", "a.example"), identity("two")], default="two")
    assert [choice.find(name) for name in ("a.example", "x", "", None)] == ["one", "two", "two", "two"]


def test_certificate_with_latest_expiry_is_chosen_for_a_host() -> None:
    old, new = identity("b-old", "a.example", "old.example"), identity("a-new", "a.example", until_s=2.0)
    for both in ([old, new], [new, old]):
        choice = CertificateChoice(both)
        assert [choice.find(name) for name in ("a.example", "old.example")] == ["a-new", "b-old"]
    equal = [identity("b", "a.example"), identity("a", "a.example")]
    assert {CertificateChoice(order).find("a.example") for order in (equal, equal[::-1])} == {"a"}


@given(st.lists(st.tuples(st.booleans(), names), max_size=6), names)
def test_chosen_certificate_matches_server_name(hosts: list[tuple[bool, str]], server_name: str) -> None:
    written = [f"*.{name}" if is_wild else name for is_wild, name in hosts]
    choice = CertificateChoice([identity(host, host) for host in written])
    parent = f"*.{server_name.partition('.')[2]}"
    text = choice.find(server_name)
    if server_name in written:
        assert text == server_name
    elif parent in written:
        assert text == parent
    else:
        assert text is None
