"""Reports for people: the page, the drawing and explanation of a failure, what GitHub shows."""

import dataclasses
import html.parser
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.cases.case import Bias, Case, Segments
from properties.claims import checks
from properties.drawing.coverage import Coverage
from properties.judging.result import Result
from properties.judging.targets import Target
from properties.judging.verdict import Verdict
from properties.reports import alike, essential, explain, github, grid
from properties.reports.page import page
from properties.session import failure
from properties.session.failure import visible
from properties.session.tally import Ratios

TARGETS = """
import os
from properties.tests.test_reports import attention

features = ("causal", "gradients")
dtypes = ("float32",)

class wrong:
    features, dtypes = features, dtypes
    def call(q, k, v, ab, segment_ids, *, causal, sm_scale, block_sizes, debug):
        o = attention(q, k, v, causal, sm_scale)
        return o.at[:, :, 5:].multiply(1.01) if causal else o

class always_wrong:
    features, dtypes = features, dtypes
    def call(q, k, v, ab, segment_ids, *, causal, sm_scale, block_sizes, debug):
        return 1.01 * attention(q, k, v, causal, sm_scale)

class crashing:
    features, dtypes = features, dtypes
    def call(*rest, **options):
        os._exit(7)
"""


def attention(q: Any, k: Any, v: Any, causal: bool, sm_scale: float) -> Any:
    logits = sm_scale * jnp.einsum("bhqd,bhkd->bhqk", q, k)
    if causal:
        logits = jnp.where(jnp.tri(q.shape[2], k.shape[2]), logits, -jnp.inf)
    weights = jnp.exp(logits - logits.max(-1, keepdims=True))
    return jnp.einsum("bhqk,bhkd->bhqd", weights, v) / weights.sum(-1, keepdims=True)


def _target(**changes: Any) -> Target:
    """Attention in which one element of an argument or of the result is off."""

    def call(q: Any, k: Any, v: Any, ab: Any, segment_ids: Any, **options: Any) -> Any:
        if "v" in changes:
            v = changes["v"](v)
        o = attention(q, k, v, options["causal"], options["sm_scale"])
        return changes["o"](o) if "o" in changes else o

    features = frozenset({"causal", "gradients"})
    return Target("it", call, dict, tuple, dtypes=("float32",), features=features)


def _failure(message: str = "is wrong", **fields: Any) -> dict[str, Any]:
    result = Result("outputs", fields.pop("case", Case(1, 1, 8, 8, 8)), "auto")
    verdict = Verdict("o", message, (0, 0, 5, 1), 1.5, 1.0, 0.1, 5.0, 64)
    return failure.report(result, Target("it", print, dict, tuple), verdict) | fields


def _data(**fields: Any) -> dict[str, Any]:
    """A run with no more than the keys that schema 1 promises."""
    ratios = {"worst_ratio": 0.5, "median_ratio": 0.1, "elements": 640}
    return {
        "schema": 1,
        **{"target": "it:f", "mode": "auto", "profile": "dev", "verdict": "pass"},
        **{"cases": 10, "configurations": 5, "elements": 640, "seconds": 2.0, "cpu_seconds": 1.0},
        "outputs": {"o": ratios},
        "pairs": {"visited": 4, "legal": 9},
        "stages": {"trace": 1.0, "lower": 0.0, "compile": 0.0, "run": 0.5, "oracle": 0.5},
        "properties": {"outputs": {"cases": 10, "seconds": 2.0, "verdict": "pass"}},
        **{"refused": 0, "rows": 80, "untested_rows": 0, "skipped": [], "failures": []},
        "environment": {"jax": "1", "libtpu": None, "numpy": "2", "python": "3"},
    } | fields


class _Document(html.parser.HTMLParser):
    """Which elements and attributes a page has, and its text. Fails where tags do not nest."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(source)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        if tag != "meta":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_page_of_the_promised_keys_alone() -> None:
    document = _Document(page(_data()))

    text = " ".join(document.words)
    for words in ("PASS", "it:f", "640", "of 9 pairs", "Refused, skipped, untested"):
        assert words in text


@given(st.text())
def test_a_message_is_text_whatever_it_holds(message: str) -> None:
    hostile = f'</pre><script src="//x">{message}'
    data = _data(
        verdict="fail",
        target=hostile,
        failures=[_failure(hostile, target=hostile)],
        errors=[{"test": hostile, "message": hostile}],
        reasons=[hostile],
        skipped=[{"what": hostile, "why": hostile, "cases": 1}],
        refusals={hostile: 1},
        explanations=[{"failure": 0, "trouble": hostile}],
    )

    written = page(data)
    document = _Document(written)

    written.encode("utf-8")
    assert not document.tags & {"script", "img", "iframe", "link", "a", "object", "form"}
    assert not document.attributes & {"src", "href", "onload", "onerror", "style"}
    assert visible(hostile) in document.words


def test_what_a_screen_does_not_show_is_written_out() -> None:
    assert visible("a\x1b[31m\u202eb\ud800\n\\é") == "a\\x1b[31m\\u202eb\\ud800\n\\é"


def test_alike_failures_are_one_the_simplest_first() -> None:
    failures = [
        _failure("is beyond the bound in 8 of 64 elements", case=Case(1, 1, 16, 8, 8)),
        _failure("is not the same", property="engines"),
        _failure("is beyond the bound in 1 of 8 elements", case=Case(1, 1, 8, 1, 8)),
    ]

    assert alike.groups(failures) == [[2, 0], [1]]
    text = " ".join(_Document(page(_data(verdict="fail", failures=failures))).words)
    assert "Failures: 3, of 2 kinds" in text
    assert text.count("See it again") == 2


def test_ratio_near_one_stays_on_its_side_of_the_bound() -> None:
    ratios = Ratios()
    for ratio in (0.0, 0.3, 0.996, 1.004, float("inf")):
        ratios.add(Ratios.of_case(ratio, 1))

    bins = dict(ratios.histogram)

    assert sum(cases for upper, cases in bins.items() if upper <= 1) == 3
    assert bins[0.0] == bins[1.0] == bins[float("inf")] == 1


def test_map_has_every_pair_once() -> None:
    coverage = Coverage()
    coverage.add(Case(1, 1, 8, 8, 8))
    drawn = coverage.to_map()

    marks = "".join(drawn["rows"])
    assert marks.count("1") == len(coverage.visited) > 0
    assert marks.count("0") + marks.count("1") == len(coverage.legal)
    atoms = [tuple(atom) for atom in drawn["atoms"]]
    visited = {
        (atoms[other], atoms[place])
        for place, row in enumerate(drawn["rows"])
        for other, mark in enumerate(row)
        if mark == "1"
    }
    assert visited == coverage.visited


def test_drawing_marks_wrong_queries_and_the_mask() -> None:
    case = Case(1, 2, 7, 3, 8, causal=True)
    target = _target(o=lambda o: o.at[0, 1, 4:6].multiply(1.01))
    result = checks.PROPERTIES["outputs"](case, target, "interpret")

    drawing = grid.drawing(case, target, result)

    assert (drawing["axis"], drawing["head"], drawing["wrong"]) == ("query", 1, [4, 5])
    assert (drawing["count"], drawing["elements"]) == (2 * 8, 7 * 8)
    assert drawing["heads"] == [[0, 1]]
    assert drawing["visible"] == ["#..", "##.", "###", "###", "###", "###", "###"]


def test_drawing_marks_wrong_keys() -> None:
    case = Case(1, 1, 4, 6, 8)
    factors = jnp.ones((6, 1)).at[5].set(1.01)
    # The values are those of v; their derivative is that of the last key's value 1.01 times.
    target = _target(v=lambda v: v * factors + jax.lax.stop_gradient(v - v * factors))
    result = checks.PROPERTIES["gradients"](case, target, "interpret")

    drawing = grid.drawing(case, target, result)

    assert (drawing["output"], drawing["axis"], drawing["wrong"]) == ("dv", "key", [5])


def test_large_case_shares_cells_and_a_larger_one_is_not_drawn() -> None:
    case = Case(1, 1, 130, 65, 1, causal=True)
    target = _target(o=lambda o: o.at[0, 0, 129].add(1.0))
    result = checks.PROPERTIES["outputs"](case, target, "interpret")

    drawing = grid.drawing(case, target, result)

    assert drawing["cell"] == 3
    assert len(drawing["visible"]) == 44
    assert drawing["visible"][0] == "+" + "." * 21
    assert drawing["wrong"] == [43]
    with pytest.raises(ValueError, match="too many to draw"):
        grid.drawing(Case(1, 1, 4096, 4096, 1), target, result)


def test_essential_is_what_the_case_does_not_fail_without() -> None:
    segments = Segments("int32", (((0, 3), (1, 5)),), (((0, 2), (1, 6)),))
    case = Case(1, 2, 8, 8, 8, causal=True, bias=Bias("float32", "normal"), segments=segments)

    def check(case: Case) -> Result:
        result = Result("outputs", case, "numpy")
        if case.causal and case.q_len >= 8:
            output = "o" if case.bias else "dq"
            result.verdicts.append(Verdict(output, "is wrong"))
        result.refused = "no" if case.heads == 1 else ""
        return result

    def same(result: Result) -> bool:
        assert result.failure is not None
        return result.failure.output == "o"

    found = essential.explain(case, check, same, deadline=float("inf"))

    outcomes = {(each["feature"], each["to"]): each["outcome"] for each in found}
    assert outcomes["causal", "no"] == "holds"
    assert outcomes["bias", "none"] == "fails otherwise"
    assert outcomes["segments", "none"] == outcomes["q_len", "9"] == "fails"
    assert outcomes["q_len", "7"] == "holds"
    assert outcomes["seed", "1"] == "fails"
    late = essential.explain(case, check, same, deadline=0.0)
    assert {each["outcome"] for each in late} == {"not tried"}


def test_every_change_is_a_case() -> None:
    segments = Segments("int8", (((3, 7), (4, 1)),) * 2, (((3, 1), (4, 8)),) * 2)
    case = Case(2, 2, 8, 9, 8, "bfloat16", True, 0.5, Bias("bfloat16", "lowest"), segments)
    case = dataclasses.replace(case, values="peaked")

    found = list(essential.changes(case))

    assert {feature for feature, *_ in found} == {
        *("causal", "bias", "bias dtype", "segments", "segment dtype", "scale", "values", "seed"),
        *("dtype", "heads", "batch", "head_dim", "q_len", "kv_len"),
    }
    for *_, changed in found:
        assert Case.from_json(changed.to_json()) == changed != case


@pytest.fixture
def targets(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    (tmp_path / "reported.py").write_text(TARGETS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("targets")
def test_failures_are_explained_by_another_process_which_may_crash() -> None:
    case = Case(1, 1, 6, 6, 8, causal=True)
    failures = [
        _failure("is beyond the bound in 8 of 48 elements", case=case, target="reported:wrong"),
        _failure(case=Case(1, 1, 4, 4, 8), target="reported:wrong", property="gradients"),
        _failure(case=case, target="reported:crashing", property="refusals"),
    ]

    found = explain.explanations(failures, seconds=20)

    assert [each["failure"] for each in found] == [0, 1, 2]
    assert found[0]["drawing"]["wrong"] == [5]
    outcomes = {(each["feature"], each["to"]): each["outcome"] for each in found[0]["essential"]}
    assert outcomes["causal", "no"] == outcomes["q_len", "5"] == "holds"
    assert outcomes["kv_len", "5"] == "fails"
    assert found[1]["trouble"] == "run again, it did not fail"
    assert "code 7" in found[2]["trouble"]
    text = " ".join(
        _Document(page(_data(verdict="fail", failures=failures, explanations=found))).words
    )
    assert "causal, q_len 6" in text
    assert "8 of 48 elements of o are wrong" in text


def test_text_of_a_failure_does_not_steer_a_terminal() -> None:
    words = failure.text(_failure("raised E: \x1b[2J\u202eevil\nsecond line"))

    assert "raised E: \\x1b[2J\\u202eevil\nsecond line" in words
    assert all(each.isprintable() or each == "\n" for each in words)


def test_annotation_is_one_line_and_no_other_command() -> None:
    lines = github.annotations([_failure("100%\r\n::error::no, x: y")], ["worker gw0 crashed"])

    assert len(lines) == 2
    before, title, message = lines[0].split("::", 2)
    assert not before
    assert title == "error title=outputs%3A o 100%25\\r%0A%3A%3Aerror%3A%3Ano%2C x%3A y"
    assert message.startswith("outputs: o 100%25\\r%0A::error::no, x: y%0A  at o[0, 0, 5, 1]")
    assert not any("\n" in line or "\r" in line for line in lines)


def test_job_summary_holds_messages_as_text() -> None:
    hostile = "</pre>\n\n# <img src=x> | `x` *y*"
    data = _data(verdict="fail", failures=[_failure(hostile)], target=hostile)

    text = github.summary(data)

    assert "<img" not in text
    assert text.count("</pre>") == 1
    assert text.splitlines()[0] == (r"## ❌ FAIL &lt;/pre&gt;  # &lt;img src=x&gt; \| \`x\` \*y\*")


def test_run_writes_page_data_summary_and_annotations(
    targets: pathlib.Path, pytestconfig: pytest.Config
) -> None:
    names = ("run.html", "run.json", "run.xml", "summary.md")
    written = {name: targets / name for name in names}
    command = [sys.executable, "-m", "pytest", "properties/test_outputs.py", "-k0", "-n0"]
    command += [
        "-pno:cacheprovider",
        "--hypothesis-profile=smoke",
        "--target=reported:always_wrong",
    ]
    command += [f"--report={written['run.html']}", f"--report-json={written['run.json']}"]
    command += [f"--junitxml={written['run.xml']}"]
    github_s = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(written["summary.md"])}
    done = subprocess.run(
        command,
        cwd=pytestconfig.rootpath,
        env=os.environ | github_s | {"PYTHONPATH": f"{targets}:{pytestconfig.rootpath}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    data = json.loads(written["run.json"].read_text())
    assert written["run.html"].read_text() == page(data)
    assert data["explanations"][0]["drawing"]["wrong"] == [0]
    histogram = data["outputs"]["o"]["float32"]["histogram"]
    assert sum(cases for _, cases in histogram) == data["cases"]
    kinds = len(alike.groups(data["failures"]))
    assert done.stdout.count("\n::error title=outputs%3A o ") == kinds
    assert written["summary.md"].read_text() == github.summary(data)
    assert "replay: echo" in written["run.xml"].read_text()


def test_folder_that_does_not_exist_is_a_usage_error(
    pytestconfig: pytest.Config, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "missing" / "run.html"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "properties/test_outputs.py", f"--report={path}"],
        cwd=pytestconfig.rootpath,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"--report {path}: its folder does not exist" in done.stderr
