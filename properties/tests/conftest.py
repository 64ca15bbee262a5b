"""What the harness's own tests have in common."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _not_a_job_of_github() -> Iterator[None]:
    """Runs of the suite within tests do not write into the summary of the job that tests them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
            patch.delenv(name, raising=False)
        yield
