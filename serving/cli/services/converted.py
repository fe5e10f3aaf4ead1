"""What a conversion into Knative's manifests results in."""

import msgspec

from serving.model.objects import Object


class Converted(msgspec.Struct, kw_only=True):
    """The manifests, and a note for each part that has no equal."""

    manifests: list[Object] = []
    notes: list[str] = []
