"""Names of the resource API are defined in ``serving/core/model/knative.py`` only, and texts spell them correctly."""

import ast
import functools
import re
from collections.abc import Iterator

from serving.core.model import knative
from serving.core.settings.annotations import annotation_fields, spellings
from serving.net.cluster.kinds import KINDS
from tests.tidy.sources import named, parsed, product_files, text_files

VOCABULARY = "serving/core/model/knative.py"
GROUPS = tuple(value for name, value in vars(knative).items() if name.endswith("_GROUP"))
# A name of ours with its group. Knative's Go modules have no group in front of knative.dev.
_NAME = re.compile(r"(?<![\w.-])((?:(?:[a-z0-9-]+\.)+knative|(?:[a-z0-9-]+\.)*serving)\.dev/[A-Za-z][\w-]*)")
# Tests misspell names on purpose; the history keeps the names that there were.
_NOT_READ = ("CHANGELOG.md", "tests/")
# Classes that every floor reads; a second definition would be a second meaning.
SHARED = {"ConditionStatus", "ServingState", "TrafficPath"}


def second_definitions(source: str) -> Iterator[str]:
    """Literals that spell a key of a shared group, and classes with the name of a shared word."""
    tree = parsed(source)
    prose = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name in SHARED:
            yield f"{node.lineno}: defines {node.name}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            text = node.value
            if any(text == group or text.startswith(f"{group}/") for group in GROUPS):
                yield f"{node.lineno}: spells {text}"
        elif isinstance(node, ast.JoinedStr):
            for group, rest in zip(node.values, node.values[1:], strict=False):
                text = str(rest.value) if isinstance(rest, ast.Constant) else ""
                if (
                    isinstance(group, ast.FormattedValue)
                    and re.match(r"\w+_GROUP$", ast.unparse(group.value))
                    and text[1:]
                ):
                    yield f"{node.lineno}: spells {ast.unparse(node)}"


@functools.cache
def known_names() -> frozenset[str]:
    """Labels, annotations in both spellings, and versions of the API."""
    words = {value for value in vars(knative).values() if isinstance(value, str) and "/" in value}
    # The pattern ends at a dot: "certificate.class".
    words |= {word.removesuffix(".class") for word in knative.SYSTEM_KEYS | knative.NETWORKING_KEYS}
    settings = {name for field in annotation_fields() for name in spellings(field.knob.key)}
    settings.update(spellings(knative.ROLLOUT_DURATION_ANNOTATION))
    return frozenset(words | settings | {kind.api_version for kind in KINDS})


def unknown_names(text: str) -> list[str]:
    """Names in our groups that the code does not have."""
    return [name for name in _NAME.findall(text) if name.removeprefix("metadata.labels.") not in known_names()]


def test_texts_use_existing_api_names() -> None:
    results = [
        f"{named(path)}: {name}: not in {VOCABULARY}, and no setting has it"
        for path in text_files()
        if not named(path).startswith(_NOT_READ)
        for name in unknown_names(path.read_text(errors="replace"))
    ]
    assert results == [], "\n".join(results)


def test_each_api_name_is_defined_once() -> None:
    results = [
        f"{named(path)}:{fault}"
        for path in product_files()
        if named(path) != VOCABULARY
        for fault in second_definitions(path.read_text())
    ]
    assert results == [], "\n".join(results)
