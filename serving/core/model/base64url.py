"""Base64url without padding (RFC 4648, section 5), which tokens use."""

import base64


def encode_base64url(content: bytes) -> str:
    """Encode bytes without padding."""
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def decode_base64url(text: str) -> bytes:
    """Decode text without padding. Raises ``ValueError``."""
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
