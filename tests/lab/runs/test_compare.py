"""The comparison of methods: its numbers from histories by hand, and the whole command."""

import csv
import itertools
import json
import math

import pytest

from fedjax_ht.lab.config.base import base_config, method_config, typed_config
from fedjax_ht.lab.config.entries import changes, entries_of
from fedjax_ht.lab.report.document import human_flops
from fedjax_ht.lab.report.results import (
    Aim,
    cells_of,
    choose_target,
    cost_to_reach,
    costs,
    run_results,
    scored,
    write_csv,
)
from fedjax_ht.lab.report.rows import ACCURACY, Score, rows_of_all
from fedjax_ht.lab.runs.compare import comparison
from fedjax_ht.lab.runs.plan import fitting
from fedjax_ht.methods import METHODS
from fedjax_ht.simulation.history import wire_bytes
from tests.runs import config_of


def runs(*scores, payload=100, flops=1e9, **columns):
    """Rows of runs given by their accuracies per round, None where a round was not evaluated.

    `columns` have a value a round.
    """
    made = []
    for trial, accuracies in enumerate(scores):
        rows = []
        for number, accuracy in enumerate(accuracies):
            row = {"round": number, "trial": trial}
            row |= {"seconds_round": float(number), "seconds_evaluation": 0.5}
            if number:
                row |= {"uplink_payload_elements": payload // 4, "arrived": 5, "participants": 10}
                row |= {"uplink_payload_bytes": payload, "flops": flops}
                row |= {"uplink_metadata_bytes": 4 * (payload > 0)}
                row |= {"downlink_payload_bytes": 2 * payload, "downlink_metadata_bytes": 0}
            row |= {name: values[number] for name, values in columns.items()}
            rows.append(row | ({} if accuracy is None else {"accuracy": accuracy}))
        made.append(rows)
    return made


def test_the_cost_counts_every_round_through_the_evaluation_that_reaches_the_target():
    (rows,) = runs([0.1, 0.2, None, 0.6, 0.5])
    assert cost_to_reach(rows, 0.55) == cost_to_reach(rows, 0.6) == (3, 3 * 304, 3e9, 3 * 5, 3e8)
    # 25 numbers of five uplinks; ten computed
    assert cost_to_reach(rows, 0.15) == (1, 304, 1e9, 5, 1e8)
    assert cost_to_reach(rows, 0.1) == (0, 0, 0, 0, 0)
    assert cost_to_reach(rows, 0.61) is None
    assert math.isnan(cost_to_reach([row for row in rows if row.pop("flops", 1)], 0.6).flops)
    assert human_flops(math.nan) == "-" and human_flops(2.5e12) == "2.50 TFLOP"
    assert human_flops(12) == "12 FLOP"


def test_the_default_target_is_what_every_trial_of_every_method_reaches():
    histories = {
        "a": runs([0.1, 0.7, 0.6], [0.1, 0.4, 0.65]),
        "b": runs([0.1, 0.5, 0.8], [0.1, 0.9, 0.2]),
    }
    target, origin = choose_target(histories, ACCURACY, None, None)
    assert target == 0.65 and "lowest best" in origin
    assert [len(scored(entry, target).reaching) for entry in histories.values()] == [2, 2]
    assert choose_target(histories, ACCURACY, 0.3, None) == (0.3, "as asked")


def test_a_target_may_be_a_share_of_the_best_and_of_the_participants():
    """Participants are scored in every round, evaluated or not."""
    histories = {"a": runs([0.1, None, 0.6]), "b": runs([0.1, 0.5, 0.8])}
    share = "0.5 of 80.00 %, the best of all trials"
    assert choose_target(histories, ACCURACY, None, 0.5) == (0.4, share)
    with pytest.raises(ValueError, match="--target_score is 'accuracy_participants'"):
        choose_target(histories, Score("accuracy_participants"), None, None)
    for name, drawn in (("a", (0.7, 0.9)), ("b", (1.0, 0.6))):
        for row, accuracy in zip(histories[name][0][1:], drawn):
            row["accuracy_participants"] = accuracy
    score = Score("accuracy_participants")
    target, _ = choose_target(histories, score, None, 0.6)
    assert target == pytest.approx(0.6)
    lines = [scored(entry, target, score).cost.rounds for entry in histories.values()]
    assert lines == [1, 1] and cost_to_reach(*histories["a"], 0.6).rounds == 2


def test_a_line_is_a_mean_over_trials():
    line = scored(runs([0.1, 0.6, 0.8, 0.7], [0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.9, 0.7]), 0.5)
    cells = cells_of(line, ACCURACY)
    assert cells["accuracy"] == pytest.approx(0.7)
    assert cells["accuracy_std"] == pytest.approx(math.sqrt(0.14 / 3))
    assert cells["best_rounds"] == "2 3 2" and cells["reached"] == 2
    assert line.cost == (1.5, 1.5 * 304, 1.5e9, 1.5 * 5, 1.5e8)
    # the program's, not each trial's
    assert cells["seconds_per_round"] == 2 and cells["seconds"] == 0 + 1 + 2 + 3 + 4 * 0.5


def test_the_table_says_who_did_not_get_there(tmp_path):
    histories = {"some": runs([0.1, 0.9], [0.1, 0.2]), "none": runs([0.1, 0.3])}
    histories["all"] = runs([0.1, 0.9])
    lines = {name: scored(entry, 0.8) for name, entry in histories.items()}
    text = costs(histories, Aim(target=0.8))[-1].markdown()
    assert text.startswith("Target: 80.00 % (as asked).\n")
    some = "1 (1 of 2 trials) | 304 B | 1.00 GFLOP | 5 | 100.00 MFLOP | 1.00 | 2 |"
    assert f"| some | 55.00 ± 35.00 | 1, 1 | {some}" in text
    assert "participants" not in text.split("Accuracies")[0]
    assert "| none | 30.00 | 1 |" + " not reached |" * 5 + " 1.00 | 2 |" in text
    assert "| all | 90.00 | 1 | 1 | 304 B | 1.00 GFLOP | 5 | 100.00 MFLOP | 1.00 | 2 |" in text
    rows = list(csv.DictReader(write_csv(lines, 0.8, tmp_path / "x.csv").open()))
    assert [row["bytes_to_target"] for row in rows] == ["304.0", "", "304.0"]
    assert rows[0]["best_rounds"] == "1 1" and rows[0]["target"] == "0.8"
    assert rows[0]["reached"] == "1"


def tables(histories):
    """Lines by entry, the table of a comparison and that of a run, from the same rows."""
    for row in (row for row in rows_of_all(histories) if "accuracy" in row):
        row |= {"accuracy_std": 0.0, "accuracy_weighted": row["accuracy"], "accuracy_worst10": 0.0}
    lines, _, text = costs(histories, Aim(target=0.2))
    return lines, text.markdown(), run_results(histories).markdown()


def test_a_model_on_the_server_has_a_column_of_its_own():
    """The server's best round need not be the clients'; without a model there is a dash."""
    trained = runs([0.1, 0.9, 0.2], [0.1, 0.9, 0.2])
    for row, score in zip(itertools.chain(*trained), (0.1, 0.3, 0.7, 0.2, 0.4, 0.6)):
        row["global_accuracy_head"] = score
    _, compared, text = tables({"with": trained, "without": runs([0.1, 0.3, 0.3])})
    assert "| method | accuracy % | server's model % | best round |" in compared
    assert "| with | 90.00 ± 0.00 | 65.00 ± 5.00 | 1, 1 |" in compared
    assert "| without | 30.00 | - | 1 |" in compared
    assert "| accuracy % | server's model % | ± clients |" in text
    assert "| with | 90.00 ± 0.00 | 65.00 ± 5.00 | 0.00 |" in text
    assert "| without | 30.00 | - | 0.00 |" in text


def test_the_participants_score_is_the_highest_of_all_rounds_and_says_so():
    """Rounds without an evaluation count, too."""
    trained = runs([0.1, None, 0.2], [0.1, None, 0.2])
    for (_, *rows), scores in zip(trained, ((0.9, 0.3), (0.5, 0.6))):
        for row, score in zip(rows, scores):
            row["accuracy_participants"] = score
    lines, compared, text = tables({"with": trained, "without": runs([0.1, 0.3, 0.3])})
    cells = cells_of(lines["with"], ACCURACY)
    assert cells["participants_accuracy"] == 0.75 and cells["accuracy"] == 0.2
    assert "| with | 20.00 ± 0.00 | 75.00 ± 15.00 | 2, 2 |" in compared
    assert "| without | 30.00 | - | 1 |" in compared
    assert "| with | 20.00 ± 0.00 | 75.00 ± 15.00 | 0.00 |" in text
    for table in (compared, text):
        assert "biased upwards" in " ".join(table.split())


def test_macro_f1_stands_beside_the_accuracy_of_its_round(tmp_path):
    """Rows of an earlier version have none: a dash, and an empty place in no mean."""
    trained = runs([0.1, 0.9, 0.2], [0.1, 0.7, 0.8])
    for row in itertools.chain(*trained):
        row |= {"macro_f1": row["accuracy"] / 2, "auc": 0.75}
    older = [[{k: v for k, v in row.items() if k not in ("macro_f1", "auc")} for row in trained[0]]]
    lines, text, shown = tables({"with": trained, "without": older})
    assert "| with | 85.00 ± 5.00 | 42.50 ± 2.50 | 75.00 ± 0.00 | 1, 2 |" in text
    assert "| without | 90.00 | - | - | 1 |" in text
    assert '"AUC": the area under the ROC curve of a class' in text
    assert '"macro F1": the mean F1 score of a client' in text
    first, second = csv.DictReader(write_csv(lines, 0.2, tmp_path / "x.csv").open())
    assert float(first["macro_f1"]) == pytest.approx(0.425) and second["macro_f1"] == "nan"
    assert float(first["auc"]) == pytest.approx(0.75) and second["auc"] == "nan"
    assert "| weighted % | macro F1 % | AUC % | best round |" in shown
    assert "| 42.50 ± 2.50 | 75.00 ± 0.00 | 1, 2 |" in shown


def test_bytes_of_one_way_or_both():
    row = runs([0, 0])[0][1]
    assert [wire_bytes(row, *way) for way in (("uplink",), ("downlink",), ())] == [104, 200, 304]


def test_named_methods_are_as_in_their_papers():
    config = base_config()
    config.method = method_config("fedtgp", tau=3.0)
    config.entries = ("fedproto",)
    chosen = comparison(typed_config(config), ["local", "fedtgp"], 3)
    assert [(e.label, changes(e)) for e in entries_of(chosen)] == [("local", {}), ("fedtgp", {})]
    assert chosen.trials == 3
    same = entries_of(comparison(typed_config(config), None, None))
    assert [(e.label, changes(e)) for e in same] == [("fedtgp", {"tau": 3.0}), ("fedproto", {})]
    assert config.trials == 1 and config.entries == ("fedproto",)  # the argument stays


@pytest.mark.parametrize(
    "methods, message", [([], "at least one"), (["local", "local"], "each once"), (["x"], "'x'")]
)
def test_methods_that_cannot_be_compared(methods, message):
    with pytest.raises(ValueError, match=message):
        comparison(typed_config(base_config()), methods, None)


def test_all_methods_can_be_named_at_once():
    assert comparison(typed_config(base_config()), ["all"], None).entries == tuple(METHODS)


def test_entries_that_do_not_fit_are_left_out_with_the_reason(tiny_config):
    config = typed_config(config_of(tiny_config))  # two architectures, and no public set
    lines = []
    entries = ["local", "fedtgp:tau=2.0", "fedmd", "heterofl", "fedprox"]
    kept = fitting(comparison(config, entries, None), lines.append)
    assert kept.entries == ("local", "fedtgp:tau=2.0", "fedprox")
    public, sliced = lines
    assert public.startswith("fedmd is left out: fedmd needs a public set")
    assert sliced.startswith("heterofl is left out: heterofl trains slices")
    config.method, config.entries = method_config("fedtgp", tau=2.0), ("fedmd",)
    (entry,) = entries_of(fitting(config, lines.append))
    assert entry.label == "fedtgp" and entry.options["tau"] == 2.0
    with pytest.raises(ValueError, match=r"^no entry fits; fedmd is left out: .* public set"):
        fitting(comparison(config, ["fedmd"], None), print)


def test_the_command_compares_and_goes_on(run_module, tiny_config, tmp_path):
    workdir = tmp_path / "run"

    def run(*arguments):
        shared = f"--config={tiny_config}", f"--workdir={workdir}", "--config.report.maps=none"
        done = run_module("compare", *shared, *arguments)
        assert done.returncode == 0, done.stderr
        costs = done.stdout.partition("| entry |")[0]
        table = [line for line in costs.splitlines() if line.startswith("|")]
        return done, {line.split("|")[1].strip(): line for line in table}

    first, table = run("--methods=local", "--config.rounds=1", "--target=0.01")
    assert list(table) == ["method", "---", "local"] and "Target: 1.00 %" in first.stdout
    rows = (workdir / "local" / "metrics.jsonl").read_text()
    # Another entry joins; those that have run are taken as they are.
    both, more = run("--methods=local,lg_fedavg", "--config.rounds=1")
    assert list(more) == ["method", "---", "local", "lg_fedavg"]
    assert more["local"].split("|")[2:4] == table["local"].split("|")[2:4]
    assert (workdir / "local" / "metrics.jsonl").read_text() == rows
    assert "(the lowest best accuracy of all trials, which all reach)" in both.stdout
    assert "| 0 B |" in more["local"] and "FLOP |" in more["local"]
    assert "| lg_fedavg | " in both.stdout.partition("| entry |")[2]
    assert "* local: every client trains alone; it has no options" in both.stdout
    for name in ("compare.md", "compare.csv", "lg_fedavg/metrics.csv"):
        assert (workdir / name).stat().st_size > 0
    # the page has the comparison's table
    assert "<p>Target: " in (workdir / "report.html").read_text()
    lines = (workdir / "lg_fedavg" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line).get("flops", 0) > 0 for line in lines] == [False, True]
