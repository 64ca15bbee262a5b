"""Failures told apart, and sent from job to job."""

import json
from dataclasses import replace
from typing import Any

import pytest

from properties.cases.case import Bias, Case
from properties.fuzzing import entries
from properties.fuzzing.findings import Finding, Findings, contains
from properties.judging.targets import KERNEL
from properties.judging.verdict import Verdict
from properties.shrinking.signature import PROCESS

CASE = Case(1, 1, 2, 3, 8)


def _report(case: Case, name: str = "outputs", output: str = "o", message: str = "") -> Any:
    verdict = Verdict(output, message or "is beyond the bound", None if message else (0, 0, 0, 0))
    return {
        "schema": 1,
        "target": KERNEL,
        "property": name,
        "mode": "auto",
        "masked_rows": "zero",
        "case": case.to_dict(),
        "verdict": verdict.to_dict(),
        "environment": {},
    }


def _reduced(findings: Findings, report: Any, minimal: Case, **fields: Any) -> Finding:
    finding = findings.add(report, "drawn")
    assert finding is not None
    finding.minimal = _report(minimal, report["property"], report["verdict"]["output"]) | {
        "verdict": report["verdict"]
    }
    finding.settled = "reduced"
    for name, value in fields.items():
        setattr(finding, name, value)
    return finding


def test_a_failure_is_known_if_it_could_be_reduced_to_a_known_one() -> None:
    findings = Findings()
    biased = replace(CASE, bias=Bias("float32", "normal"))
    finding = _reduced(findings, _report(biased), replace(biased, q_len=1))

    assert findings.add(_report(replace(biased, heads=2)), "drawn") is None
    assert finding.count == 2
    # It cannot be the bias.
    assert findings.add(_report(CASE), "drawn") is not None
    assert findings.add(_report(biased, output="l"), "drawn") is not None


def test_what_waited_for_a_reduction_may_be_another_fault() -> None:
    findings = Findings()
    biased = replace(CASE, bias=Bias("float32", "normal"))
    finding = findings.add(_report(biased), "drawn")
    assert finding is not None
    assert findings.add(_report(CASE), "drawn") is None
    finding.minimal, finding.settled = _report(biased), "reduced"
    group, others = findings.settle(finding)
    assert group == [finding]
    assert others == [_report(CASE)]
    assert finding.count == 1


def test_what_did_not_fail_again_hides_no_other_case() -> None:
    findings = Findings()
    finding = findings.add(_report(CASE), "drawn")
    assert finding is not None
    other = _report(replace(CASE, heads=2))
    assert findings.add(other, "drawn") is None  # waits
    finding.settled = "did not fail when it was run again"
    assert findings.others(finding, None) == [other]
    assert (finding.count, finding.waiting) == (1, [])
    assert findings.add(_report(CASE), "drawn") is None
    assert findings.add(other, "drawn") is not None


def test_one_fault_under_two_properties_is_one_finding() -> None:
    findings = Findings()
    first = _reduced(findings, _report(CASE, "outputs"), CASE)
    second = _reduced(
        findings,
        _report(CASE, "gradients"),
        replace(CASE, parameters={"gradient_of": ["q"]}),
    )
    group, _ = findings.settle(second)
    assert group == [first, second]
    assert list(findings) == [first]
    assert first.also == ["gradients"]


def test_two_faults_with_one_minimal_case_stay_two() -> None:
    findings = Findings()
    _reduced(findings, _report(CASE, "gradients", "dq"), CASE)
    second = _reduced(findings, _report(CASE, "gradients", "dk"), CASE)
    findings.settle(second)
    assert len(findings) == 2


def test_what_fails_directly_too_is_a_finding_of_that() -> None:
    findings = Findings()
    name = "invariances.same_call"
    indirect = _reduced(findings, _report(CASE, name), CASE, directly=["o", ""])
    direct = _reduced(findings, _report(CASE, "outputs"), replace(CASE, q_len=1))
    group, _ = findings.settle(direct)
    assert group == [direct, indirect]
    assert direct.also == [name]
    # Another output shows another fault.
    other = _reduced(findings, _report(CASE, name, "dv"), CASE, directly=None)
    findings.settle(other)
    assert len(findings) == 2


def test_a_crash_is_the_same_under_every_property() -> None:
    findings = Findings()
    ended = "was ended by SIGABRT"
    crash = _reduced(findings, _report(CASE, "outputs", PROCESS, ended), replace(CASE, q_len=1))
    assert findings.add(_report(CASE, "invariances.scaling", PROCESS, ended), "drawn") is None
    other = _report(CASE, "invariances.scaling", PROCESS, "was ended by SIGSEGV")
    assert findings.add(other, "drawn") is not None
    broken = replace(CASE, breaks="rank", parameters={"argument": "q"})
    assert findings.add(_report(broken, "refusals", PROCESS, ended), "drawn") is None
    assert crash.also == ["invariances.scaling", "refusals"]
    smaller = _report(replace(CASE, kv_len=1), "memory", PROCESS, ended)
    assert findings.add(smaller, "drawn") is not None


def test_findings_are_kept_as_data() -> None:
    findings = Findings()
    _reduced(findings, _report(CASE), CASE)
    again = Findings(json.loads(json.dumps(findings.data())))
    assert list(again) == list(findings)


def test_a_case_contains_itself_and_nothing_larger() -> None:
    large = replace(CASE, causal=True, heads=2, bias=Bias("float32", "normal"), sm_scale=0.5)
    assert contains(large, large)
    assert contains(large, CASE)
    assert not contains(CASE, large)
    assert not contains(large, replace(CASE, head_dim=64))
    assert not contains(large, replace(CASE, dtype="bfloat16"))


# Entries of a database.


def test_an_entry_comes_back_as_it_was() -> None:
    entry = entries.decoded(entries.encoded(_report(CASE, "gradients")))
    assert entry == entries.Entry(("gradients",), CASE)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff\xfe",
        b"null",
        b"[" * 100_000,
        b"{}",
        b"\x80\x04\x95",
        json.dumps(_report(CASE, "no such property")).encode(),
        json.dumps(_report(CASE) | {"schema": 2}).encode(),
        json.dumps(_report(CASE) | {"more": 1}).encode(),
        json.dumps(_report(replace(CASE, q_len=10**9))).encode(),
        json.dumps(_report(CASE) | {"case": CASE.to_dict() | {"tensors": "x.npz"}}).encode(),
        json.dumps(_report(replace(CASE, parameters={"row": "x"}))).encode(),
        b" " * 2**21,
    ],
)
def test_a_malformed_entry_is_refused_in_a_line(value: bytes) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        entries.decoded(value)
    assert "\n" not in str(error.value)
