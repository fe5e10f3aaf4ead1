"""The numbers of the fields of Kubernetes' own kinds in protobuf: ``config/openapi/protobuf.json``.

Written by ``tests/conformance/reduce_openapi.py`` from Kubernetes' Go types; ``builtin_schemas`` has the types of the fields. Pure
except for reading the file once.
"""

import functools
from collections.abc import Mapping

import msgspec

from serving.home.schemas.builtin_schemas import SCHEMAS_FILE

NUMBERS_FILE = SCHEMAS_FILE.with_name("protobuf.json")


class MessageNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of one message."""

    numbers: Mapping[str, tuple[int, ...]]
    """A field's number by its name in JSON. A field of an embedded message has the numbers of both, the outer one first."""

    pointers: frozenset[str] = frozenset()
    """Fields that are pointers in Go: on the wire only if they are set, so that a zero counts. Go writes all others."""


@functools.cache
def message_numbers() -> Mapping[str, MessageNumbers]:
    """All messages by the short names of their schemas, such as "core.v1.Pod"."""
    return msgspec.json.decode(NUMBERS_FILE.read_bytes(), type=dict[str, MessageNumbers])
