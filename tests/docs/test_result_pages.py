"""Pages of results: the tables written by hand have the numbers of the committed CSVs."""

import csv
import re
import statistics
from collections import defaultdict

import pytest

from experiments import leaks_table
from tests.docs.results import RESULTS, ROOT, best, late, margins, percents, rows_of, spread

BENCHMARKS = ROOT / "benchmarks" / "results"
ELSEWHERE = {  # rows of fedtgp.md: the CSV, and what stands behind each name there
    "Fashion-MNIST, Dirichlet(1.0), tuned": ("fair_dirichlet.csv", "@tuned"),
    "Fashion-MNIST, four classes a client, tuned": ("fair_four_classes.csv", "@tuned"),
    "UCI HAR by person, tuned": ("fair_har.csv", "@tuned"),
    "AG News, tuned": ("fair_ag_news.csv", "@tuned"),
    "UCI HAR by person, papers' settings": ("har_persons.csv", ""),
}


FEDRAL_BLOCKS = RESULTS / "fedral_blocks.csv"
PAPERS = ("fedtgp.md", "fedktl.md", "class_shares.md", "dfrd.md")


@pytest.mark.parametrize("page", PAPERS)
def test_a_papers_page_begins_with_what_holds(page):
    """Eleven lines: the paper's form here, and what is reproduced, contradicted or open, each with
    its run, by the rule of papers.md."""
    lines = (RESULTS / page).read_text(encoding="utf-8").splitlines()[:11]
    form, *claims = "\n".join(lines).split("\n* ")
    assert re.search(r"papers?'s? form here", form)
    assert [claim for claim in claims if not re.search(r"\]\([#\w./]", claim)] == []
    assert [
        claim for claim in claims if not re.match(r"\*\*(Reproduced|Contradicted|Open)", claim)
    ] == []
    head = "\n".join(claims)
    assert "(papers.md#when-a-claim-stands)" in head and "ontradicted" in head


@pytest.mark.parametrize("name", ["local", "FedProto", "FedTGP"])
def test_fedtgp_on_cifar10(name):
    prototypes, heads = (
        percents("fedktl.csv", score, "cifar10")[name.lower()]
        for score in ("accuracy", "accuracy_head")
    )
    cells = next(row for row in rows_of("fedtgp.md") if row[0] == name)
    rounds = [
        f"{statistics.mean(h[r] for h in prototypes.values()):.2f}" for r in (5, 10, 20, 30, 40, 50)
    ]
    assert cells[1:9] == [*rounds, best(prototypes), best(heads)]


@pytest.mark.parametrize("name", ["local", "FedProto", "FedTGP", "FedKTL"])
def test_the_authors_form_with_three_seeds(name):
    prototypes = percents("cifar10_shared.csv", "accuracy", "cifar10")[name.lower()]
    heads = percents("cifar10_shared.csv", "accuracy_head", "cifar10")[name.lower()]
    text = (
        (RESULTS / "fedtgp.md").read_text(encoding="utf-8").split("## The authors' form, three")[1]
    )
    (row,) = re.findall(rf"^\| {name} \|(.*)\|$", text.split("\n## ")[0], re.M)
    rounds = [statistics.mean(h[r] for h in prototypes.values()) for r in (5, 10, 20, 30, 40, 50)]
    bests = [max(prototypes[seed].values()) for seed in range(3)]
    lasts = [late(history) for history in prototypes.values()]
    expected = [f"{value:.2f}" for value in [*rounds, *bests]] + [spread(bests), spread(lasts)]
    assert [cell.strip() for cell in row.split("|")][:-1] == expected
    if name in ("FedProto", "FedTGP"):
        assert row.split("|")[-1].strip() == best(heads)


@pytest.mark.parametrize(
    ("file", "section", "settings", "rounds", "line"),
    [
        ("fedtgp_forms.csv", "The form and", "variant=released", (5, 10, 20, 30, 40, 50), 0),
        (
            "fedtgp_forms.csv",
            "The form and",
            "variant=released shared_init=false",
            (5, 10, 20, 30, 40, 50),
            1,
        ),
        ("fedtgp_forms.csv", "The form and", "", (5, 10, 20, 30, 40, 50), 2),
        (
            "fedtgp_all_images.csv",
            "The authors' form on all",
            "variant=released",
            range(10, 101, 10),
            0,
        ),
    ],
)
@pytest.mark.parametrize("name", ["FedProto", "FedTGP"])
def test_the_forms_of_fedtgp(file, section, settings, rounds, line, name):
    """`line` counts a section's rows of one method."""
    method = f"{name.lower()} {settings}".strip()
    prototypes, heads = (
        percents(file, score, "cifar10")[method][0] for score in ("accuracy", "accuracy_head")
    )
    text = (RESULTS / "fedtgp.md").read_text(encoding="utf-8").split(f"## {section}")[1]
    rows = re.findall(
        rf"^\|.*\| ?{name} \|(.*)$", "|" + text.split("\n## ")[0].replace("\n", "\n|"), re.M
    )
    cells = [cell.strip() for cell in rows[line].split("|")]
    expected = [*(prototypes[r] for r in rounds), *(max(x.values()) for x in (prototypes, heads))]
    assert cells[: len(expected)] == [f"{value:.2f}" for value in expected]


def test_the_margins_of_fedtgp():
    for name in ("FedProto", "FedTGP"):
        of_clients, of_server = margins(name.lower())
        above = sum(of_server[label] > max(values) for label, values in of_clients.items())
        (cells,) = (row for row in rows_of("fedtgp.md") if row[0] == name and "of 10" in row[-1])
        assert cells[-1] == f"{above} of 10"
        assert float(cells[3]) == pytest.approx(statistics.mean(of_server.values()), rel=1e-2)


@pytest.mark.parametrize("row", ELSEWHERE)
def test_fedtgp_elsewhere(row):
    file, suffix = ELSEWHERE[row]
    tops = defaultdict(list)
    with (RESULTS / file).open(newline="") as lines:
        for line in csv.DictReader(lines):
            tops[line["entry"]].append(100 * float(line["best"]))
    (cells,) = (cells for cells in rows_of("fedtgp.md") if cells[0] == row)
    names = [f"{name}{suffix}" for name in ("fedtgp", "fedproto", "local")]
    assert cells[1:5] == [*(spread(tops[name]) for name in names), str(len(tops[names[0]]))]


def test_fedtgp_with_two_classes_a_client():
    runs = percents("class_shares_shared.csv", "accuracy", "fashion_mnist")
    (cells,) = (
        cells for cells in rows_of("fedtgp.md") if cells[0].startswith("Fashion-MNIST, two classes")
    )
    assert cells[1:4] == [best(runs[name]) for name in ("fedtgp", "fedproto", "local")]


@pytest.mark.parametrize(
    ("file", "methods"),
    [
        (
            "dfrd_forms_whole.csv",
            {
                "fedavg": "fedavg",
                'fedavg+dfrd, `variant="released"`': "fedavg+dfrd variant=released",
                'fedavg+dfrd, `variant="paper"`': "fedavg+dfrd",
            },
        ),
        (
            "dfrd_forms_slices.csv",
            {
                "fedrolex": "fedrolex",
                'fedrolex+dfrd, `variant="released"`': "fedrolex+dfrd temperature=10.0 variant=released",
                'fedrolex+dfrd, `variant="paper"`': "fedrolex+dfrd variant=paper temperature=1.0",
            },
        ),
    ],
)
def test_the_two_forms_of_dfrd(file, methods):
    models = percents(file, "global_accuracy_head", "fashion_mnist held-out")
    clients = percents(file, "accuracy_train_weighted", "fashion_mnist held-out")
    for name, method in methods.items():
        rounds = sorted(models[method][0])[1:]
        expected = [
            name,
            *(f"{models[method][0][r]:.2f}" for r in rounds),
            f"{clients[method][0][rounds[-1]]:.2f}",
        ]
        assert expected in rows_of("dfrd.md"), name


def test_the_global_matrix_of_fedral():
    text = (RESULTS / "class_shares.md").read_text(encoding="utf-8")
    for dataset in ("cifar10", "fashion_mnist"):
        runs = percents("class_shares_shared.csv", "accuracy_global", dataset)["fedral"]
        mean = statistics.mean(max(history.values()) for history in runs.values())
        assert re.search(rf"\b{mean:.2f}\b", text), (dataset, mean)


@pytest.mark.parametrize(
    ("label", "options"),
    [
        ("one block: all of A (ablation B)", "blocks=1"),
        ("10 blocks", "blocks=10"),
        ("10 blocks, a mean without weights (ablation C)", "blocks=10 weighting=uniform"),
        ("50 blocks: the diagonal", "blocks=50"),
    ],
)
def test_fedrals_blocks(label, options):
    of_clients, of_server, participants = (
        percents("fedral_blocks.csv", score, "fashion_mnist")[f"fedral {options}"][0]
        for score in ("accuracy", "accuracy_global", "best_participants")
    )
    expected = [of_clients[r] for r in (20, 40, 60, 80, 100)]
    expected += [of_server[100], max(participants.values())]
    (cells,) = (row for row in rows_of("class_shares.md") if row[0] == label)
    assert cells[1:8] == [f"{value:.2f}" for value in expected]
    counts = 0 if "uniform" in options else 4  # a client's number of samples
    blocks = int(options.split()[0].removeprefix("blocks="))
    assert cells[8] == f"{10 * (4 * 50**2 // blocks + counts):,}"


@pytest.mark.parametrize(
    "path", [*sorted(RESULTS.glob("class_shares*.csv")), FEDRAL_BLOCKS], ids=str
)
def test_fedrals_bytes_are_those_of_its_numbers(path):
    """Ten clients a round send r^2 / m numbers of four bytes, r being 500 for CIFAR-10 and 50 for
    Fashion-MNIST, and receive as many; no index travels with them."""
    with path.open(newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["method"].startswith("fedral")]
    for row in rows:
        if not int(row.get("uplink_bytes", 0)):  # before the first round, or a published number
            continue
        width, blocks = {"cifar10": (500, 100), "fashion_mnist": (50, 10)}[row["dataset"]]
        named = re.search(r"blocks=(\d+)", row["method"])
        blocks = int(named[1]) if named else blocks
        numbers = 4 * width**2 // blocks
        counts = 0 if "uniform" in row["method"] else 4
        arrived, rest = divmod(int(row["uplink_bytes"]), numbers + counts)
        assert not rest and int(row["downlink_bytes"]) == 10 * numbers, row
        # a client whose weights are not finite any more sends nothing
        assert 9 <= arrived <= 10 if "learning_rate=0.3" in row["method"] else arrived == 10, row


@pytest.mark.parametrize("dataset", ["fashion_mnist", "cifar10"])
def test_fedrals_dirichlet_columns(dataset):
    """Each table row stands under the data set whose local training stands above it."""
    file = "class_shares_dirichlet.csv"
    section = (RESULTS / "class_shares.md").read_text(encoding="utf-8")
    section = section.split("## Dirichlet(0.4)")[1].split("\n## ")[0]
    name = {"fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}[dataset]
    lines = section.split(f"| {name}: local")[1].splitlines()
    for line, method, score, participants in (
        (lines[0], "local", "accuracy", "best_participants"),
        (lines[1], "fedral", "accuracy", "best_participants"),
        (lines[2], "fedral", "accuracy_global", "best_participants_global"),
    ):
        history = percents(file, score, dataset)[method][0]
        rounds = [f"{history[r]:.2f}" for r in (50, 100, 200, 300, 400, 500)]
        cells = [cell.strip() for cell in line.split("|")][-9:-1]  # from round 50 to the paper's
        assert cells[:6] == rounds
        if cells[6]:
            highest = percents(file, participants, dataset)[method][0]
            assert cells[6] == f"{max(highest.values()):.2f}"


def test_inversions_of_single_images():
    """The page's table is that of the CSV's rows without noise, in the page's order."""
    rows = [
        row
        for row in leaks_table.read(RESULTS / "leaks.csv")
        if row.attack != "membership" and row.batch == 1 and not row.noise and not row.unit
    ]
    lines = set((RESULTS / "leaks.md").read_text(encoding="utf-8").splitlines())
    table = leaks_table.markdown([row for row in rows if row.round == 1]).splitlines()
    assert table[2:] and [line for line in table[2:] if line not in lines] == []


def test_users_of_the_simulators_protocol():
    (runs,) = percents("cifar10_users.csv", "accuracy", "cifar10").values()
    lines = (BENCHMARKS / "peers_cpu.md").read_text().splitlines()
    head, cells = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith(("| round |", "| accuracy % |"))
    )
    assert head[1:] and cells[1:] == [f"{runs[0][int(number)]:.2f}" for number in head[1:]]


SEARCHED = (
    ("fedssa", "accuracy", "best_participants", "FedSSA"),
    ("lg_fedavg", "accuracy", "best_participants", "LG-FedAvg"),
    ("local", "accuracy", "best_participants", "local"),
    ("fedral blocks=10", "accuracy", "best_participants", "FedRAL, 10 blocks"),
    ("fedral blocks=100", "accuracy", "best_participants", "FedRAL, 100 blocks"),
    ("fedtgp", "accuracy_head", "best_participants_head", "... clients' own heads"),
    (
        "fedproto learning_rate=0.03",
        "accuracy",
        "best_participants",
        "FedProto, nearest of all prototypes",
    ),
)


def highest(history):
    return max(history.values())


def test_the_searched_runs_of_cifar10():
    """Both tables of the section, and what it says of the leads, are those of the CSVs."""
    section = (RESULTS / "class_shares.md").read_text(encoding="utf-8")
    section = section.split("## CIFAR-10: 500 rounds")[1].split("\n## ")[0]
    with (RESULTS / "class_shares_search.csv").open(newline="") as lines:
        searched = list(csv.DictReader(lines))
    for name, label in (("local", "local"), ("fedral blocks=100", "FedRAL, 100 blocks")):
        values = [row["val_accuracy"] for row in searched if row["method"] == name]
        cells = [f"{100 * float(value):.2f}" if value else "-" for value in values]
        assert f"| {label} | {' | '.join(cells)} |" in section
    file = "class_shares_searched.csv"
    for name, score, best_score, label in SEARCHED:
        assert f"| {label} | {cells_of(file, name, score, best_score)} |" in section, label
    assert_leads_of_fedssa(file, section)


def cells_of(file, name, score, best):
    """The cells of a method searched on CIFAR-10, from round 100 to the seeds' best draws."""
    runs = percents(file, score, "cifar10")[name].values()
    means = [statistics.mean(run[r] for run in runs) for r in (100, 200, 300, 500)]
    spreads = [[measure(run) for run in runs] for measure in (highest, late)]
    tops = list(map(highest, percents(file, best, "cifar10")[name].values()))
    cells = [f"{value:.2f}" for value in means]
    cells += [
        f"{statistics.mean(values):.2f} ± {statistics.pstdev(values):.2f}"
        for values in (*spreads, tops)
    ]
    return " | ".join([*cells, ", ".join(f"{value:.2f}" for value in tops)])


def assert_leads_of_fedssa(file, section):
    runs = percents(file, "accuracy", "cifar10")
    pairs = [(runs["fedssa"][seed], runs["local"][seed]) for seed in range(3)]
    best = [f"{highest(a) - highest(b):.1f}" for a, b in pairs]
    last = [f"{late(a) - late(b):.1f}" for a, b in pairs]
    assert f"by {best[0]}, {best[1]} and {best[2]} points in the best round" in section
    assert f"by {last[0]}, {last[1]} and {last[2]} over the last third" in section


def test_the_level_of_local_training_at_the_papers_rate():
    page = (RESULTS / "class_shares.md").read_text(encoding="utf-8")
    section = page.split("the level at the papers' rate\n")[1].split("\n## ")[0]
    for batch in (512, 64):
        name = f"local batch_size={batch}"
        (run,) = percents("class_shares_level.csv", "accuracy", "cifar10")[name].values()
        (best,) = percents("class_shares_level.csv", "best_participants", "cifar10")[name].values()
        late = statistics.mean(value for round_, value in run.items() if round_ > 500 * 2 / 3)
        shown = *(run[k] for k in (50, 100, 200, 300, 500)), highest(run), late, highest(best)
        assert f"| {batch} | {' | '.join(f'{value:.2f}' for value in shown)} |" in section


FEDRAL_AT = "fedral blocks=100 learning_rate=0.3"
DIRICHLET = (
    ("fedssa", "accuracy", "best_participants", "FedSSA"),
    ("local", "accuracy", "best_participants", "local"),
    (FEDRAL_AT, "accuracy", "best_participants", "FedRAL, 100 blocks, at 0.3"),
    (FEDRAL_AT, "accuracy_global", "best_participants_global", "... by the global A"),
)


def test_the_searched_runs_of_the_dirichlet_column():
    """Both tables, the leads, and that the search left the rate at which FedRAL was not run."""
    section = (RESULTS / "class_shares.md").read_text(encoding="utf-8")
    section = section.split("## CIFAR-10, Dirichlet(0.4)")[1].split("\n## ")[0]
    file = "class_shares_dirichlet_searched.csv"
    for name, score, best_score, label in DIRICHLET:
        assert f"| {label} | {cells_of(file, name, score, best_score)} |" in section, label
    assert_leads_of_fedssa(file, section)
    local, *fedral = (
        [measure(run) for run in percents(file, score, "cifar10")[name].values()]
        for name, score, measure in (
            ("local", "accuracy", highest),
            (FEDRAL_AT, "accuracy", highest),
            (FEDRAL_AT, "accuracy_global", highest),
        )
    )
    below, below_global = (statistics.mean(local) - statistics.mean(each) for each in fedral)
    assert f"**FedRAL is {below:.1f} points below local training in the best round**" in section
    assert f"by the global A {below_global:.1f} and" in section
    points = defaultdict(list)
    with (RESULTS / "class_shares_dirichlet_search.csv").open(newline="") as lines:
        for row in csv.DictReader(lines):
            point = row["batch_size"], row["learning_rate"]
            points[row["method"], *point].append(f"{100 * float(row['val_accuracy']):.2f}")
    for name, label in (("local", "local"), ("fedral blocks=100", "FedRAL, 100 blocks")):
        cells = [", ".join(values) for (method, *_), values in points.items() if method == name]
        assert f"| {label} | {' | '.join(cells)} |" in section
    assert len(points["fedral blocks=100", "64", "0.1"]) == 1
