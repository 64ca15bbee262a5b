"""Mutants: which are made of a text, what becomes of them, and what is remembered of that."""

import multiprocessing
import pathlib
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import pytest

pytest.importorskip("cosmic_ray", reason="mutants are an optional extra")

from properties.cases.case import Case
from properties.faults import campaign, record, trials, trying
from properties.faults.mutants import Mutant, mutants_of
from properties.faults.planting import source_of
from properties.faults.trials import Trial

TOY = '''"""Says 1 + 1."""

LIMIT = -3


def total(numbers: list[int | None], *, start: int = 0) -> int | None:
    """Adds up 2 + 2."""
    for number in numbers:
        start += number
    return start if start != LIMIT else None


def least(a, b):
    if a < b and b > 0:
        return a
    return b
'''


def _changes(source: str) -> dict[str, str]:
    return {f"{mutant.scope}: {mutant.change}": mutant.key for mutant in mutants_of("toy", source)}


def test_mutants_of_a_text():
    made = _changes(TOY)
    for expected in (
        "toy: LIMIT = -3 => LIMIT = 3",
        "toy.total: for number in numbers: => for number in []:",
        "toy.total: start += number => start = number",
        "toy.total: start += number => pass",
        "toy.total: return start if start != LIMIT else None => "
        "return start if start == LIMIT else None",
        "toy.least: if a < b and b > 0: => if a <= b and b > 0:",
        "toy.least: if a < b and b > 0: => if a < b or b > 0:",
        "toy.least: if a < b and b > 0: => if a < b and b > 1:",
        "toy.least: return b => pass",
    ):
        assert expected in made
    assert len(set(made.values())) == len(made)


def test_nothing_that_cannot_matter_is_changed():
    for change in _changes(TOY):
        was, becomes = change.split(": ", 1)[1].split(" => ")
        assert '"""' not in change
        assert "int & None" not in becomes
        assert was != becomes


def test_a_key_holds_as_long_as_its_own_code_stands():
    before = _changes(TOY)
    after = _changes("\n\n" + TOY.replace("return a\n", "return a + 0\n"))
    kept = {change for change in before if after.get(change) == before[change]}
    assert kept == {change for change in before if "toy.least" not in change}


def test_lines_are_those_of_the_statement():
    lines = {mutant.change: mutant.lines for mutant in mutants_of("toy", TOY)}
    assert lines["for number in numbers: => for number in []:"] == (8, 8)
    assert lines["return b => pass"] == (16, 16)


PLAIN = Trial("flash_attention", "outputs", Case(1, 1, 8, 8, 8))
SCALED = Trial("flash_attention", "outputs", Case(1, 1, 8, 8, 8, sm_scale=2.0))


def _planted(old: str, new: str, module: str = "tile") -> Mutant:
    source = source_of(module)
    assert old in source
    return Mutant(module, module, "by hand", new, (1, 1), "key", source.replace(old, new))


_SCALING = "s *= np.float32(call.sm_scale)"
FATES = {
    "survives": ("if not call.scales_exponent:", "if call.sm_scale > 1.0:", None),
    "killed": (_SCALING, "pass", "outputs"),
    "raises": (_SCALING, "raise ArithmeticError", "outputs"),
    "endless": (_SCALING, "while True: pass", "the clock"),
    "ends the process": (_SCALING, "import os; os._exit(3)", "the process"),
    "no module": ("HIDDEN = -np.inf", "HIDDEN = np.nothing", "the import"),
}


@pytest.fixture(scope="module")
def warm():
    """A process that may be forked: in that of the tests an engine may have run."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        yield pool


@pytest.mark.parametrize("fate", FATES)
def test_fate(warm, fate):
    old, new, killer = FATES[fate]
    plan = [PLAIN, SCALED]
    outcome = warm.submit(trying.attempt, _planted(old, new), plan, cpu_seconds=1).result()
    assert outcome.killed_by == killer
    assert outcome.trials == (0 if fate == "no module" else 2)
    assert outcome.cpu_seconds < 10


def test_a_reference_that_refuses_what_it_took_is_killed(warm):
    trial = replace(PLAIN, subject="mha_reference", property="gradients")
    mutant = _planted("return *gradients, None", "raise TypeError", "reference")
    outcome = warm.submit(trying.attempt, mutant, [trial]).result()
    assert outcome.killed_by == "gradients"
    assert "call is refused: TypeError" in outcome.message


def test_only_trials_that_run_a_statement_are_for_its_mutants(warm):
    plain, scaled = warm.submit(trying.reaches_of, [PLAIN, SCALED]).result()
    source = source_of("tile").splitlines()
    line = next(n for n, text in enumerate(source, start=1) if _SCALING in text)
    assert ("tile", line) in scaled
    assert ("tile", line) not in plain
    assert ("tile", line - 1) in plain


@pytest.fixture
def toy(monkeypatch, tmp_path):
    """Runs campaigns over a toy whose mutants die unless they change LIMIT or an `and`."""
    tried: list[str] = []

    def attempt(mutant, chosen):
        tried.append(f"{mutant.scope}: {mutant.change}")
        lives = "LIMIT =" in mutant.change or " or " in mutant.change
        return trying.Outcome(None if lives else "outputs", "", len(chosen), 0.5)

    monkeypatch.setattr(trying, "attempt", attempt)
    monkeypatch.setattr(trials, "tier", lambda number: [PLAIN])
    monkeypatch.setattr(trying, "lines_at_import", lambda: frozenset({("toy", 3)}))
    monkeypatch.setattr(trying, "reaches_of", lambda plan: [frozenset()] * len(plan))

    def run(source=TOY, equivalents=None, tiers=1):
        monkeypatch.setattr(campaign, "source_of", lambda module: source)
        found = campaign.Campaign(
            ["toy"], tmp_path / "mutants.jsonl", record.Equivalents(equivalents or {})
        )
        found.run(tiers)
        tried_now, tried[:] = tried[:], []
        return found, tried_now

    return run


_AND = "if a < b and b > 0: => if a < b or b > 0:"


def test_only_what_is_not_settled_is_tried_again(toy):
    first, tried = toy()
    assert sorted(tried) == sorted(_changes(TOY))
    assert "toy.least" in {mutant.scope for mutant in first.survivors()}
    _, again = toy()
    assert sorted(again) == sorted(f"{m.scope}: {m.change}" for m in first.survivors())
    _, explained = toy(equivalents={"toy.least": {_AND: "b is positive"}})
    assert sorted(again) == sorted([*explained, f"toy.least: {_AND}"])
    _, changed = toy(TOY.replace("numbers:\n", "numbers[:]:\n"))
    assert {each.split(":")[0] for each in changed} == {"toy", "toy.total", "toy.least"}
    assert sum(each.startswith("toy.least") for each in changed) == 1


def test_an_interrupted_run_goes_on_where_it_was(toy, monkeypatch, tmp_path):
    toy()
    path = tmp_path / "mutants.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-4]))
    killed = [line for line in lines[-4:] if '"killed_by": "outputs"' in line]
    found, tried = toy()
    assert len(killed) <= len(tried) < len(lines)
    assert found.untried() == 0
    assert len(path.read_text().splitlines()) == len(lines)


def test_stale_explanations_are_reported(toy):
    found, _ = toy(
        equivalents={
            "toy.least": {_AND: "b is positive", "return b => pass": "wrong", "gone": "no more"},
            "elsewhere.f": {"x => y": "another module"},
        }
    )
    assert sorted(found.stale()) == [
        "toy.least: gone: no such mutant is made any more",
        "toy.least: return b => pass: was killed by outputs",
    ]
    assert all(mutant.change != _AND for mutant in found.survivors())
    assert any("stale" in line for line in found.report())


def test_results_survive_writing(tmp_path: pathlib.Path):
    result = record.Result("key", "tile.f", "Op", "a => b", None, "", 1, 2, 0.25)
    path = tmp_path / "results.jsonl"
    record.append(path, result)
    record.append(path, replace(result, killed_by="outputs"))
    assert record.read_results(path) == {"key": replace(result, killed_by="outputs")}
    path.write_text("{}\n")
    with pytest.raises(ValueError, match="not results of mutants"):
        record.read_results(path)


def test_an_explanation_of_a_whole_line(toy):
    line = _AND.split(" => ")[0]
    found, _ = toy(equivalents={"toy.least": {f"{line} => *": "b is positive"}})
    assert "toy.least" not in {mutant.scope for mutant in found.survivors()}
    assert found.stale() == []
    gone, _ = toy(equivalents={"toy.least": {"return b => *": "wrong"}})
    assert gone.stale() == ["toy.least: return b => *: was killed by outputs"]


def test_the_project_explains_only_mutants_that_live():
    equivalents = record.Equivalents.read(record.EQUIVALENTS)
    results = record.read_results(record.RESULTS)
    modules = {scope.partition(".")[0] for scope in equivalents.whys}
    made = [mutant for module in modules for mutant in mutants_of(module, source_of(module))]
    assert equivalents.stale(made, results) == []
