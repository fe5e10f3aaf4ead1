"""Parses selectors in Knative's ConfigMaps: names, each with an optional ``selector`` of labels."""

import functools
from typing import Any

import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.model.objects import is_dns_subdomain
from serving.core.model.selectors import SelectedName
from serving.core.settings.knob import TEXT, Value

_EXPECTED = "a mapping of names, each with nothing or with `selector:` and labels"


@functools.lru_cache(maxsize=64)
def selected_names(text: str) -> tuple[SelectedName, ...]:
    """Parse a YAML text of names, each with a label selector. Raises ``InvalidValue``."""
    import yaml  # noqa: PLC0415 - daemons without such a setting need not load it

    try:
        data = {
            # The form of the ConfigMap config-domain, whose values are texts.
            name: yaml.safe_load(value) if isinstance(value, str) else value
            for name, value in msgspec.convert(yaml.safe_load(text) or {}, dict[str, Any]).items()
        }
        selectors = msgspec.convert(data, dict[str, _Selector | None])
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise InvalidValue(text=text, expected=_EXPECTED) from error
    wrong = [name for name in selectors if not is_dns_subdomain(name)]
    if wrong:
        raise InvalidValue(text=wrong[0], expected="a DNS name")
    return tuple(
        SelectedName(name=name, labels=tuple(sorted(((selector and selector.selector) or {}).items())))
        for name, selector in selectors.items()
    )


class _Selector(msgspec.Struct, frozen=True, kw_only=True):
    """A label selector. ``type`` is Knative's option for namespace wildcard certificates."""

    selector: dict[str, str] | None = None
    type: str = ""


def _read(text: str) -> Value:
    selected_names(text)
    return text


SELECTORS = msgspec.structs.replace(
    TEXT, name="mapping of names to selectors", read=_read, read_plain=_read, explains=True
)
