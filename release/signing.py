"""Signatures of a release in the form that ``cosign verify-blob --key`` reads: base64 of an ECDSA signature over SHA-256.

Offline and without cosign:
``openssl dgst -sha256 -verify serving.pub -signature <(base64 -d SHA256SUMS.sig) SHA256SUMS``.
"""

import base64
import binascii
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key


class BadKey(ValueError):
    """A file is no key that signs or verifies releases."""


def load(path: Path) -> ec.EllipticCurvePrivateKey:
    """The private key of a PEM file. Raises ``BadKey``."""
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise BadKey(f"{path}: no private key in PEM without a password: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise BadKey(f"{path}: an EC key is needed: openssl ecparam -genkey -name prime256v1 -noout")
    return key


def load_public(path: Path) -> ec.EllipticCurvePublicKey:
    """The public key of a PEM file. Raises ``BadKey``."""
    try:
        key = load_pem_public_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BadKey(f"{path}: no public key in PEM: {error}") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise BadKey(f"{path}: an EC key is needed")
    return key


def sign(content: bytes, key: ec.EllipticCurvePrivateKey) -> str:
    """The signature as text."""
    return base64.b64encode(key.sign(content, ec.ECDSA(hashes.SHA256()))).decode() + "\n"


def is_signed(content: bytes, signature: str, key: ec.EllipticCurvePublicKey) -> bool:
    """Whether the key's owner signed the content."""
    try:
        key.verify(base64.b64decode(signature, validate=False), content, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, binascii.Error, ValueError):
        return False
    return True
