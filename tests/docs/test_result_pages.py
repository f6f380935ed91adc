"""Pages of results: the tables written by hand have the numbers of the committed CSVs."""

import statistics
from collections import defaultdict
from pathlib import Path

import pytest

from experiments import leaks_table
from experiments.rows import read_rows
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.report import FAR_OFF
from tests.experiments.folders import read_csv

RESULTS = Path(__file__).resolve().parents[2] / "experiments" / "results"


def percents(file: str, score: str, dataset: str) -> dict[str, list[dict[int, float]]]:
    """Reads method -> runs, in the order of their seeds, each round -> the score in percent."""
    scores = defaultdict(lambda: defaultdict(dict))
    for row in read_csv(RESULTS / file):
        if row["dataset"] == dataset and row[score]:
            scores[row["method"]][int(row["seed"])][int(row["round"])] = 100 * float(row[score])
    return {method: [runs[seed] for seed in sorted(runs)] for method, runs in scores.items()}


def section(page: str, heading: str) -> list[list[str]]:
    """Reads the cells of a section's rows."""
    text = (RESULTS / page).read_text(encoding="utf-8").split(f"# {heading}")[1].split("\n#")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def highest(run: dict[int, float]) -> float:
    return max(run.values())


def late(run: dict[int, float]) -> float:
    """Averages the evaluations in the last third of the rounds."""
    return statistics.mean(value for r, value in run.items() if 3 * r > 2 * max(run))


def last_three(run: dict[int, float]) -> float:
    return statistics.mean(run[r] for r in sorted(run)[-3:])


# Measures of several runs, each as the cells of a table.


def at(*rounds: int, digits: int = 2):
    """Writes the means over runs at these rounds."""
    return lambda runs: [f"{statistics.mean(run[r] for run in runs):.{digits}f}" for r in rounds]


def each(measure, digits: int = 2):
    """Writes one number a run."""
    return lambda runs: [f"{measure(run):.{digits}f}" for run in runs]


def spread(measure):
    """Writes the mean over runs, and their deviation."""

    def cell(runs):
        values = list(map(measure, runs))
        return [f"{statistics.mean(values):.2f} ± {statistics.pstdev(values):.2f}"]

    return cell


def by_seed(measure):
    """Writes a number of each run into one cell."""
    return lambda runs: [", ".join(f"{measure(run):.2f}" for run in runs)]


FIFTY = at(5, 10, 20, 30, 40, 50)
HUNDRED, DIRICHLET = at(*range(10, 101, 10)), at(50, 100, 200, 300, 400, 500)
THIRTY = (at(5, 10, 15, 20, 25, 30), spread(last_three), spread(highest))
BEST, ONE = spread(highest), each(highest)
HEADS = ("accuracy_head", BEST)
SEEDS = (FIFTY, each(highest), BEST, spread(late))
SEARCHED = (at(100, 200, 300, 500), BEST, spread(late))
PARTICIPANTS = ("best_participants", BEST, by_seed(highest))
CIFAR, FASHION, TINY = "cifar10", "fashion_mnist", "npz:tiny_imagenet_32.npz"
HELD_OUT, FEDRAL = "fashion_mnist held-out", "fedral blocks=100 learning_rate=0.3"
PAIR = [("FedProto", "fedproto"), ("FedTGP", "fedtgp")]
RELEASED = [(label, f"{name} variant=released") for label, name in PAIR]
OWN = [(label, f"{name} shared_init=false") for label, name in RELEASED]
MU = [("local", "local"), ("mu 0", "fedktl mu=0.0"), ("mu 4", "fedktl mu=4.0"), ("mu 50", "fedktl")]
TABLES = [  # page, heading, CSV, data set, (score, measures) in their order, [(row, method)]
    ("fedtgp", "CIFAR-10, Dirichlet(0.1)", "fedktl", CIFAR, [("accuracy", FIFTY, BEST), HEADS],
     [("local", "local"), *PAIR]),
    ("fedtgp", "The authors' form, three", "cifar10_shared", CIFAR, [("accuracy", *SEEDS)],
     [("local", "local"), ("FedKTL", "fedktl")]),
    ("fedtgp", "The authors' form, three", "cifar10_shared", CIFAR, [("accuracy", *SEEDS), HEADS],
     PAIR),
    ("fedtgp", "The form and the first", "fedtgp_forms", CIFAR,
     [("accuracy", FIFTY, ONE), ("accuracy_head", ONE)], [*RELEASED, *OWN, *PAIR]),
    ("fedtgp", "The authors' form on all", "fedtgp_all_images", CIFAR,
     [("accuracy", HUNDRED, ONE), ("accuracy_head", ONE)], RELEASED),
    ("fedtgp", "What each part is worth", "fedtgp_parts", CIFAR,
     [("accuracy", at(10, 20, 30, 40, 50), BEST, spread(late)), HEADS],
     [("no margin", "fedtgp margin=0.0"), ("margin fixed at 100", "fedtgp margin=100.0"),
      ("no F", "fedtgp use_f=false"), ("tau 1", "fedtgp tau=1.0"), ("tau 10", "fedtgp tau=10.0"),
      ("tau 1,000", "fedtgp tau=1000.0"), ("1 server epoch", "fedtgp server_epochs=1"),
      ("10 server epochs", "fedtgp server_epochs=10"), *PAIR]),
    *[("fedtgp", "Swings", "fedtgp_ten_clients", CIFAR,
       [(score, at(10, *range(20, 241, 20), digits=1), each(highest, digits=1),
         each(late, digits=1))], rows)
      for score, rows in (
          ("accuracy", [(f"{label}, by the nearest prototype", name) for label, name in PAIR]),
          ("accuracy", [("local training", "local")]),
          ("accuracy_head", [(f"{label}, own heads", name) for label, name in PAIR]))],
    ("fedktl", "What each part is worth", "fedktl_ablations", TINY, [("accuracy", *THIRTY)],
     [("FedKTL", "fedktl"), ("-L_M", "fedktl mu=0.0"), ("-L_MSE", "fedktl mse_weight=0.0"),
      ("-L_MMD", "fedktl mmd_weight=0.0"), ("-ETF", "fedktl classifier=head"),
      ("-Qbar", "fedktl transfer=images"), ("scale 1", "fedktl scale=1.0 margin=0.0")]),
    ("fedktl", "Weights of the transfer", "fedktl_mu", TINY, [("accuracy", *THIRTY)], MU),
    ("fedktl", "Two images of each of a", "fedktl_two_shots", TINY,
     [("accuracy", at(10, 20, 40, 60, 80, 100), *THIRTY[1:])], MU),
    ("class_shares", "Fashion-MNIST: 500 rounds", "class_shares_shared", FASHION,
     [("accuracy_global", BEST)], [("FedRAL, by the global A", "fedral")]),
    ("class_shares", "CIFAR-10: 200 rounds", "class_shares_shared", CIFAR,
     [("accuracy_global", BEST)], [("... by the global A", "fedral")]),
    ("class_shares", "FedRAL's blocks", "fedral_blocks", FASHION,
     [("accuracy", at(20, 40, 60, 80, 100)), ("accuracy_global", at(100)),
      ("best_participants", ONE)],
     [("one block: all of A (ablation B)", "fedral blocks=1"), ("10 blocks", "fedral blocks=10"),
      ("10 blocks, a mean without weights (ablation C)", "fedral blocks=10 weighting=uniform"),
      ("50 blocks: the diagonal", "fedral blocks=50")]),
    *[("class_shares", "Dirichlet(0.4): 500 rounds", "class_shares_dirichlet", dataset,
       [("accuracy", DIRICHLET), ("best_participants", ONE)],
       [(f"{name}: local", "local"), ("FedRAL, own A", "fedral")])
      for dataset, name in ((FASHION, "Fashion-MNIST"), (CIFAR, "CIFAR-10"))],
    *[("class_shares", "Dirichlet(0.4): 500 rounds", "class_shares_dirichlet", dataset,
       [("accuracy_global", DIRICHLET)], [("FedRAL, global A", "fedral")])
      for dataset in (FASHION, CIFAR)],
    ("class_shares", "CIFAR-10: 500 rounds", "class_shares_searched", CIFAR,
     [("accuracy", *SEARCHED), PARTICIPANTS],
     [("FedSSA", "fedssa"), ("LG-FedAvg", "lg_fedavg"), ("local", "local"),
      ("FedRAL, 10 blocks", "fedral blocks=10"), ("FedRAL, 100 blocks", "fedral blocks=100"),
      ("FedProto, nearest of all prototypes", "fedproto learning_rate=0.03")]),
    ("class_shares", "CIFAR-10: 500 rounds", "class_shares_searched", CIFAR,
     [("accuracy_head", *SEARCHED), ("best_participants_head", BEST, by_seed(highest))],
     [("... clients' own heads", "fedtgp")]),
    ("class_shares", "CIFAR-10, Dirichlet(0.4): batch", "class_shares_dirichlet_searched", CIFAR,
     [("accuracy", *SEARCHED), PARTICIPANTS],
     [("FedSSA", "fedssa"), ("local", "local"), ("FedRAL, 100 blocks, at 0.3", FEDRAL)]),
    ("class_shares", "CIFAR-10, Dirichlet(0.4): batch", "class_shares_dirichlet_searched", CIFAR,
     [("accuracy_global", *SEARCHED), ("best_participants_global", BEST, by_seed(highest))],
     [("... by the global A", FEDRAL)]),
    *[("class_shares", "Dirichlet(0.4): the level", "class_shares_level", dataset,
       [("accuracy", at(50, 100, 200, 300, 500), ONE, each(late)), ("best_participants", ONE)],
       [("512", "local batch_size=512"), ("64", "local batch_size=64")])
      for dataset in (CIFAR, FASHION)],
    ("class_shares", "CIFAR-10, Dirichlet(0.4) at", "class_shares_practical", CIFAR,
     [("accuracy", at(20, 40, 60, 80, 100), BEST, spread(late)), PARTICIPANTS],
     [("FedSSA", "fedssa"), ("FedRAL, 10 blocks", "fedral blocks=10"),
      ("FedRAL, 100 blocks", "fedral blocks=100"), ("local", "local")]),
    ("class_shares", "CIFAR-10, Dirichlet(0.4) at", "class_shares_practical", CIFAR,
     [("accuracy_global", at(20, 40, 60, 80, 100), BEST, spread(late))],
     [("... by the global A, of 10", "fedral blocks=10"),
      ("... by the global A, of 100", "fedral blocks=100")]),
    ("class_shares", "Fashion-MNIST, Dirichlet(0.4) at", "class_shares_practical", FASHION,
     [("accuracy", at(100, 200, 300, 400, 500), BEST, spread(late)), PARTICIPANTS],
     [("FedSSA", "fedssa"), ("FedRAL, 10 blocks", "fedral blocks=10"),
      ("FedRAL, 50 blocks", "fedral blocks=50"), ("local", "local")]),
    ("class_shares", "Fashion-MNIST, Dirichlet(0.4) at", "class_shares_practical", FASHION,
     [("accuracy_global", at(100, 200, 300, 400, 500), BEST, spread(late)),
      ("best_participants_global", BEST, by_seed(highest))],
     [("... by the global A, of 10", "fedral blocks=10"),
      ("... by the global A, of 50", "fedral blocks=50")]),
    ("class_shares", "CIFAR-10, two classes a client, at", "class_shares_two_classes", CIFAR,
     [("accuracy", at(100, 200, 300, 400, 500), ONE, each(late)), ("best_participants", ONE)],
     [("FedSSA", "fedssa"), ("FedRAL, 100 blocks", "fedral blocks=100"), ("local", "local")]),
    ("class_shares", "CIFAR-10, two classes a client, at", "class_shares_two_classes", CIFAR,
     [("accuracy_global", at(100, 200, 300, 400, 500), ONE, each(late)),
      ("best_participants_global", ONE)],
     [("... by the global A", "fedral blocks=100")]),
    ("class_shares", "CIFAR-10, two classes a client, ten", "class_shares_two_classes_ten_epochs", CIFAR,
     [("accuracy", at(20, 40, 60, 80, 100), by_seed(highest), by_seed(late)),
      ("best_participants", by_seed(highest))],
     [("FedSSA", "fedssa"), ("FedRAL, 100 blocks", "fedral blocks=100"), ("local", "local")]),
    ("class_shares", "CIFAR-10, two classes a client, ten", "class_shares_two_classes_ten_epochs", CIFAR,
     [("accuracy_global", at(20, 40, 60, 80, 100), by_seed(highest), by_seed(late)),
      ("best_participants_global", by_seed(highest))],
     [("... by the global A", "fedral blocks=100")]),
    ("dfrd", "The paper's form and", "dfrd_forms_whole", HELD_OUT,
     [("global_accuracy_head", at(2, 4, 6, 8, 10)), ("accuracy_train_weighted", at(10))],
     [("fedavg", "fedavg"), ('fedavg+dfrd, `variant="paper"`', "fedavg+dfrd"),
      ('fedavg+dfrd, `variant="released"`', "fedavg+dfrd variant=released")]),
    ("dfrd", "The paper's form and", "dfrd_forms_slices", HELD_OUT,
     [("global_accuracy_head", at(2, 4, 6, 8, 10, 12)), ("accuracy_train_weighted", at(12))],
     [("fedrolex", "fedrolex"),
      ('fedrolex+dfrd, `variant="released"`', "fedrolex+dfrd temperature=10.0 variant=released"),
      ('fedrolex+dfrd, `variant="paper"`', "fedrolex+dfrd variant=paper temperature=1.0")]),
]  # fmt: skip


@pytest.mark.parametrize("table", TABLES, ids=lambda table: "-".join(map(str, table[1:4])))
def test_a_table_has_the_numbers_of_its_csv(table):
    page, heading, file, dataset, columns, rows = table
    written = section(f"{page}.md", heading)
    for label, method in rows:
        expected = []
        for score, *measures in columns:
            runs = percents(f"{file}.csv", score, dataset)[method]
            expected += [cell for measure in measures for cell in measure(runs)]
        named = [" | ".join(cells) for cells in written if label in cells]
        assert any(" | ".join(expected) in row for row in named), (label, expected)


ELSEWHERE = {  # rows of fedtgp.md: the CSV, and what stands behind each name there
    "Fashion-MNIST, Dirichlet(1.0), tuned": ("fair_dirichlet.csv", "@tuned"),
    "Fashion-MNIST, four classes a client, tuned": ("fair_four_classes.csv", "@tuned"),
    "UCI HAR by person, tuned": ("fair_har.csv", "@tuned"),
    "AG News, tuned": ("fair_ag_news.csv", "@tuned"),
    "UCI HAR by person, papers' settings": ("har_persons.csv", ""),
}


@pytest.mark.parametrize("row", ELSEWHERE)
def test_fedtgp_elsewhere(row):
    file, suffix = ELSEWHERE[row]
    (cells,) = (cells for cells in section("fedtgp.md", "FedTGP and FedProto") if cells[0] == row)
    best = defaultdict(list)
    for trial in read_csv(RESULTS / file):
        best[trial["entry"]].append(100 * float(trial["best"]))
    tops = [best[f"{name}{suffix}"] for name in ("fedtgp", "fedproto", "local")]
    assert cells[1:4] == [spread(float)(top)[0] for top in tops]
    assert cells[4] == str(len(tops[0]))


@pytest.mark.parametrize("label, above", [("FedProto", 0), ("FedTGP", 8)])
def test_the_margins_of_fedtgp(label, above):
    clients, server = defaultdict(list), {}
    for row in read_csv(RESULTS / "fedtgp_margins.csv"):
        if not row["nearest"] or not row["method"].startswith(label.lower()):
            continue
        if row["client"] == "global":
            server[row["label"]] = float(row["nearest"])
        else:
            clients[row["label"]].append(float(row["nearest"]))
    assert sum(server[name] > max(values) for name, values in clients.items()) == above
    (cells,) = (cells for cells in section("fedtgp.md", "Margins") if cells[0] == label)
    assert cells[-1] == f"{above} of 10"
    assert float(cells[3]) == pytest.approx(statistics.mean(server.values()), rel=1e-2)


@pytest.mark.parametrize(
    "file, heading",
    [
        ("class_shares_search.csv", "CIFAR-10: 500 rounds"),
        ("class_shares_dirichlet_search.csv", "CIFAR-10, Dirichlet(0.4): batch"),
    ],
)
def test_the_accuracies_of_a_search(file, heading):
    points = defaultdict(lambda: defaultdict(list))
    for row in read_csv(RESULTS / file):
        value = f"{100 * float(row['val_accuracy']):.2f}" if row["val_accuracy"] else "-"
        points[row["method"]][row["batch_size"], row["learning_rate"]].append(value)
    for method, label in (("local", "local"), ("fedral blocks=100", "FedRAL, 100 blocks")):
        expected = [", ".join(values) for values in points[method].values()]
        assert [label, *expected] in section("class_shares.md", heading)


def test_inversions_of_single_images():
    """The page's table is that of the CSV's rows without noise, in the page's order."""
    rows = [
        row
        for row in read_rows(RESULTS / "leaks.csv", leaks_table.Row)
        if row.attack != "membership" and row.batch == 1 and not row.noise and not row.unit
    ]
    lines = set((RESULTS / "leaks.md").read_text(encoding="utf-8").splitlines())
    table = leaks_table.markdown([row for row in rows if row.round == 1]).splitlines()
    assert table[2:] and [line for line in table[2:] if line not in lines] == []


def test_no_honest_upload_was_refused_or_named():
    rows = read_csv(RESULTS.parents[1] / "benchmarks" / "results" / "honest_uploads.csv")
    largest = [float(row["largest"]) for row in rows]
    assert max(largest) < FAR_OFF < SimulationOptions().refuse_outliers
    assert sorted(largest)[-2] < 7.3
    assert sum(int(row["beyond 10"]) for row in rows) == 2
    assert sum(int(row["uploads"]) for row in rows) == 24_199 and len(rows) == 31
