"""The table of many runs beside published numbers, from runs written by hand."""

import json

import numpy as np
import pytest

from experiments import evaluations
from experiments.paper_table import find_runs, tables
from tests.experiments.folders import read_csv

SGD, ADAM = (
    {"optimizer": name, "learning_rate": rate, "beta1": 0.9}
    for name, rate in (("sgd", 0.01), ("adam", 1e-4))
)


def write_run(folder, method, seed, accuracies, options=(), training=SGD, **more):
    """A run of one trial with its evaluations; `more` are other scores by name."""
    (folder / method).mkdir(parents=True)
    config = {"seed": seed, "dataset": {"name": "digits", "data_dir": str(folder)}}
    config |= {"checkpoint": {"every": seed}, "partition": {"seed": seed}}
    config["training"], config["run"] = training, {"version": 1, "split": f"of seed {seed}"}
    config["method"] = {"name": method, "options": dict(options)}
    (folder / "config.json").write_text(json.dumps(config))
    with (folder / method / "metrics.jsonl").open("w") as file:
        for number, accuracy in enumerate(accuracies):
            row = {"round": number, "trial": 0, "accuracy": accuracy}
            row |= {"uplink_payload_bytes": 1024 * (number > 0)}
            row |= {name: values[number] for name, values in more.items()}
            file.write(json.dumps(row) + "\n")


@pytest.fixture
def runs(tmp_path):
    def add(name, *rest, **more):
        write_run(tmp_path / name, *rest, **more)

    add("a0", "fedktl", 0, [0.1, 0.6, 0.5], {"mu": 50.0}, val_accuracy=[0.1, 0.2, 0.3])
    add("a1", "fedktl", 1, [0.1, 0.7, 0.8], {"mu": 50.0}, val_accuracy=[0.1, 0.4, 0.2])
    add("b", "fedktl", 0, [0.1, 0.2, 0.4], {"mu": 0.0})
    add("c", "dfrd", 0, [0.1, 0.3, 0.2], global_accuracy_head=[0.0, 0.4, 0.5])
    return find_runs(tmp_path)


def table(folder, runs, score="accuracy", published_score="", published=""):
    """The tables of runs by a CSV that is written for them."""
    evaluations.write_evaluations(runs, folder / "table.csv")
    options = {"score": score, "published": published, "published_score": published_score}
    return tables(folder / "table.csv", runs, **options)


@pytest.fixture
def published(tmp_path):
    """A file of published numbers."""
    file = tmp_path / "published.csv"
    head = "dataset,method,accuracy,source"
    file.write_text(f"{head}\ndigits,fedktl,60,a\ndigits,dfrd,,b\ndigits,local,80,c\n")
    return str(file)


def test_a_course_that_was_set_aside_is_no_run(tmp_path):
    write_run(tmp_path / "a", "local", 0, [0.1, 0.4])
    (tmp_path / "a" / "local" / "set_aside_1").mkdir()
    (tmp_path / "a" / "local" / "set_aside_1" / "metrics.jsonl").write_text("{}")
    assert len(find_runs(tmp_path)) == 1


def test_published_numbers_can_be_of_the_participants_score(tmp_path, published):
    """The participants' score is the highest of all rounds, and the difference is to it."""
    for seed, drawn in ((0, [0.0, 0.8, 0.7]), (1, [0.0, 0.6, 0.9])):
        write_run(tmp_path / str(seed), "local", seed, [0.1, 0.4, 0.5], accuracy_participants=drawn)
    runs = find_runs(tmp_path)
    text = table(tmp_path, runs, "accuracy", "accuracy_participants", published)
    assert "| method | participants, best % | all clients, best % |" in text
    assert "biased upwards" in text
    row = "85.00 ± 5.00 | 50.00 ± 0.00 | 2 | 2 | 80.00 | +5.00"
    assert cells(text, "local")[1:] == row.split(" | ")
    evaluations.write_evaluations(runs, tmp_path / "x.csv")
    rows = read_csv(tmp_path / "x.csv")
    assert [row["best_participants"] for row in rows if row["seed"] == "0"] == ["0", "0.8", "0.8"]


def test_runs_of_an_earlier_table_count_as_well(tmp_path):
    for seed in (0, 1):
        drawn = {"val_accuracy": [0.1, 0.2, 0.3], "accuracy_participants": [0.0, 0.8, 0.7]}
        drawn["accuracy_participants_head"] = [0.0, 0.6, 0.9 + seed / 100]
        write_run(tmp_path / str(seed), "fedproto", seed, [0.1, 0.5, 0.4], **drawn)
    runs = find_runs(tmp_path)
    evaluations.write_evaluations(runs[:1], tmp_path / "earlier.csv")
    again = evaluations.read_evaluations(tmp_path / "earlier.csv") + runs[1:]
    assert table(tmp_path, again) == table(tmp_path, runs)
    evaluations.write_evaluations(again[:1], tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_text() == (tmp_path / "earlier.csv").read_text()


def cells(text, method):
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {method} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_run_is_named_by_what_most_runs_of_its_method_do_not_share(runs):
    assert [run.method for run in runs] == ["fedktl", "fedktl", "fedktl mu=0.0", "dfrd"]


def test_options_are_named_against_their_defaults_whatever_most_runs_have(tmp_path):
    """So that a row keeps its name when other runs join the table."""
    for number, options in enumerate(({"mu": 0.0}, {"mu": 0.0}, {"mu": 0.5})):
        write_run(tmp_path / str(number), "fedssa", number, [0.5], options=options)
    expected = ["fedssa mu=0.0", "fedssa mu=0.0", "fedssa"]
    assert [run.method for run in find_runs(tmp_path)] == expected


def test_a_row_that_joins_an_earlier_table_is_named_as_it_would_be_there(tmp_path):
    """Alone nothing sets it apart."""
    for name, options in (("a", {"mu": 0.0}), ("b", {"mu": 0.5})):
        write_run(tmp_path / "earlier" / name, "fedssa", 0, [0.5], options=options)
    write_run(tmp_path / "new" / "c", "fedssa", 1, [0.5], options={"mu": 0.0})
    assert [run.method for run in find_runs(tmp_path / "new")] == ["fedssa"]
    (joined,) = find_runs(tmp_path / "new", earlier=find_runs(tmp_path / "earlier"))
    assert joined.method == "fedssa mu=0.0"


def test_another_optimizer_than_most_runs_of_the_dataset_have_is_named(tmp_path):
    """Also a method that has it in all its runs; such runs are not pooled with others."""
    for name, method, training in (
        *(("a", "fedktl", SGD), ("b", "local", SGD), ("c", "dfrd", SGD | {"learning_rate": 0.1})),
        *(("d0", "fedclassavg", ADAM), ("d1", "fedclassavg", ADAM | {"beta1": 0.5})),
        *(("e", "local", ADAM), *((f"f{seed}", "fedssa", SGD) for seed in range(3))),
    ):
        write_run(tmp_path / name, method, int(name[1:] or 0), [0.5], training=training)
    adam = "optimizer=adam learning_rate=0.0001"
    assert [run.method for run in find_runs(tmp_path)] == [
        *("fedktl", "local", "dfrd learning_rate=0.1", f"fedclassavg {adam}"),
        *(f"fedclassavg {adam} beta1=0.5", f"local {adam}", "fedssa", "fedssa", "fedssa"),
    ]


def test_seeds_are_pooled_and_compared_with_what_is_published(runs, tmp_path, published):
    text = table(tmp_path, runs, published=published)
    row = "70.00 ± 10.00 | 65.00 ± 15.00 | - | 2 | 2 | 60.00 | +10.00"
    assert cells(text, "fedktl")[1:] == row.split(" | ")
    assert cells(text, "fedktl mu=0.0")[1:3] == ["40.00", "40.00"]
    assert cells(text, "dfrd")[3:] == ["50.00", "2", "1", "no convergence", ""]
    assert "Rows of the paper that were not run in this form: local 80.00." in text


def test_another_score_leaves_out_the_runs_without_it(runs, tmp_path):
    text = table(tmp_path, runs, "global_accuracy_head")
    assert "fedktl" not in text
    assert cells(text, "dfrd")[1:] == ["50.00", "50.00", "30.00", "2", "1"]
    assert not evaluations.tops(runs[:1], "global_accuracy_head")


def test_rounds_after_a_number_do_not_count(runs, tmp_path):
    assert [len(run.history) for run in find_runs(tmp_path, 1)] == [2] * 4
    assert cells(table(tmp_path, find_runs(tmp_path, 1)), "fedktl")[1] == "65.00 ± 5.00"


def test_curves_are_means_over_the_evaluations_that_all_runs_have(tmp_path):
    write_run(tmp_path / "a", "local", 0, [0.1, 0.4, 0.5])
    write_run(tmp_path / "b", "local", 1, [0.3, 0.6])
    write_run(tmp_path / "c", "fedssa", 0, [0.2, 0.9], accuracy_head=[0.3, 0.8])
    (axes,) = evaluations.curves(find_runs(tmp_path), "accuracy").axes
    lines = {line.get_label(): line for line in axes.lines}
    np.testing.assert_allclose(lines["local"].get_xydata(), [[0, 20], [1, 50]])
    np.testing.assert_allclose(lines["fedssa"].get_ydata(), [20, 90])
    (axes,) = evaluations.curves(find_runs(tmp_path), "accuracy_head").axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["fedssa"]
