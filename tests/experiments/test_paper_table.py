"""The table of many runs beside published numbers, from runs written by hand."""

import csv
import json

import pytest

from experiments.paper_table import find_runs, markdown, read_published, tops, write_evaluations


def write_run(folder, method, seed, accuracies, options=(), **more):
    """A run of one trial with its evaluations; `more` are other scores by name."""
    (folder / method).mkdir(parents=True)
    config = {"seed": seed, "dataset": {"name": "digits", "data_dir": str(folder)}}
    config |= {"checkpoint": {"every": seed}, "partition": {"seed": seed}}
    config["method"] = {"name": method, "options": dict(options)}
    (folder / "config.json").write_text(json.dumps(config))
    with (folder / method / "metrics.jsonl").open("w") as file:
        for number, accuracy in enumerate(accuracies):
            row = {"round": number, "trial": 0, "accuracy": accuracy, "uplink_payload_bytes": 1024 * (number > 0)}
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


def cells(text, method):
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {method} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_run_is_named_by_what_most_runs_of_its_method_do_not_share(runs):
    assert [run.method for run in runs] == ["fedktl", "fedktl", "fedktl mu=0.0", "dfrd"]


def test_seeds_are_pooled_and_compared_with_what_is_published(runs, tmp_path):
    published = tmp_path / "published.csv"
    published.write_text("dataset,method,accuracy,source\ndigits,fedktl,60,a\ndigits,dfrd,,b\n")
    text = markdown(runs, read_published(str(published)), "accuracy")
    assert cells(text, "fedktl") == [
        *("fedktl", "70.00 ± 10.00", "60.00 ± 10.00", "65.00 ± 15.00", "-", "1, 2", "2", "60", "+10.00", "1.00 KiB")
    ]
    assert cells(text, "fedktl mu=0.0")[1:3] == ["40.00", "-"]
    assert cells(text, "dfrd")[4:8] == ["50.00", "1", "1", "no convergence"]


def test_another_score_leaves_out_the_runs_without_it(runs):
    text = markdown(runs, read_published(None), "global_accuracy_head")
    assert "fedktl" not in text
    assert cells(text, "dfrd")[1:6] == ["50.00", "-", "50.00", "30.00", "2"]
    assert not tops(runs[:1], "global_accuracy_head")


def test_every_evaluation_is_a_row(runs, tmp_path):
    write_evaluations(runs, tmp_path / "all.csv")
    with (tmp_path / "all.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    assert (rows[4]["method"], rows[4]["seed"], rows[4]["accuracy"], rows[4]["uplink_bytes"]) == (
        *("fedktl", "1", "0.7", "1024"),
    )


def test_rounds_after_a_number_do_not_count(runs, tmp_path):
    assert [len(run.history) for run in find_runs(tmp_path, 1)] == [2] * 4
    assert cells(markdown(find_runs(tmp_path, 1), {}, "accuracy"), "fedktl")[1] == "65.00 ± 5.00"
