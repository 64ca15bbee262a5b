"""Which mutations are made: cosmic-ray's operators, and two that it lacks.

cosmic-ray was taken for its operators, which are plain functions of a syntax tree and run in this
process.  mutmut 3 writes the mutated package to a folder of its own and runs pytest there, and
cannot be used as a library.  Of cosmic-ray's replacements of one operator by any other a few are
made: a sum of arrays whose + becomes << raises at once, and a test that misses one of < and >=
misses the rest.
"""

import functools
from collections.abc import Iterator
from typing import Any, ClassVar

import parso
from cosmic_ray.operators.operator import Example, Operator
from cosmic_ray.operators.provider import OperatorProvider

_REPLACED = {
    "ReplaceBinaryOperator": (
        *("Add_Sub", "Add_Mul", "Sub_Add", "Sub_Mul", "Mul_Add", "Mul_Div", "Div_Mul", "Div_Add"),
        *("FloorDiv_Div", "FloorDiv_Mul", "Mod_FloorDiv", "Mod_Mul", "Pow_Mul"),
        *("BitOr_BitAnd", "BitAnd_BitOr"),
    ),
    # The negation, and what differs from the comparison on one side only.
    "ReplaceComparisonOperator": (
        *("Eq_NotEq", "Eq_LtE", "Eq_GtE", "NotEq_Eq", "NotEq_Lt", "NotEq_Gt"),
        *("Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt", "Gt_GtE", "Gt_LtE", "GtE_Gt", "GtE_Lt"),
        *("Is_IsNot", "IsNot_Is"),
    ),
    "ReplaceUnaryOperator": ("Delete_USub", "Delete_Not", "Delete_Invert"),
}
_SINGLE = (
    *("AddNot", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue"),
    *("ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceBreakWithContinue"),
    *("ReplaceContinueWithBreak", "ExceptionReplacer", "NumberReplacer", "RemoveDecorator"),
    "ZeroIterationForLoop",
)


class DeleteStatement(Operator):
    """Replaces a statement of a function by `pass`: a step, a refusal or a result left out."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        if node.type == "simple_stmt" and _in_function(node) and not _does_nothing(node):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        first = node.get_first_leaf()
        passing = parso.python.tree.Keyword("pass", first.start_pos, first.prefix)
        passing.parent = node
        node.children[0] = passing
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (Example("def f():\n    g()\n    h()\n", "def f():\n    pass\n    h()\n"),)


class ReplaceAugmented(Operator):
    """Forgets what an augmented assignment adds to, or adds with the other sign."""

    _BECOMES: ClassVar = {
        "+=": ("=", "-="),
        "-=": ("=", "+="),
        "*=": ("=", "/="),
        "&=": ("=", "|="),
    }

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        if node.type == "operator":
            for _ in self._BECOMES.get(node.value, ()):
                yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        node.value = self._BECOMES[node.value][index]
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (Example("x += 1", "x = 1"), Example("x += 1", "x -= 1", occurrence=1))


@functools.cache
def operators() -> dict[str, Operator]:
    """Every operator that is used, by name."""
    provided = OperatorProvider()
    names = [f"{kind}_{each}" for kind, of in _REPLACED.items() for each in of]
    found = {name: provided[name]() for name in (*names, *_SINGLE)}
    return found | {own.__name__: own() for own in (DeleteStatement, ReplaceAugmented)}


def cannot_matter(name: str, leaf: Any) -> bool:
    """Whether a mutation that begins at this leaf is left out by rule.

    Annotations are not evaluated: every module postpones them.  The negation of a comparison is
    made by replacing it.  A lone star among parameters is no operator.
    """
    if leaf.type == "operator" and leaf.parent.type == "parameters":
        return True
    inside = leaf
    while inside.parent is not None:
        before, inside = inside, inside.parent
        if inside.type == "annassign" and before is inside.children[1]:
            return True
        if inside.type == "tfpdef" and before is not inside.children[0]:
            return True
        if inside.type == "param" and before is inside.annotation:
            return True
        if inside.type == "funcdef" and before is inside.annotation:
            return True
    return name == "AddNot" and _condition(leaf).type == "comparison"


def _condition(leaf: Any) -> Any:
    """The whole condition, of which this is the first leaf."""
    while leaf.parent.type not in ("if_stmt", "while_stmt", "assert_stmt", "ternary", "test"):
        leaf = leaf.parent
    return leaf


def _in_function(node: Any) -> bool:
    while node is not None:
        if node.type == "funcdef":
            return True
        node = node.parent
    return False


def _does_nothing(statement: Any) -> bool:
    """Whether it is a docstring, or does nothing but say so."""
    only = statement.children[0]
    return only.type in ("string", "strings", "del_stmt") or getattr(only, "value", "") == "pass"
