"""The page of a run: what stands in it, and that it needs nothing else."""

import base64
import dataclasses
import re
import sys
import types

import numpy as np
import pytest

import fedjax_ht
from fedjax_ht.lab.config.base import base_config
from fedjax_ht.lab.config.entries import as_run, only, parse_entry
from fedjax_ht.lab.config.sections import ReportConfig
from fedjax_ht.lab.report import plots
from fedjax_ht.lab.report.compared import Compared, Page
from fedjax_ht.lab.report.maps import FeatureMap, save_map, write_maps
from fedjax_ht.lab.report.plots import FEW
from fedjax_ht.lab.report.report import repeat, setting, warnings, write_report
from fedjax_ht.lab.report.results import class_table
from fedjax_ht.lab.runs import environment
from fedjax_ht.lab.runs.plan import plan


def scores(accuracy):
    """Scores of clients that are alike."""
    keys = ("accuracy", "accuracy_weighted", "accuracy_worst10")
    return dict.fromkeys(keys, accuracy) | {"accuracy_std": 0.0}


def runs(*accuracies, trials=1, **columns):
    """Runs of equal rows, a round each."""
    zeros = dict.fromkeys(("uplink_payload_bytes", "downlink_payload_bytes"), 0)
    same = zeros | {"seconds_round": 1.0, "flops": 1e9} | columns
    made = []
    for trial in range(trials):
        rows = [{"round": i, "trial": trial, **scores(a)} for i, a in enumerate(accuracies)]
        made.append([{"clients": [row["accuracy"]] * 4} | row | same for row in rows])
    return made


def entries_shown(experiment, histories):
    """Equal rows of the experiment's entries."""
    entries = tuple(experiment.runs[label].entry for label in histories)
    words = {"shared": "All rows share the split.", "ended": "", "mixed": ""}
    words["made"] = "2026-11-28, fedjax_ht 0.2.0 (commit abc)"
    config = experiment.config
    return Compared(config=config, entries=entries, histories=histories, unequal={}, **words)


@pytest.fixture(scope="module")
def experiment():
    config = only(base_config(), ["local", "fedproto:weight=2.0"])
    config.partition.num_clients = 4
    config.dataset.subset = 800
    config.participation, config.training.epochs = 0.5, 3
    return plan(config)


def test_the_page_stands_by_itself(experiment, tmp_path):
    histories = {"local": runs(0.1, 0.6), "fedproto:weight=2.0": runs(0.1, 0.7, not_finite=[2])}
    (tmp_path / "fedproto:weight=2.0" / "images").mkdir(parents=True)
    (tmp_path / "fedproto:weight=2.0" / "images" / "00001.png").write_bytes(b"made")
    rng = np.random.default_rng(0)
    features, none = tuple(rng.normal(size=(2, 6, 4)).astype(np.float32)), np.zeros(0, np.int32)
    labels, trains_on = np.arange(6, dtype=np.int32), np.ones((2, 10), bool)
    prototypes = np.zeros((0, 4), np.float32)
    shown_map = FeatureMap(7, labels, np.arange(2), trains_on, features, prototypes, none)
    save_map(shown_map, tmp_path / "local")
    shown = entries_shown(experiment, histories)
    plots.write_plots(shown, experiment.dataset, experiment.partitions[0], tmp_path)
    write_maps({label: tmp_path / label for label in histories}, experiment)
    contents = Page(tuple(histories), None, "run 1 < 2")
    page = write_report(experiment, shown, contents, tmp_path).read_text()
    assert re.findall("<h2>(.*?)</h2>", page) == [
        *("Result", "Methods", "Cost", "Clients", "Data and split", "Features and prototypes"),
        *("Images made by the servers", "How to repeat it"),
    ]
    assert page.count('<tr><td>fedproto:weight=2.0</td><td class="best">70.00') == 1
    assert re.findall("<details><summary>(.*?)</summary>", page) == [
        "More columns",
        *("Differences to local, paired by trial", "local"),
        "How to read the maps",
    ]
    assert '<aside class="warning"><h3>To watch</h3>' in page
    assert not re.search(r"(src|href)=\"(?!data:)", page) and "<script" not in page
    # each once, as it was written
    drawn = [*(tmp_path / "plots").glob("*.svg"), tmp_path / "local" / "features.svg"]
    assert len(drawn) == 6 == page.count("data:image/svg+xml;base64,")
    assert all(page.count(base64.b64encode(file.read_bytes()).decode()) == 1 for file in drawn)
    assert page.count("After round 7, trial 0.") == page.count(": no map, for want") == 1
    assert page.count("data:image/png;base64,bWFkZQ==") == 1
    top, _, rest = page.partition("</header>")
    assert "2026-11-28, fedjax_ht 0.2.0 (commit abc), 0:00:04 of training" in top
    assert re.search(r"A client trains on \d+ to \d+ images of \d+ to \d+ classes", top)
    assert "Split practical, alpha 0.1, " in top and "<h1>fedproto:weight=2.0 is ahead" in top
    assert "<li>FedProto (Tan et al., AAAI 2022)" in rest and "+10.00" in rest
    assert "<pre>run 1 &lt; 2</pre>" in rest and "their origin is not recorded" in rest
    assert "not finite, excluded from the round: client 2" in rest


def test_the_page_names_the_library_and_its_commit(monkeypatch):
    """A wheel has a commit where pip built it from a repository."""
    _, library, packages, _ = repeat().splitlines()
    assert library == f"fedjax_ht {fedjax_ht.__version__} (commit {environment.commit()})"
    assert packages.startswith("jax ")
    monkeypatch.setattr(environment, "__file__", "/site-packages/fedjax_ht/lab/runs/x.py")
    built = '{"vcs_info": {"commit_id": "0123456789abcdef"}}'
    for text, commit in ((None, "unknown"), (built, "0123456789ab")):
        pip = types.SimpleNamespace(read_text=lambda name, text=text: text)
        metadata = environment.importlib.metadata
        monkeypatch.setattr(metadata, "distribution", lambda name, pip=pip: pip)
        assert environment.commit() == commit


@pytest.mark.parametrize("module", ["fedjax_ht", "experiments.main"])
def test_the_page_names_the_command(monkeypatch, module):
    """A package is run as its module __main__, and written without it."""
    spec = types.SimpleNamespace(name={"fedjax_ht": "fedjax_ht.__main__"}.get(module, module))
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
    monkeypatch.setattr(sys, "argv", ["file.py", "run", "--config=a b"])
    assert repeat().splitlines()[0] == f"python -m {module} run '--config=a b'"


def test_entries_with_a_training_of_their_own_are_named_with_it(experiment):
    faster = parse_entry("local:training.learning_rate=0.21")
    local = experiment.runs["local"]
    changed = local._replace(entry=faster, config=as_run(faster, experiment.config))
    experiment = experiment._replace(runs={"local": changed, "a": local, "b": local})
    text = setting(experiment)
    assert "Training: sgd at 0.21, batches of 10, 3 local epochs a round; entries differ" in text
    assert "in learning_rate 0.21 (local), 0.01 (a, b)." in text
    assert "Training: sgd at 0.21, batches of 10, 3 local" in setting(experiment, ["local"])
    config = as_run(parse_entry("fd:training.momentum=0.5:training.clip_norm=1.0"), local.config)
    experiment = experiment._replace(runs={"local": local._replace(config=config)})
    assert "Training: sgd at 0.01, momentum 0.5, clip_norm 1.0, batches of" in setting(experiment)


def test_options_that_change_a_result_are_named(experiment):
    config = base_config()
    config.update({"privacy.unit": "client", "privacy.noise": 4.0})
    config.robust = ("norm_bound:2.0", "median")
    text = setting(experiment._replace(config=config))
    assert (
        " Options: robust norm_bound:2.0 and median, privacy.unit client, privacy.noise 4.0."
        in text
    )
    assert "Options" not in setting(experiment)


def test_a_fall_is_pointed_at():
    assert warnings({"a": runs(0.1, 0.6, 0.59)}) == []
    (fell,) = warnings({"a": runs(0.1, 0.6, 0.5)})
    assert fell == "a: the last round is 10.0 points below the best"
    (same,) = warnings({"a": runs(0.5, 0.4, 0.49)})
    assert same == "a: the best round is 0, before training"


def test_accuracy_that_collapses_is_pointed_at_with_the_outlying_uploads():
    (rows,) = runs(0.1, 0.6, 0.1)
    rows[2]["far_off"] = [[3, 120.0]]
    _, collapsed, _ = warnings({"a": [rows]})
    assert collapsed.startswith("a: round 2 (trial 0): accuracy is 10.0 %, where an untrained fed")
    assert collapsed.endswith("; outlying uploads in round 2 of client 3")


def test_a_round_of_several_trials_is_counted_once():
    both = runs(0.1, 0.6, trials=2, not_finite=[2], server_finite=False)
    broken, kept = warnings({"a": both})
    place = "in 2 rounds, first in round 0 (trial 0)"
    assert broken == f"a: not finite, excluded from the round: client 2; {place}"
    assert kept == f"a: the server's step was not finite; its last state was kept; {place}"


def test_uploads_that_were_refused_are_pointed_at():
    (refused,) = warnings({"a": runs(0.1, 0.6, refused=[3])})
    assert refused.startswith("a: outlying uploads refused, by refuse_outliers: client 3; in 2 rou")


def test_uploads_that_came_too_late_are_pointed_at():
    (rows,) = runs(0.1, 0.6, 0.6)
    rows[1]["late"], rows[2]["late"] = [7, 2], [2]
    (late,) = warnings({"a": [rows]})
    assert late == "a: uploads of clients 2, 7 came after the deadline in 2 rounds and were lost"
    rows[2]["arrived_late"] = [7]
    (late,) = warnings({"a": [rows]})
    assert late.endswith("came after the deadline in 2 rounds and arrived in a later round")
    del rows[2]["late"]
    (late,) = warnings({"a": [rows]})
    assert " after the deadline in 1 round and " in late


def test_a_client_far_from_the_others_is_named():
    (rows,) = runs(0.5, 0.6)
    assert warnings({"a": [rows]}) == []
    rows[1]["clients"] = [0.6, 0.62, 0.61, 0.1, 0.63, 0.64, 0.7, None]
    (far,) = warnings({"a": [rows]})
    assert far == "a: far lower accuracy than the others: client 3 (10 %)"
    for row in rows:
        row["client_ids"] = [10, 11, 12, 13, 14, 15, 16, 17]
    rows[1]["clients"][6] = 0.99
    less, more = warnings({"a": [rows]})
    assert less.startswith("a: far lower accuracy than the others: client 13 (10 %)")
    assert more.startswith("a: far higher accuracy than the others: client 16 (99 %)")
    other, rows = runs(0.5, 0.6)[0], [row | {"trial": 1} for row in rows]
    less, more = warnings({"a": [other, rows]})
    assert less.startswith("a: far lower accuracy than the others in trial 1: client 13 (10 %)")


def test_accuracy_by_class_is_that_of_the_best_rounds():
    shares = [[0.1, None, 0.2], [0.5, None, 0.25]]
    first, second = runs(0.1, 0.6, trials=2)
    for row, of_run in ((first[1], shares[0]), (second[1], shares[1])):
        row["class_accuracy"] = of_run
    table = class_table({"a": [first, second], "older": runs(0.1)}, ("cat", "dog", "owl"))
    assert table.head == ["class", "a"]
    assert table.rows == [["cat", "30.0"], ["dog", "-"], ["owl", "22.5"]]
    assert class_table({"older": runs(0.1)}, ("cat",)).rows == []


def page_of(experiment, histories, folder):
    shown = entries_shown(experiment, histories)
    plots.write_plots(shown, experiment.dataset, experiment.partitions[0], folder)
    return write_report(experiment, shown, Page((), None, ""), folder).read_text()


def test_many_entries_are_counted_in_the_title(experiment, tmp_path, blank_pictures):
    histories = {str(i): runs(0.1, 0.6) for i in range(FEW + 1)}
    local, arms = experiment.runs["local"], {}
    for label in histories:
        arms[label] = local._replace(entry=local.entry._replace(label=label))
    page = page_of(experiment._replace(runs=arms), histories, tmp_path)
    assert "<title>5 entries on fashion_mnist_10k</title>" in page and "To watch" not in page


def test_a_report_without_maps_has_no_word_of_them(experiment, tmp_path, blank_pictures):
    config = dataclasses.replace(experiment.config, report=ReportConfig(maps="none"))
    experiment = experiment._replace(config=config)
    assert "Features" not in page_of(experiment, {"local": runs(0.1, 0.6)}, tmp_path)
