"""Cases of ``rules.jsonl``: objects, most of which violate a rule, and a kube-apiserver's messages.

Unit tests compare admission with them, and the conformance suite compares every server.
"""

from pathlib import Path
from typing import Any

import msgspec

from serving.net.cluster.kinds import KINDS, Kind

Json = dict[str, Any]
_BY_RESOURCE = {kind.resource: kind for kind in KINDS}


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An object, or a change of the object ``before``, and the messages of its rejection."""

    name: str
    resource: str
    object: Json
    before: Json | None = None
    answers: list[str]

    @property
    def kind(self) -> Kind:
        """The kind of the object."""
        return _BY_RESOURCE[self.resource]


CASES = msgspec.json.Decoder(Case).decode_lines(Path(__file__).with_name("rules.jsonl").read_bytes())
