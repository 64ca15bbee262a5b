"""Gathers the tallies of all workers, and ends the run: verdict, summary, report."""

import os
import time
from typing import Any

import pytest
from hypothesis import settings

from properties.reports import writing
from properties.session import summary
from properties.session.run import Run

# Wall-clock seconds that failures are run again for, to be drawn and explained.
EXPLAINING = 30.0

# `-p no:` this, pytest's word for doing without a plugin, saves that time.
EXPLANATIONS = "attention-properties-explanations"

# pytest's own word on a test that did not fail by a property; the end says most.
_ERROR_LENGTH = 4000


class Reporter:
    """Hooks of one pytest process, a worker or the one that reports."""

    def __init__(self, config: pytest.Config, run: Run) -> None:
        self._config = config
        self._run = run
        self._started = time.monotonic()
        self._cpu_seconds = 0.0
        self._is_worker = hasattr(config, "workerinput")
        self._errors: list[dict[str, str]] = []
        self._reasons: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._is_worker:
            return
        found = getattr(report, "property_failure", None)
        if found is not None:
            self._run.tally.fail(found)
        elif report.failed:
            message = report.longreprtext[-_ERROR_LENGTH:]
            self._errors.append({"test": report.nodeid, "message": message})

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object | None) -> None:
        """A worker of pytest-xdist has ended; one that crashed sends nothing."""
        sent = getattr(node, "workeroutput", {}).get("attention_properties")
        if sent is None:
            self._run.tally.lost_workers.append(node.gateway.id)
            return
        self._run.tally.merge(sent["tally"])
        self._cpu_seconds += sent["cpu_seconds"]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._cpu_seconds += time.process_time()
        if self._is_worker:
            worker: Any = self._config
            worker.workeroutput["attention_properties"] = {
                "tally": self._run.tally.to_data(),
                "cpu_seconds": self._cpu_seconds,
            }
            return
        stopped = self._config.getoption("maxfail")
        if session.exitstatus == pytest.ExitCode.INTERRUPTED and 0 < stopped <= session.testsfailed:
            # With workers, `-x` ends a run as Ctrl-C does; a failure is a failure.
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self._run.tally.vacuous and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self._reasons = self._why_failed(session)
        page, data = self._config.getoption("report"), self._config.getoption("report_json")
        if not writing.wanted(page, data):
            return
        report = self._data(session)
        interrupted = session.exitstatus == pytest.ExitCode.INTERRUPTED
        if (page or data) and not (
            interrupted or self._config.pluginmanager.is_blocked(EXPLANATIONS)
        ):
            from properties.reports import explain  # only where it is wanted: it costs time

            report["explanations"] = explain.explanations(report["failures"], EXPLAINING)
        writing.write(report, page, data)

    def _data(self, session: pytest.Session) -> dict[str, Any]:
        report = summary.report(
            self._run.tally,
            target=self._run.target.name,
            masked_rows=self._run.target.masked_rows,
            mode=self._run.mode,
            profile=settings.get_current_profile_name(),
            passed=session.exitstatus == pytest.ExitCode.OK,
            seconds=time.monotonic() - self._started,
            cpu_seconds=self._cpu_seconds,
        )
        return report | {"errors": self._errors, "reasons": self._reasons}

    def _why_failed(self, session: pytest.Session) -> list[str]:
        """What beside failures of properties makes the run fail."""
        tally = self._run.tally
        reasons = [tally.vacuous] if tally.vacuous else []
        reasons += [f"worker {worker} crashed" for worker in tally.lost_workers]
        reasons += [f"{each['test']} failed" for each in self._errors]
        status = session.exitstatus
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            reasons.append(f"pytest ended with {pytest.ExitCode(status).name}, {int(status)}")
        return reasons

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        tally = self._run.tally
        if not (tally.properties or tally.lost_workers):
            return
        terminalreporter.section("attention properties")
        nightly = settings.get_current_profile_name().startswith("nightly")
        for line in summary.lines(tally, triples=nightly):
            terminalreporter.line(line)
        if tally.vacuous:
            terminalreporter.line(f"FAILED: {tally.vacuous}", red=True)
        if os.environ.get("GITHUB_ACTIONS") and (tally.failures or self._reasons):
            from properties.reports import github

            for line in github.annotations(tally.failures, self._reasons):
                terminalreporter.line(line)
