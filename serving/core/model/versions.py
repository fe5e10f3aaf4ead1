"""Version numbers of frames, messages and files; docs/version-skew.md describes allowed differences.

A version increases only if an older program would misread the newer form. An added field needs no new version, because
readers ignore unknown fields. A form without a version has version 1, so that version 1 needs no bytes.
"""

from typing import Annotated, Final, TypeAlias

import msgspec

from serving.core.model.errors import UNREADABLE, NewerFormat

FormatVersion: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]

STAT: Final = 1
"""Frames with stats: from pods and activators to the autoscaler, and between autoscalers."""

SLOTS: Final = 1
"""Messages about slots between the activators of a machine."""

DECISIONS: Final = 1
"""Lines of the decision log."""
NEWER_DECISIONS: Final = "read them with the version that wrote them"

POD_RECORDS: Final = 1
"""Records of pod processes, passed from a template or control process to its successor."""
NEWER_PODS: Final = "run the newer version again, or end the pods: `serving down`, `serving up`"


class _Versioned(msgspec.Struct):
    version: FormatVersion = 1


_decoders = (msgspec.json.Decoder(_Versioned).decode, msgspec.msgpack.Decoder(_Versioned).decode)


def refuse_newer(what: str, version: int, *, known: int, action: str) -> None:
    """Raise ``NewerFormat`` if the version is above ``known``. ``action`` tells an operator what to do."""
    if version > known:
        raise NewerFormat(what=what, version=version, known=known, action=action)


def refuse_newer_text(what: str, content: bytes, *, known: int, action: str) -> None:
    """Raise ``NewerFormat`` if JSON or MessagePack that could not be decoded has a version above ``known``."""
    for decode in _decoders:
        try:
            version = decode(content).version
        except UNREADABLE:
            continue
        refuse_newer(what, version, known=known, action=action)
