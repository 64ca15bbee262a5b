"""The benchmark's results: what is shipped, and what the command makes of its options."""

import json

import pytest

from kernel.benchmark import __main__ as command
from kernel.benchmark import results, tables
from kernel.benchmark.compiling import Refused
from kernel.benchmark.generations import GENERATIONS
from kernel.benchmark.measuring import Cost
from kernel.benchmark.results import RECORDED, Key, Results, Row
from kernel.benchmark.workloads import PASSES, SHAPES

VERSIONS = {"jax": "9.9", "libtpu": "0.0.52"}


def cost(microseconds: float) -> Cost:
    cycles = int(1500 * microseconds)
    return Cost(cycles, cycles, microseconds, 0.5, 2**20, 3, 1.5, False, {"a kernel": microseconds})


@pytest.fixture(scope="module")
def recorded():
    return results.read(RECORDED)


def test_the_shipped_results_have_what_is_measured_unless_told_otherwise(recorded):
    assert recorded.versions["libtpu"].startswith(command.READABLE)
    for generation in ("v5e", "v6e"):
        for shape in ("2048", "8192"):
            assert all(Key(generation, shape, which) in recorded.rows for which in PASSES)


# By less than a percent: both kernels wait for the same part of the bias to be copied.
SLOWER = {("v5e", "bias", "forward"), ("v6e", "bias", "forward")}


def test_nothing_shipped_is_slower_than_upstream_but_what_is_known(recorded):
    slower = {
        tuple(key)
        for key, row in recorded.rows.items()
        for upstream in (row.default, row.best)
        if upstream is not None and row.ours.cycles_with_copies > upstream.cycles_with_copies
    }
    assert slower == SLOWER


def test_the_shipped_results_are_consistent(recorded):
    for (generation, shape, which), row in recorded.rows.items():
        assert (row.best is None) == (row.best_block is None)
        chip = GENERATIONS[generation]
        cores = 2 if generation == "v5p" else 1
        bound = SHAPES[shape].useful_products(which) / chip.products / cores
        for each in filter(None, (row.ours, row.default, row.best)):
            assert bound < each.cycles <= each.cycles_with_copies
            assert each.microseconds == round(each.cycles_with_copies / chip.clock, 1)
            assert each.of_bound == round(bound / each.cycles_with_copies, 3)
            # Each operation is rounded to a tenth.
            parts = each.operations.values()
            assert sum(parts) == pytest.approx(each.microseconds, abs=0.05 * (len(parts) + 1.1))


def test_causal_order_leaves_half_of_the_products():
    # 8 heads of 2048 queries that see 1 to 2048 keys each, 128 multiplications, 2 or 7 products.
    pairs = 2048 * 2049 // 2
    assert SHAPES["2048"].useful_products("forward") == 2 * 8 * pairs * 128
    assert SHAPES["2048"].useful_products("train") == 7 * 8 * pairs * 128
    assert SHAPES["full"].useful_products("forward") == 2 * 8 * 2048 * 2048 * 128


def test_results_are_read_as_they_were_written(tmp_path):
    rows = {
        Key("v6e", "2048", "train"): Row(cost(30), None, None, None),
        Key("v5e", "2048", "train"): Row(cost(20), cost(200), cost(40), 512),
        Key("v5e", "2048", "forward"): Row(cost(10), cost(100), cost(20), 1024),
    }
    results.write(tmp_path / "r.json", Results(VERSIONS, rows))
    again = results.read(tmp_path / "r.json")
    assert again == Results(VERSIONS, rows)
    assert [(key.generation, key.which) for key in again.rows] == [
        ("v5e", "forward"),
        ("v5e", "train"),
        ("v6e", "train"),
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data.update(schema=0), "schema 1"),
        (lambda data: data["versions"].pop("jax"), "'jax'"),
        (lambda data: data["rows"][0].update(generation="v7"), "'v7' is none of v4"),
        (lambda data: data["rows"][0].update(best_block=100), "best_block=100"),
        (lambda data: data["rows"][0].pop("ours"), "'ours'"),
        (lambda data: data["rows"][0]["ours"].pop("cycles"), "cycles"),
        (lambda data: data["rows"][0]["ours"].update(cycles="12"), "cycles='12' is no int"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path, change, words):
    path = tmp_path / "r.json"
    row = Row(cost(10), cost(100), cost(20), 1024)
    results.write(path, Results(VERSIONS, {Key("v5e", "2048", "train"): row}))
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=words) as refusal:
        results.read(path)
    assert str(path) in str(refusal.value)


def test_a_line_compares():
    key = Key("v5e", "2048", "train")
    row = Row(cost(10), cost(100), cost(25), 512)
    text = tables.line(key, row, row._replace(ours=cost(8)))
    assert all(word in text for word in ("2048", "10.00x", "2.50x", " 512)", "+25.0% against 8.0"))
    assert "against" not in tables.line(key, row, row)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """The command with a compiler that takes no time; gives the calls of it."""
    asked = []

    def measure(generation, shape, which, block):
        asked.append((generation, shape, which, block))
        if block == 1024 or shape == "float32":
            raise Refused("too large")
        return cost(10.0 if block is None else 1000 / block)

    recorded = tmp_path / "recorded.json"
    known = {Key("v5e", "2048", "forward"): Row(cost(9), cost(90), cost(45), 256)}
    results.write(recorded, Results(VERSIONS, known))
    monkeypatch.setattr(results, "RECORDED", recorded)
    monkeypatch.setattr(results, "versions", lambda: dict(VERSIONS))
    monkeypatch.setattr(command, "measure", measure)
    return asked


def test_the_command_measures_upstream_only_where_it_is_not_recorded(machine, capsys):
    assert command.main(["--generations", "v5e", "--shapes", "2048"]) == command.DONE
    assert machine == [
        ("v5e", "2048", "forward", None),
        *(("v5e", "2048", "train", block) for block in (None, 1024, 512, 128)),
    ]
    out = capsys.readouterr().out
    assert "45.0  4.50x ( 256)" in out
    assert "+11.1% against 9.0" in out
    machine.clear()
    options = ["--generations", "v5e", "--shapes", "2048", "--passes", "forward", "--afresh"]
    assert command.main(options) == command.DONE
    assert [block for *_, block in machine] == [None, 1024, 512, 128]


def test_the_command_adds_to_a_file(machine, tmp_path):
    path = tmp_path / "mine.json"
    for shape in ("2048", "d64"):
        options = ["--generations", "v6e", "--passes", "train", "--shapes", shape]
        assert command.main([*options, "--json", str(path)]) == command.DONE
    rows = results.read(path).rows
    assert list(rows) == [Key("v6e", "2048", "train"), Key("v6e", "d64", "train")]
    assert rows[Key("v6e", "d64", "train")].best_block == 512


def test_the_command_says_where_the_kernel_does_not_compile(machine, capsys):
    options = ["--generations", "v5e", "--shapes", "float32,2048", "--passes", "forward"]
    assert command.main(options) == command.FAILED
    assert "float32   forward  too large" in capsys.readouterr().out
    assert machine[-1] == ("v5e", "2048", "forward", None)


def test_another_compiler_gets_the_recorded_table(machine, monkeypatch, capsys):
    monkeypatch.setattr(results, "versions", lambda: {"jax": "9.9", "libtpu": "0.1.0"})
    assert command.main([]) == command.BAD_INPUT
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert "libtpu 0.1.0 is installed" in printed.err
    assert "recorded with jax 9.9, libtpu 0.0.52" in printed.out
    assert "45.0  5.00x ( 256)" in printed.out
    assert not machine


def test_recorded_results_are_printed_without_measuring(machine, capsys):
    assert command.main(["--recorded"]) == command.DONE
    assert "45.0  5.00x ( 256)" in capsys.readouterr().out
    assert not machine


def test_results_of_other_versions_are_not_mixed(machine, tmp_path, capsys):
    path = tmp_path / "mine.json"
    results.write(path, Results({"jax": "1", "libtpu": "2"}, {}))
    assert command.main(["--json", str(path)]) == command.BAD_INPUT
    assert "was measured with jax 1, libtpu 2" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--generations", "--shapes", "--passes"])
def test_unknown_names_are_refused(option, capsys):
    with pytest.raises(SystemExit) as end:
        command.main([option, "no-such"])
    assert end.value.code == command.BAD_INPUT
    assert "'no-such' is none of" in capsys.readouterr().err
