"""YAML loaders for untrusted text: they use the C library if installed, and raise one kind of error.

Pass one to ``yaml.load``. It raises ``yaml.YAMLError`` for any text that it cannot read, but ``RecursionError`` for too
deep nesting.
"""

from typing import Any, ClassVar

import yaml

STRING_TAG = "tag:yaml.org,2002:str"
_NUMBER_TAGS = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})


class YamlLoader(yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]
    """A loader that rejects scalars whose text is invalid for their tag."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: ANN401, FBT001, FBT002 - the library's own
        """Build a value. Raises ``YAMLError`` where the library raises ``ValueError`` or a similar error."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError) as error:
            problem = f"this is no {node.tag.rpartition(':')[2]}"
            raise yaml.constructor.ConstructorError(problem=problem, problem_mark=node.start_mark) from error


class JsonTypesLoader(YamlLoader):
    """A loader that reads dates, and numbers with colons such as ``22:22``, as strings, as kubectl does."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def resolve(self, kind: type[yaml.Node], value: str | None, implicit: Any) -> str:  # noqa: ANN401 - the library's own
        """The tag of a node."""
        tag = str(super().resolve(kind, value, implicit))
        return STRING_TAG if tag in _NUMBER_TAGS and ":" in str(value) else tag
