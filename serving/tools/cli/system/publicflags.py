"""The flags of ``serving up`` for public hosts and their certificates, and the daemons' environment from them."""

import importlib.util
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import click
import msgspec
from click.core import ParameterSource

from serving.core.model.errors import Problem, SettingsError
from serving.core.model.launch import ACME_CHALLENGES_VARIABLE, ACME_DIRECTORY_VARIABLE, ACME_ISSUER
from serving.core.model.objects import is_dns_subdomain
from serving.home.state import StateFolder
from serving.tools.cli.client.api import adding

_LETS_ENCRYPT = "https://acme-v02.api.letsencrypt.org/directory"
_PORTS = {"public": 80, "tls": 443}

with_public_flags = adding(
    click.option(
        "--public",
        "public_domain",
        metavar="DOMAIN",
        help="Serve NAME.NAMESPACE.DOMAIN to other machines, at ports 80 and 443 of all addresses.",
    ),
    click.option(
        "--acme",
        "acme_directory",
        is_flag=False,
        flag_value=_LETS_ENCRYPT,
        metavar="[DIRECTORY_URL]",
        help="With --public: get certificates from an ACME server, Let's Encrypt by default, and accept its terms of service.",
    ),
)


class PublicFlags(msgspec.Struct, frozen=True, kw_only=True):
    """The domain of public hosts, and the directory URL of the ACME server; "" if unset."""

    domain: str = ""
    directory_url: str = ""

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> "PublicFlags":
        """Remove the flags from the options, and check them. Raises ``SettingsError``."""
        domain, directory_url = options.pop("public_domain"), options.pop("acme_directory")
        problems = []
        if domain is not None and not _is_domain(domain):
            expected = "a domain such as example.com; for a trial, 203-0-113-5.sslip.io is 203.0.113.5"
            problems.append(Problem(where="--public", what=f"{domain!r} is not a domain", expected=expected))
        if directory_url is not None:
            if domain is None:
                what, expected = "certificates are for public hosts", "--public DOMAIN too"
                problems.append(Problem(where="--acme", what=what, expected=expected))
            if not _is_https(directory_url):
                expected = f"a directory's URL such as {_LETS_ENCRYPT}"
                problems.append(
                    Problem(where="--acme", what=f"{directory_url!r} is not an https URL", expected=expected)
                )
            if importlib.util.find_spec("acme") is None:
                what, expected = "the package acme is not installed", "`pip install 'serving[acme]'` first"
                problems.append(Problem(where="--acme", what=what, expected=expected))
        if problems:
            raise SettingsError(problems)
        return cls(domain=domain or "", directory_url=directory_url or "")

    @property
    def exposed(self) -> tuple[str, ...]:
        """The names of the listeners that accept connections on all addresses of the machine."""
        return tuple(_PORTS) if self.domain else ()

    def ports(self, ports: Mapping[str, int]) -> dict[str, int]:
        """The ports by name. Public listeners get the standard ports of HTTP unless the command line sets others."""
        source = click.get_current_context().get_parameter_source
        own = {name: _PORTS[name] for name in self.exposed if source(f"{name}_port") is ParameterSource.DEFAULT}
        return {**ports, **own}

    def environment(self, state: StateFolder) -> dict[str, str]:
        """The environment variables that pass the flags to the daemons."""
        variables = {"SERVING_CONTROLLER_DOMAIN": self.domain} if self.domain else {}
        if self.directory_url:
            variables |= {
                ACME_DIRECTORY_VARIABLE: self.directory_url,
                ACME_CHALLENGES_VARIABLE: str(state.acme / "challenges"),
                "SERVING_CONTROLLER_EXTERNAL_DOMAIN_TLS": "enabled",
                "SERVING_CONTROLLER_ISSUER": f"{{kind: ClusterIssuer, name: {ACME_ISSUER}}}",
            }
        return variables


def _is_domain(text: str) -> bool:
    return is_dns_subdomain(text) and "." in text and not text.rpartition(".")[2].isdigit()


def _is_https(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme == "https" and bool(parts.hostname)
