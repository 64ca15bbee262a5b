"""A run's reports, where they are wanted: the page, the data, and the summary of a GitHub job."""

import json
import os
import pathlib
from typing import Any


def wanted(page: str | None, data: str | None) -> bool:
    """Whether anything is: a run without a report does not pay for one."""
    return bool(page or data or os.environ.get("GITHUB_STEP_SUMMARY"))


def write(report: dict[str, Any], page: str | None, data: str | None) -> None:
    """Writes the run, schema 1 of the run report, to the files of the two options, if given."""
    from properties.reports import github
    from properties.reports.page import page as page_of

    if data:
        written = json.dumps(report, indent=1, allow_nan=False)
        pathlib.Path(data).write_text(f"{written}\n", encoding="utf-8")
    if page:
        pathlib.Path(page).write_text(page_of(report), encoding="utf-8")
    if of_job := os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(of_job, "a", encoding="utf-8") as file:
            file.write(github.summary(report))
