"""Objects with the answers of a kube-apiserver to them: the cases of ``rules.jsonl``, most of which break a rule.

The unit tests ask admission for the same, and the conformance suite asks every server.
"""

from pathlib import Path
from typing import Any

import msgspec

from serving.net.cluster.kinds import KINDS, Kind

Json = dict[str, Any]
_BY_RESOURCE = {kind.resource: kind for kind in KINDS}


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An object, or a change of the one ``before``, and the messages of the refusal."""

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
