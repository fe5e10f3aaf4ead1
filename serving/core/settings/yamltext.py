"""Loaders of YAML that strangers write: with the C library where it is installed, and with one kind of error.

Pass one to ``yaml.load``. It raises ``yaml.YAMLError`` for any text that it cannot read, but ``RecursionError`` for too deep nesting.
"""

from typing import Any, ClassVar

import yaml


class YamlLoader(yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]
    """Rejects scalars that are not of their tag's type."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: ANN401, FBT001, FBT002 - the library's own
        """Build a value. Raises ``YAMLError``, also where the library raises what ``int()`` and the like do."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError) as error:
            problem = f"this is no {node.tag.rpartition(':')[2]}"
            raise yaml.constructor.ConstructorError(problem=problem, problem_mark=node.start_mark) from error


class JsonTypesLoader(YamlLoader):
    """Reads dates as strings, as in JSON."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
