"""TLS between daemons and queue-proxies: its mode, and the lifetime of certificates.

Source of the key and of two of its values: knative.dev/networking, pkg/config, ``system-internal-tls``.
"""

from collections.abc import Mapping
from typing import Annotated

import msgspec

from serving.core.model.errors import Problem, SettingsError
from serving.core.settings.knob import DURATION, TEXT, Knob

DISABLED = "Disabled"
PERMISSIVE = "Permissive"
ENABLED = "Enabled"
DEFAULT_VARIABLE = "SERVING_INNER_TLS_DEFAULT"
OF_KEY_VARIABLE = "SERVING_INNER_TLS_OF_KEY"
"""The mode stored with the cluster key at installation; it takes precedence over ``SERVING_INNER_TLS_DEFAULT``."""

_MODE_WORDS = f"{DISABLED}, {PERMISSIVE} or {ENABLED}"


def _read_mode(text: str) -> str:
    # Knative accepts either case, and true or false for the key's earlier name.
    return {"true": ENABLED, "false": DISABLED}.get(text.lower(), text.capitalize())


_MODE = msgspec.structs.replace(TEXT, name="mode", read=_read_mode, read_plain=_read_mode)


class InnerTlsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of inner TLS (TLS between daemons and queue-proxies), the same for all daemons."""

    mode: Annotated[
        str,
        Knob(
            key="system-internal-tls",
            legacy=("internal-encryption",),
            config_map="config-network",
            unit=_MODE,
            choices=("", DISABLED, PERMISSIVE, ENABLED),
        ),
    ] = ""
    """Whether daemons and queue-proxies use only mutual TLS with each other (Enabled), accept also plain HTTP
    (Permissive), or use plain HTTP (Disabled).

    Daemons read the mode at their start. If the setting is empty, the installation determines the mode
    ([inner-tls.md](inner-tls.md)), by the environment variable SERVING_INNER_TLS_OF_KEY, or SERVING_INNER_TLS_DEFAULT
    if the first variable is not set. Default: ours, empty. Knative's is Disabled, and it has no Permissive.
    """

    certificate_life_s: Annotated[
        float,
        Knob(
            key="system-internal-tls-certificate-life",
            config_map="config-network",
            unit=DURATION,
            low=2,
            high=30 * 86400,
        ),
    ] = 86400.0
    """Validity of an inner certificate, in seconds; the certificate is replaced after half of this time. Range: 2s to
    720h. Default: ours, 24h.
    """

    def resolved(self, environment: Mapping[str, str]) -> "InnerTlsSettings":
        """These settings; if they have no mode, with the mode from the environment."""
        named = next(
            (variable for variable in (OF_KEY_VARIABLE, DEFAULT_VARIABLE) if environment.get(variable)),
            DEFAULT_VARIABLE,
        )
        mode = _read_mode(self.mode or environment.get(named) or DISABLED)
        if mode not in (DISABLED, PERMISSIVE, ENABLED):
            problem = Problem(where=f"environment {named}", what=f"{mode!r} is not right", expected=_MODE_WORDS)
            raise SettingsError([problem])
        return msgspec.structs.replace(self, mode=mode)

    @property
    def is_on(self) -> bool:
        """Whether inner TLS is used."""
        return self.mode in (PERMISSIVE, ENABLED)

    @property
    def is_strict(self) -> bool:
        """Whether peers without inner TLS are rejected."""
        return self.mode == ENABLED
