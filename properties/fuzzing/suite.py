"""The tests of the suite as sources of cases, so that what there is to test is listed once.

A test takes a `run`, draws by Hypothesis, and tells the run which case to hold to which property.
Given a `Collector` for a run it says so, and nothing is run: the cases can then be run in any
order, and one that ends its process takes no other along.
"""

import importlib
import itertools
import pathlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import hypothesis
from hypothesis import Phase, settings
from hypothesis.errors import InvalidArgument

import properties
from properties.cases.case import Case
from properties.drawing import provider
from properties.judging.targets import Target
from properties.session import profiles
from properties.session.run import FURTHER_DRAWS, with_other_data

_FOLDER = pathlib.Path(properties.__file__).parent

# Drawn at a time: starting Hypothesis takes as long as drawing some ten cases.
_BATCH = 30

# Of `parametrize`: tests that are alike but for their share of the work.
_SHARD = "shard"


class Job(NamedTuple):
    """A case to hold to a property."""

    property: str
    case: Case


Example = list[Job]
"""What one example of a test holds to its properties: mostly one configuration."""


class Collector:
    """Stands for the run of a test: notes what it is asked to check."""

    def __init__(self, target: Target, generations: Sequence[str]) -> None:
        self.target, self.generations = target, generations
        self.jobs: Example = []

    def check(self, name: str, case: Case) -> None:
        self.jobs.append(Job(name, case))

    def explore(self, name: str, case: Case) -> None:
        self.check(name, case)
        for other in with_other_data(case, FURTHER_DRAWS):
            self.check(name, other)


@dataclass(frozen=True)
class Test:
    """One test of the suite, with values for what it is parametrized by.

    file, name: where it stands, and what pytest calls it; weight: of the tests in its file;
    covering: the property whose covering set it begins with, if any; drawn: whether Hypothesis
    draws its cases, rather than that there is a fixed list of them.
    """

    file: str
    name: str
    function: Any
    arguments: dict[str, Any]
    weight: float
    covering: str | None
    drawn: bool

    def examples(
        self, collector: Collector, seed: str, guide: provider.Guide | None = None
    ) -> list[Example]:
        """The next examples: all there are of a test that is not drawn."""
        if not self.drawn:
            return [_collected(self.function, collector, self.arguments)]
        examples: list[Example] = []

        def noting(*positional: Any, **arguments: Any) -> None:
            collector.jobs = []
            inner(*positional, **arguments)
            examples.append(collector.jobs)

        handle = self.function.hypothesis
        inner = handle.inner_test
        # Hypothesis keeps here what `settings` decorates a test with, and has no public way to
        # replace it; that of the inner test is for plugins.
        before = dict(vars(self.function))
        vars(self.function)["_hypothesis_internal_use_settings"] = settings(
            settings.get_profile("nightly"),
            max_examples=_BATCH,
            database=None,
            phases=(Phase.generate,),
        )
        handle.inner_test = noting
        try:
            with provider.guided(guide) if guide else nullcontext():
                hypothesis.seed(seed)(self.function)(run=collector, **self.arguments)
        finally:
            handle.inner_test = inner
            # The settings and the seed are of this batch alone.
            vars(self.function).clear()
            vars(self.function).update(before)
        return examples


def _collected(
    function: Callable[..., None], collector: Collector, arguments: dict[str, Any]
) -> Example:
    collector.jobs = []
    function(run=collector, **arguments)
    return collector.jobs


def tests() -> list[Test]:
    """All tests of the suite; of those that differ in their shard alone, one."""
    loaded = settings.get_current_profile_name()
    try:
        settings.get_profile("nightly")
    except InvalidArgument:
        profiles.register(_FOLDER)
    # Test modules ask the profile how many cases they are to draw, while they are imported.
    settings.load_profile("nightly")
    try:
        return [
            test
            for path in sorted(_FOLDER.glob("test_*.py"))
            for test in _of_module(path.name, importlib.import_module(f"properties.{path.stem}"))
        ]
    finally:
        settings.load_profile(loaded)


def _of_module(file: str, module: Any) -> Iterator[Test]:
    for name, function in vars(module).items():
        if not name.startswith("test_") or not callable(function):
            continue
        marks = getattr(function, "pytestmark", ())
        parameters = [mark.args for mark in marks if mark.name == "parametrize"]
        choices = [
            [(key, value) for value in values] for key, values in parameters if key != _SHARD
        ]
        sharded = len(choices) < len(parameters)
        covering = next((mark.args[0] for mark in marks if mark.name == "covering"), None)
        for chosen in itertools.product(*choices):
            arguments = dict(chosen) | ({_SHARD: 0} if sharded else {})
            shown = "-".join(str(value) for _, value in chosen)
            light = "rule" in arguments
            yield Test(
                file,
                f"{file}::{name}[{shown}]" if shown else f"{file}::{name}",
                function,
                arguments,
                profiles.LIGHT if light else 1.0,
                covering,
                hypothesis.is_hypothesis_test(function),
            )
