"""Lists the fields of a document that a conversion ignores. Pure.

A table has the fields that are read. A key maps to None if the whole value is read, or to another table if only some of
its fields are read. Elements of lists are checked too.
"""

from collections.abc import Iterator, Mapping

Fields = Mapping[str, "Fields | None"]


def unread(value: object, fields: Fields, path: str = "") -> Iterator[str]:
    """The paths of fields that ``fields`` does not list, such as "deploy.replicas". Extensions (x-...) are skipped."""
    if isinstance(value, list):
        for item in value:
            yield from unread(item, fields, path)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            name = f"{path}.{key}".removeprefix(".")
            if str(key).startswith("x-") or item is None:
                continue
            if key not in fields:
                yield name
            elif (below := fields[key]) is not None:
                yield from unread(item, below, name)
