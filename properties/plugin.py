"""The pytest side: options, Hypothesis profiles, the budget, failures that explain themselves."""

import pathlib
from collections import Counter
from collections.abc import Generator
from typing import TypeGuard

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from properties import engines, environment, failure, provider, targets
from properties.reporter import Reporter
from properties.result import MODES
from properties.run import Budget, BudgetSpent, Run, seconds_of

# Profile: cases per test, and the budget, which guards against a slow machine. A deterministic run
# has none: a clock must not decide what it tests.
_PROFILES: dict[str, tuple[int, str | None]] = {
    "smoke": (4, "10s"),
    "dev": (40, "150s"),
    "ci": (40, None),
    "nightly": (100_000, "8h"),
}

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
    group.addoption("--report-json", metavar="FILE", help="write the run as data for a program")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Checks the options before anything runs. Comes before Hypothesis's own plugin, which loads
    the profile that `--hypothesis-profile` names."""
    environment.settle()
    _register_profiles(config.rootpath)
    mode = config.getoption("mode")
    if mode == "tpu" and not engines.tpu_attached():
        raise pytest.UsageError("--mode tpu: no TPU is attached to this machine")
    path = config.getoption("report_json")
    if path is not None and not pathlib.Path(path).absolute().parent.is_dir():
        raise pytest.UsageError(f"--report-json {path}: its folder does not exist")
    try:
        if budget := config.getoption("budget"):
            seconds_of(budget)
        target = targets.Target.load(config.getoption("target"), config.getoption("masked_rows"))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    config.stash[_RUN] = run = Run(target, mode)
    config.pluginmanager.register(Reporter(config, run), "attention-properties-reporter")


def _register_profiles(root: pathlib.Path) -> None:
    """Every field that matters is given, so that a profile already loaded (Hypothesis loads its own
    "ci" where the environment looks like one) leaves nothing behind.

    No deadline: a first call compiles, the second does not. No explain phase: it costs hundreds of
    runs. One failure at a time: others are mostly its shadows. Uniform draws: Hypothesis's own
    repeat themselves, and every case costs a trace.
    """
    saved = DirectoryBasedExampleDatabase(root / ".hypothesis" / "examples")
    for name, (cases, _) in _PROFILES.items():
        settings.register_profile(
            name,
            parent=settings.get_profile("default"),
            max_examples=cases,
            derandomize=name == "ci",
            database=saved if name in ("dev", "nightly") else None,
            deadline=None,
            phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
            report_multiple_bugs=False,
            suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large),
            print_blob=False,
            backend=provider.UNIFORM,
        )
    settings.load_profile("dev")


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
    """Regressions come first: what failed once is what fails again."""
    items.sort(key=lambda item: item.path.name != "test_regressions.py")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Weighs the tests: every property gets the same time, and its tests share that evenly."""
    config = session.config
    tests = [item for item in session.items if _draws_cases(item)]
    of_property = Counter(item.path for item in tests)
    budget = config.getoption("budget")
    if budget is None:
        # Options of Hypothesis's plugin derive profiles of their own, "dev-with-...", from ours.
        profile, _, _ = settings.get_current_profile_name().partition("-with-")
        _, budget = _PROFILES.get(profile, (0, None))
    config.stash[_BUDGET] = Budget(
        seconds=float("inf") if budget is None else seconds_of(budget),
        weights={item.nodeid: 1 / of_property[item.path] for item in tests},
        workers=int(getattr(config, "workerinput", {}).get("workercount", 1)),
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    if not _draws_cases(item):
        return
    config = item.config
    share = config.stash[_BUDGET].share(item.nodeid)
    config.stash[_RUN].begin(share, planned=settings().max_examples)
    seed = config.getoption("hypothesis_seed", None)
    if seed is not None:
        # Left alone, Hypothesis gives every test the same stream of cases.
        hypothesis.seed(f"{seed} {item.nodeid}")(item.obj)


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
