"""The pytest side: options, Hypothesis profiles, the budget, failures that explain themselves."""

import os
import pathlib
import zlib
from collections import defaultdict
from collections.abc import Generator
from typing import TypeGuard

import hypothesis
import pytest
from hypothesis import settings

from properties import engines, environment
from properties.drawing import provider
from properties.judging import targets
from properties.judging.result import CHIP, MODES, engines_for
from properties.session import failure, options, profiles
from properties.session.reporter import Reporter
from properties.session.run import GENERATIONS, Budget, BudgetSpent, Run, seconds_of

# Tells this run from others, where xdist has no name for it.
_STARTED = os.urandom(8).hex()

_RUN = pytest.StashKey[Run]()
_BUDGET = pytest.StashKey[Budget]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("properties", "attention properties")
    group.addoption(
        "--target",
        metavar="MODULE:NAME",
        default=targets.KERNEL,
        help="attention callable or adapter under test (default: %(default)s)",
    )
    group.addoption(
        "--mode",
        choices=MODES,
        default="auto",
        help="engine; auto is tpu where one is attached, else the fastest that can run the target",
    )
    group.addoption(
        "--masked-rows",
        choices=("zero", "any"),
        help="what a row that sees no key must give (default: zero for kernel, any for others)",
    )
    group.addoption(
        "--budget",
        metavar="TIME",
        help="wall-clock budget of the run, as 90s, 20m or 8h (default: by profile)",
    )
    group.addoption(
        "--generations",
        metavar="LIST",
        type=options.generations,
        help="TPU generations to compile for (default: v5e,v6e; v5e in smoke, all in nightly)",
    )
    group.addoption("--report", metavar="FILE.html", help="write the run as a page for a person")
    group.addoption("--report-json", metavar="FILE", help="write the run as data for a program")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Uses all cores, unless `-n` or an option for looking closely at one process says otherwise.

    With chips: all chips, since each belongs to one process, and never more processes than that.
    Comes before pytest-xdist's own hook, which starts the workers.
    """
    option = config.option
    if not hasattr(option, "numprocesses") or hasattr(config, "workerinput"):
        return
    on_chips = engines_for(option.mode) == (CHIP,) and engines.tpu_attached()
    chips = len(engines.visible_chips())
    if option.numprocesses is None:
        closely = option.usepdb or option.trace or option.collectonly or option.capture == "no"
        if option.dist == "no" and not closely:
            option.numprocesses = (
                chips if on_chips else min(environment.cores(), options.MOST_WORKERS)
            )
    elif on_chips and option.numprocesses in ("auto", "logical"):
        option.numprocesses = chips
    elif on_chips and option.numprocesses > chips:
        raise pytest.UsageError(
            f"-n {option.numprocesses}: a chip belongs to one process, and this machine has "
            f"{chips} that may be used; give -n {chips} or less"
        )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Checks the options before anything runs. Comes before Hypothesis's own plugin, which loads
    the profile that `--hypothesis-profile` names."""
    environment.settle()
    config.addinivalue_line("markers", "covering(property, shards): shares a covering set of cases")
    profiles.register(config.rootpath)
    if config.getoption("maxschedchunk", None) is None:
        # pytest-xdist would hand out tests in batches, and leave one worker with all the long ones.
        config.option.maxschedchunk = 1
    mode = config.getoption("mode")
    if mode == CHIP and not engines.tpu_attached():
        raise pytest.UsageError("--mode tpu: no TPU is attached to this machine")
    # A process with workers of its own, which `dist` tells of, runs no test and needs no chip.
    if engines_for(mode) == (CHIP,) and config.getoption("dist", "no") == "no":
        try:
            engines.claim_chip()
        except engines.NoFreeChip as error:
            raise pytest.UsageError(str(error)) from error
    for option in ("--report", "--report-json"):
        path = config.getoption(option)
        if path is not None and not pathlib.Path(path).absolute().parent.is_dir():
            raise pytest.UsageError(f"{option} {path}: its folder does not exist")
    try:
        if budget := config.getoption("budget"):
            seconds_of(budget)
        target = targets.Target.load(config.getoption("target"), config.getoption("masked_rows"))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    by_profile = {"smoke": GENERATIONS[:1], "nightly": tuple(engines.TOPOLOGIES)}
    profile = config.getoption("hypothesis_profile", None)
    generations = config.getoption("generations") or by_profile.get(profile, GENERATIONS)
    run = Run(target, mode, generations)
    config.stash[_RUN] = run
    config.pluginmanager.register(Reporter(config, run), "attention-properties-reporter")


def pytest_report_header(config: pytest.Config) -> str:
    run = config.stash[_RUN]
    return (
        f"properties: target {run.target.name}, mode {run.mode}, "
        f"masked rows {run.target.masked_rows}, profile {settings.get_current_profile_name()}"
    )


@pytest.fixture(scope="session", name="run")
def _run(pytestconfig: pytest.Config) -> Run:
    """The run that the cases of a property belong to."""
    return pytestconfig.stash[_RUN]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What fails most for its time is run first."""
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    """What failed once; rules, which cost next to nothing; a part of what compares with the truth;
    what is quick or visits one case, which sees what that cannot; the rest of both."""
    if item.path.name == "test_regressions.py":
        return 0
    if _runs_no_kernel(item):
        return 1
    if item.get_closest_marker("covering") and isinstance(item, pytest.Function):
        return 2 if item.callspec.params["shard"] == 0 else 4
    return 3 if item.path.name == "test_transformations.py" or not _draws_cases(item) else 5


def _runs_no_kernel(item: pytest.Item) -> bool:
    """Whether this is a test of a rule of the contract, which a call breaks before it runs."""
    return isinstance(item, pytest.Function) and "rule" in item.fixturenames


def pytest_collection_finish(session: pytest.Session) -> None:
    """Weighs the tests: those of one property share its part of the time."""
    config = session.config
    weights = {
        item: profiles.LIGHT if _runs_no_kernel(item) else 1.0
        for item in session.items
        if _draws_cases(item)
    }
    of_property: defaultdict[pathlib.Path, float] = defaultdict(float)
    for item, weight in weights.items():
        of_property[item.path] += weight
    budget = config.getoption("budget")
    if budget is None:
        # Options of Hypothesis's plugin derive profiles of their own, "dev-with-...", from ours.
        profile, _, _ = settings.get_current_profile_name().partition("-with-")
        _, budget = profiles.PROFILES.get(profile, (0, None))
    config.stash[_BUDGET] = Budget(
        seconds=float("inf") if budget is None else seconds_of(budget),
        weights={
            item.nodeid: profiles.SHARES.get(item.path.name, 1) * weight / of_property[item.path]
            for item, weight in weights.items()
        },
        workers=int(getattr(config, "workerinput", {}).get("workercount", 1)),
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    config = item.config
    if not _draws_cases(item):
        config.stash[_RUN].begin(float("inf"), planned=0)
        return
    share = config.stash[_BUDGET].share(item.nodeid)
    # Hypothesis keeps what `settings` decorates a test with here, and has no public way to ask.
    own: settings = item.obj._hypothesis_internal_use_settings
    config.stash[_RUN].begin(share, planned=own.max_examples)
    seed = config.getoption("hypothesis_seed", None)
    if seed is not None or own.derandomize:
        # Left alone, Hypothesis gives all tests of one function the same stream of cases.
        hypothesis.seed(f"{seed} {item.nodeid}")(item.obj)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Guides the tests that share a covering set: those marked `covering(property, shards)`."""
    marker = item.get_closest_marker("covering")
    if marker is None or not isinstance(item, pytest.Function):
        return (yield)
    (name,), shards = marker.args, marker.kwargs["shards"]
    shard, run = item.callspec.params["shard"], item.config.stash[_RUN]
    assert isinstance(shard, int)
    with provider.guided(run.guide(name, shard, shards, _seed(item.config))):
        return (yield)


def _seed(config: pytest.Config) -> int:
    """What covering sets are drawn from, the same in all workers of a run."""
    given = config.getoption("hypothesis_seed", None)
    if given is not None:
        return zlib.crc32(str(given).encode())
    if settings().derandomize:
        return 0
    run = getattr(config, "workerinput", {}).get("testrunuid", str(_STARTED))
    return zlib.crc32(run.encode())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Our own words instead of a traceback, and no failure for a budget that ran out."""
    # Asked first, because pytest replaces the exception of a skip.
    error = call.excinfo.value if call.excinfo else None
    report = yield
    if isinstance(error, failure.PropertyFailure):
        report.longrepr = str(error)
        vars(report)["property_failure"] = error.report
    elif isinstance(error, BudgetSpent):
        report.outcome = "passed"
        report.longrepr = None
    return report


def _draws_cases(item: pytest.Item) -> TypeGuard[pytest.Function]:
    """Whether this is a test of a property over drawn cases, rather than one of the harness."""
    return (
        isinstance(item, pytest.Function)
        and "run" in item.fixturenames
        and hypothesis.is_hypothesis_test(item.obj)
    )
