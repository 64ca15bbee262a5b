"""How long runs take and what each test has of that: Hypothesis profiles, and shares of time."""

import pathlib

from hypothesis import HealthCheck, Phase, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from properties.drawing import provider

# Profile: cases per test, and the budget, which guards against a slow machine. A deterministic run
# has none: a clock must not decide what it tests.
PROFILES: dict[str, tuple[int, str | None]] = {
    "smoke": (4, "10s"),
    "dev": (30, "180s"),
    "ci": (30, None),
    "nightly": (100_000, "8h"),
}

# Properties share the budget by the files of their tests, evenly but for these: gradients carry
# most of the covering set, refusals compile, agreement is a sample that a slow engine takes most
# of, and statistics need few cases.
SHARES = {
    "test_gradients.py": 5.0,
    "test_refusals.py": 2.0,
    "test_agreement.py": 0.5,
    "test_statistics.py": 0.5,
}

# Weight of a test that runs no kernel, where one that does weighs 1.
LIGHT = 0.1


def register(root: pathlib.Path) -> None:
    """Makes the profiles known to Hypothesis, with examples saved below `root`, and loads "dev".

    Every field that matters is given, so that a profile already loaded (Hypothesis loads its own
    "ci" where the environment looks like one) leaves nothing behind.

    No deadline: a first call compiles, the second does not. No explain phase: it costs hundreds of
    runs. One failure at a time: others are mostly its shadows. Uniform draws: Hypothesis's own
    repeat themselves, and every case costs a trace.
    """
    saved = DirectoryBasedExampleDatabase(root / ".hypothesis" / "examples")
    for name, (cases, _) in PROFILES.items():
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
