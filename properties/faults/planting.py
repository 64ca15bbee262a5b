"""Plants changes in the kernel's own source: what is then tested is the kernel but for them.

Nothing in the kernel knows of this. A changed module is compiled from its edited text while the
package is imported anew beside the pristine one; both live side by side, and share nothing that is
traced or compiled, because jax keeps those by the functions that made them.
"""

import importlib
import importlib.abc
import importlib.machinery
import pathlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any

from properties.judging.targets import Target, of_kernel

PACKAGE = "kernel"


class PlantingError(ValueError):
    """The kernel is no longer what an edit says that it is."""


@dataclass(frozen=True)
class Edit:
    """`old`, which occurs `count` times in the source of a module of the kernel, becomes `new`."""

    module: str
    old: str
    new: str
    count: int = 1

    def applied(self, source: str) -> str:
        """The edited text. Raises PlantingError if `old` does not occur as often as it should."""
        found = source.count(self.old)
        if found != self.count:
            raise PlantingError(
                f"kernel.{self.module} holds {self.old!r} {found} times, not {self.count}: "
                "the kernel has changed; plant the fault where it belongs now"
            )
        return source.replace(self.old, self.new)


def edited(edits: tuple[Edit, ...]) -> dict[str, str]:
    """The new sources, by module of the kernel, that some edits give. Raises PlantingError."""
    changes: dict[str, str] = {}
    for edit in edits:
        source = changes.get(edit.module) or source_of(edit.module)
        changes[edit.module] = edit.applied(source)
    return changes


def source_of(module: str) -> str:
    """The text of a module of the kernel, which is named without the package."""
    path = importlib.import_module(f"{PACKAGE}.{module}").__file__
    if path is None:
        raise PlantingError(f"kernel.{module} has no source to plant a fault in")
    return pathlib.Path(path).read_text(encoding="utf-8")


def planted(changes: Mapping[str, str], name: str) -> Target:
    """The kernel with these sources in place of its own, as a target that is called `name`.

    Held to the whole contract, as the kernel is. Raises what importing the changed modules raises,
    a SyntaxError included.
    """
    return of_kernel(planted_package(changes), name)


def planted_package(changes: Mapping[str, str]) -> Any:
    """The package `kernel`, imported anew, with these sources in place of its modules' own."""
    with _imported_anew(), _found_first(_Changed(changes)):
        return importlib.import_module(PACKAGE)


@contextmanager
def _imported_anew() -> Iterator[None]:
    """Hides the kernel from `import`, and afterwards the one that was imported meanwhile."""
    hidden = _take_out()
    try:
        yield
    finally:
        _take_out()
        sys.modules.update(hidden)


def _take_out() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name == PACKAGE or name.startswith(f"{PACKAGE}.")]
    return {name: sys.modules.pop(name) for name in names}


@contextmanager
def _found_first(finder: Any) -> Iterator[None]:
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Changed(importlib.abc.MetaPathFinder):
    """Finds the changed modules where the others are, with other sources."""

    def __init__(self, changes: Mapping[str, str]) -> None:
        self._changes = changes

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        package, _, module = fullname.partition(".")
        if package != PACKAGE or module not in self._changes:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.origin is not None:
            spec.loader = _ChangedSource(fullname, spec.origin, self._changes[module])
        return spec


class _ChangedSource(importlib.machinery.SourceFileLoader):
    """Compiles a text that is in no file. What is compiled is kept nowhere."""

    def __init__(self, fullname: str, path: str, source: str) -> None:
        super().__init__(fullname, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self._source.encode(), f"<planted {fullname}>")
