"""Gathers the tallies of all workers, and ends the run: verdict, summary, report."""

import json
import time
from typing import Any

import pytest
from hypothesis import settings

from properties.session import summary
from properties.session.run import Run


class Reporter:
    """Hooks of one pytest process, a worker or the one that reports."""

    def __init__(self, config: pytest.Config, run: Run) -> None:
        self._config = config
        self._run = run
        self._started = time.monotonic()
        self._cpu_seconds = 0.0
        self._is_worker = hasattr(config, "workerinput")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        found = getattr(report, "property_failure", None)
        if found is not None and not self._is_worker:
            self._run.tally.fail(found)

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
        path = self._config.getoption("report_json")
        if path is not None:
            report = summary.report(
                self._run.tally,
                self._run.target,
                mode=self._run.mode,
                profile=settings.get_current_profile_name(),
                passed=session.exitstatus == pytest.ExitCode.OK,
                seconds=time.monotonic() - self._started,
                cpu_seconds=self._cpu_seconds,
            )
            with open(path, "w", encoding="utf-8") as file:
                json.dump(report, file, indent=1, allow_nan=False)
                file.write("\n")

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
