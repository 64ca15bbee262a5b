"""Mutants at large: every small change of a kind, anywhere in the code of a module.

A mutant is known by two names.  Its key says which change it is of which text, so that a result
holds as long as that piece of the module stands unchanged.  Its `change`, the line before and
after, is what a person reads, and what an explanation is filed under.
"""

import ast
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import parso
from cosmic_ray.ast import ast_nodes
from cosmic_ray.mutating import mutate_code

from properties.faults.operators import cannot_matter, operators

# As many digits as never meet by chance among thousands.
_DIGITS = 12

# Nodes of which a part is a head, and runs by itself.
_COMPOUND = frozenset(
    {
        *("if_stmt", "for_stmt", "while_stmt", "with_stmt", "try_stmt"),
        *("funcdef", "classdef", "decorated", "file_input"),
    }
)


@dataclass(frozen=True)
class Mutant:
    """One change to the source of a module.

    Attributes:
      module: of the kernel, without the package.
      scope: the functions and classes around the change, after the module: "tile.logits".
      operator: the kind of change.
      change: "line before => line after", with " #2" and so on where a scope has it again.
      lines: first and last line of the statement that is changed, in the module.
      key: digest of the top-level statement's text, the operator and its occurrence in that.
      source: the whole module with the change.
    """

    module: str
    scope: str
    operator: str
    change: str
    lines: tuple[int, int]
    key: str
    source: str


def mutants_of(module: str, source: str) -> list[Mutant]:
    """The mutants of a module in order of its lines. Changes that give the same code, or none that
    Python compiles, are left out. Raises SyntaxError if the source itself is not Python."""
    ast.parse(source)
    lines = source.splitlines(keepends=True)
    made: list[Mutant] = []
    seen: Counter[tuple[str, str]] = Counter()
    for statement in parso.parse(source).children:
        first, last = statement.start_pos[0] - 1, statement.end_pos[0]
        if statement.end_pos[1] == 0:
            last -= 1
        text = "".join(lines[first:last])
        known = {ast.dump(ast.parse(text))}
        for name, occurrence, leaf in _places(text):
            changed = mutate_code(text, operators()[name], occurrence)
            if not _is_new(changed, known):
                continue
            scope = ".".join([module, *_enclosing(leaf)])
            change = _change(text, changed)
            seen[scope, change] += 1
            repeated = seen[scope, change]
            made.append(
                Mutant(
                    module,
                    scope,
                    name,
                    change if repeated == 1 else f"{change} #{repeated}",
                    tuple(first + line for line in _statement_lines(leaf)),
                    _key(text, name, occurrence),
                    "".join([*lines[:first], changed, *lines[last:]]),
                )
            )
    return sorted(made, key=lambda mutant: mutant.lines[0])


def _places(text: str) -> Iterator[tuple[str, int, Any]]:
    """Operator, occurrence, and the leaf where the change begins, as cosmic-ray counts them."""
    tree = parso.parse(text)
    for name, operator in operators().items():
        positions = (at for node in ast_nodes(tree) for at in operator.mutation_positions(node))
        for occurrence, (start, _) in enumerate(positions):
            leaf = tree.get_leaf_for_position(start)
            if not cannot_matter(name, leaf):
                yield name, occurrence, leaf


def _is_new(text: str, known: set[str]) -> bool:
    """Whether this is Python, and another program than those known; from now on it is known."""
    try:
        found = ast.dump(ast.parse(text))
    except SyntaxError:
        return False
    new = found not in known
    known.add(found)
    return new


def _enclosing(leaf: Any) -> list[str]:
    """The names of the definitions around a leaf, outermost first; its own where it is in the head
    of one."""
    names: list[str] = []
    node = leaf
    while node is not None:
        definition = node.children[-1] if node.type == "decorated" else node
        if definition.type in ("funcdef", "classdef") and definition.name.value not in names[:1]:
            names.insert(0, definition.name.value)
        node = node.parent
    return names


def _statement_lines(leaf: Any) -> tuple[int, int]:
    """The lines of the statement around a leaf; of a compound one, of the part of its head."""
    node = leaf
    while node.type != "simple_stmt" and node.parent.type not in _COMPOUND:
        node = node.parent
    first, (last, column) = node.start_pos[0], node.end_pos
    # The newline that ends a simple statement reaches into the next line.
    return first, last - 1 if column == 0 and last > first else last


def _change(before: str, after: str) -> str:
    """The lines that differ, as "was => becomes", without indentation."""
    was, becomes = before.splitlines(), after.splitlines()
    while was and becomes and was[0] == becomes[0]:
        del was[0], becomes[0]
    while was and becomes and was[-1] == becomes[-1]:
        del was[-1], becomes[-1]
    # cosmic-ray sets a space before every number.
    return " => ".join(
        re.sub(r"([(\[]) ", r"\1", " ".join(" ".join(side).split())) for side in (was, becomes)
    )


def _key(text: str, operator: str, occurrence: int) -> str:
    return hashlib.sha256(f"{operator} {occurrence} {text}".encode()).hexdigest()[:_DIGITS]
