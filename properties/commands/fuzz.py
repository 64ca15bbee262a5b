"""`python -m properties fuzz`: the nightly job."""

import argparse
import multiprocessing
import os
import pathlib
from typing import Any, get_args

from properties import engines, environment
from properties.fuzzing.findings import Finding
from properties.fuzzing.job import Interruption, Job, Plan
from properties.fuzzing.progress import Progress, told
from properties.fuzzing.shards import shard_of
from properties.judging.result import CHIP, MODES, engines_for
from properties.judging.targets import KERNEL, MaskedRows
from properties.reports import explain, github, writing
from properties.session import summary
from properties.session.options import MOST_WORKERS, generations
from properties.session.reporter import EXPLAINING
from properties.session.run import seconds_of
from properties.shrinking.signature import PROCESS

HOLDS, FAILS, BAD_INPUT = 0, 1, 2  # exit codes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--budget", metavar="TIME", required=True, help="of this run, as 90s, 20m or 8h"
    )
    parser.add_argument(
        "--workers", metavar="N", type=int, help="processes (default: one a core or chip, up to 8)"
    )
    parser.add_argument(
        "--shard",
        metavar="I/N",
        help="part I, from 0, of N that run elsewhere (default: JOB_COMPLETION_INDEX of "
        "JOB_COMPLETIONS, else all)",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=pathlib.Path,
        default=pathlib.Path("fuzz"),
        help="reports, journals and state; run again with it to go on (default: %(default)s)",
    )
    parser.add_argument(
        "--database",
        metavar="URL",
        help="where machines share failures: redis://HOST:PORT/DB, rediss://... or a folder",
    )
    parser.add_argument(
        "--target", metavar="MODULE:NAME", default=KERNEL, help="default: %(default)s"
    )
    parser.add_argument("--mode", choices=MODES, default="auto", help="default: %(default)s")
    parser.add_argument("--masked-rows", choices=get_args(MaskedRows), help="default: the target's")
    parser.add_argument(
        "--generations",
        metavar="LIST",
        type=generations,
        default=tuple(engines.TOPOLOGIES),
        help="TPU generations to compile for (default: all)",
    )
    parser.add_argument("--report", metavar="FILE.html", help="write the run as a page")
    parser.add_argument("--report-json", metavar="FILE", help="write the run as data")


def command(options: argparse.Namespace) -> int:
    """Runs the job; 0 if nothing failed, 1 if something did, 2 if the job could not go on.

    Raises ValueError for bad options.
    """
    # Forked processes begin with what all of them import.
    multiprocessing.set_forkserver_preload(["properties.fuzzing.warm"])
    for option, path in (("--report", options.report), ("--report-json", options.report_json)):
        if path is not None and not pathlib.Path(path).absolute().parent.is_dir():
            raise ValueError(f"{option} {path}: its folder does not exist")
        if path is not None and pathlib.Path(path).is_dir():
            raise ValueError(f"{option} {path}: a folder; give the name of a file")
    plan = Plan(
        options.target,
        options.mode,
        options.masked_rows,
        options.generations,
        seconds_of(options.budget),
        _workers(options.workers, options.mode),
        shard_of(options.shard),
        options.out,
        options.database,
    )
    # To the end: the report of a night is not to be lost to a Ctrl-C while it is written.
    with Interruption() as interruption:
        return _run(plan, options, interruption)


def _run(plan: Plan, options: argparse.Namespace, interruption: Interruption) -> int:
    job = Job(plan, Progress(), interruption)
    job.run()
    findings, reasons = job.book.findings.current, _reasons(job)
    _count(job, findings)
    print("\n".join(["", *summary.lines(job.ledger.tally, triples=True)]))
    print(f"journal         {job.ledger.balance}")
    print("\n".join(told(findings, str(plan.out))))
    print("\n".join(["", *reasons, _verdict(interruption.by, findings, reasons)]), flush=True)
    if os.environ.get("GITHUB_ACTIONS") and (findings or reasons):
        print("\n".join(github.annotations(job.ledger.tally.failures, reasons)))
    issue = options.out / "issue.md"
    issue.unlink(missing_ok=True)
    if findings or writing.wanted(options.report, options.report_json):
        report = _report(job, plan, findings, reasons)
        if findings:
            issue.write_text(github.issue(report), encoding="utf-8")
        if not interruption.by:
            report["explanations"] = _explanations(findings)
        writing.write(report, options.report, options.report_json)
    if job.trouble:
        return BAD_INPUT
    return FAILS if findings or reasons else HOLDS


def _workers(asked: int | None, mode: str) -> int:
    if asked is not None and asked < 1:
        raise ValueError(f"--workers {asked}: at least 1")
    if engines_for(mode) == (CHIP,):
        chips = len(engines.visible_chips())
        if not chips:
            raise ValueError("--mode tpu: no TPU is attached to this machine")
        if asked is not None and asked > chips:
            raise ValueError(
                f"--workers {asked}: a chip belongs to one process, and there are {chips}"
            )
        return asked or chips
    return asked or min(environment.cores(), MOST_WORKERS)


def _reasons(job: Job) -> list[str]:
    """What beside failures of properties makes the run fail."""
    idle = "" if job.cases else "no case was run"
    return [each for each in (job.trouble, job.ledger.tally.vacuous, idle) if each]


def _count(job: Job, findings: list[Finding]) -> None:
    """Brings the tally in line with the findings, of which some may have been others, or hold."""
    tally = job.ledger.tally
    tally.failures = [finding.best for finding in findings]
    failing = {name for each in findings for name in (each.name, *each.also)}
    for name, each in tally.properties.items():
        each.failures = each.failures if name in failing else 0


def _verdict(interrupted: str, findings: list[Finding], reasons: list[str]) -> str:
    ended = f"ended by {interrupted}: run again with the same --out to go on. "
    head = ended if interrupted else ""
    if not findings:
        return f"{head}{'FAILED' if reasons else 'no failure'}"
    unreduced = sum(not each.settled for each in findings)
    left = f", {unreduced} of them not reduced yet" if unreduced else ""
    return f"{head}{len(findings)} failure{'s' if len(findings) > 1 else ''}{left}"


def _report(job: Job, plan: Plan, findings: list[Finding], reasons: list[str]) -> dict[str, Any]:
    report = summary.report(
        job.ledger.tally,
        target=plan.target,
        masked_rows=job.masked_rows,
        mode=plan.mode,
        profile="nightly",
        passed=not (findings or reasons),
        seconds=job.elapsed,
        cpu_seconds=job.ledger.cpu_seconds,
    )
    details = [
        {
            "files": each.files,
            "also": each.also,
            "count": each.count,
            "origin": each.origin,
            "reduced": each.minimal is not None,
        }
        for each in findings
    ]
    fuzz = {"shard": str(plan.shard), "journal": dict(job.ledger.counts), "findings": details}
    return report | {"errors": [], "reasons": reasons, "fuzz": fuzz}


def _explanations(findings: list[Finding]) -> list[dict[str, Any]]:
    """Of findings that end no process: run again, these would take the explaining one along."""
    known: list[dict[str, Any]] = []
    calm = [place for place, each in enumerate(findings) if each.signature.output != PROCESS]
    for each in explain.explanations([findings[place].best for place in calm], EXPLAINING):
        known.append(each | {"failure": calm[each["failure"]]})
    for place, finding in enumerate(findings):
        if place not in calm:
            explained = {"essential": finding.explanation} if finding.explanation else {}
            known.append({"failure": place, "trouble": "it ends its process"} | explained)
    return known
