"""A contract for import-linter: pure modules import nothing with side effects.

A module of the ``packages`` is pure unless a part of its name below its package is one of ``shells``. A pure module
imports none of ``forbidden`` and no shell. There is no list of exceptions.
"""

from typing import Any

from importlinter import Contract, ContractCheck, fields, output


class PureContract(Contract):
    """Configured in pyproject.toml as ``type = "pure"``."""

    type_name = "pure"

    # The library replaces each field by the configured set of texts.
    packages: Any = fields.SetField(subfield=fields.StringField())
    shells: Any = fields.SetField(subfield=fields.StringField())
    forbidden: Any = fields.SetField(subfield=fields.StringField())

    def check(self, graph: Any, verbose: bool) -> ContractCheck:  # noqa: ANN401 - the library's signature
        """Find every import of a module with side effects by a pure module."""
        del verbose
        faults = [
            f"{module} -> {imported}"
            for module in sorted(graph.modules)
            if self._is_pure(module)
            for imported in sorted(graph.find_modules_directly_imported_by(module))
            if self._is_shell(imported) or imported.split(".")[0] in self.forbidden
        ]
        return ContractCheck(kept=not faults, metadata={"faults": faults})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print the faults."""
        for fault in check.metadata["faults"]:
            output.print_error(fault)

    def _is_pure(self, module: str) -> bool:
        return any(f"{module}.".startswith(f"{package}.") for package in self.packages) and not self._is_shell(module)

    def _is_shell(self, module: str) -> bool:
        return module.startswith("serving.") and not self.shells.isdisjoint(module.split(".")[2:])
