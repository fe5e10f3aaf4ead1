"""Server-side printing: a ``Table`` of ``meta.k8s.io``, and ``PartialObjectMetadata``.

Input: objects of one kind and the time; output: the table. The columns of custom resources come from their CRD, those of
Kubernetes' own kinds from ``columns.py``.
"""

import functools
from collections.abc import Iterable
from typing import Any

from serving.cluster.kinds import Kind
from serving.home.apiserver.columns import COLUMNS, Cell, CellColumn, age
from serving.home.apiserver.jsonpath import compiled
from serving.home.schemas.crds import Column, crds
from serving.model.objects import Object


def table(
    kind: Kind, objects: Iterable[Object], metadata: Object, *, version: str, include: str, now_s: float
) -> Object:
    """A table of objects. ``include`` selects the object in each row: "None", "Metadata" or "Object"."""
    columns = _columns(kind)
    return {
        "kind": "Table",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": metadata,
        "columnDefinitions": [
            {
                "name": column.name,
                "type": column.type,
                "format": column.format,
                "description": column.description,
                "priority": column.priority,
            }
            for column in columns
        ],
        "rows": [
            {"cells": [column.cell(one, now_s) for column in columns], **_carried(one, version, include)}
            for one in objects
        ],
    }


def partial_metadata(one: Object, version: str) -> Object:
    """An object's metadata alone."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": one.get("metadata", {}),
    }


def metadata_list(objects: Iterable[Object], metadata: Object, version: str) -> Object:
    """Metadata of a list's objects."""
    return {
        "kind": "PartialObjectMetadataList",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": metadata,
        "items": [partial_metadata(one, version) for one in objects],
    }


def _carried(one: Object, version: str, include: str) -> Object:
    match include:
        case "None":
            return {}
        case "Object":
            return {"object": one}
        case _:
            return {"object": partial_metadata(one, version)}


@functools.cache
def _columns(kind: Kind) -> tuple[CellColumn, ...]:
    if kind in COLUMNS:
        return COLUMNS[kind]
    crd = crds().get(kind)
    name = CellColumn(name="Name", cell=lambda one, _: one.get("metadata", {}).get("name"), format="name")
    return (name, *(_column_of(column) for column in (crd.columns if crd else ())))


def _column_of(column: Column) -> CellColumn:
    return CellColumn(
        name=column.name,
        cell=_cell(column),
        type=column.type,
        format=column.format,
        priority=column.priority,
        description=column.description,
    )


def _cell(column: Column) -> Cell:
    find = compiled(column.json_path)

    def cell(one: Object, now_s: float) -> Any:  # noqa: ANN401 - JSON
        value = find(one)
        if column.type == "date":
            return age(value, now_s=now_s)
        if column.type in {"integer", "number", "boolean"} or value is None:
            return value
        return str(value)

    return cell
