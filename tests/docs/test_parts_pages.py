"""Pages of results: the tables of what each part of FedTGP and of FedKTL is worth have the numbers of
the committed CSVs."""

import statistics

import pytest

from tests.docs.results import RESULTS, best, late, percents, spread

TINY = "npz:tiny_imagenet_32.npz"


def section(page: str, heading: str) -> str:
    text = (RESULTS / page).read_text(encoding="utf-8")
    return text.split(f"# {heading}\n")[1].split("\n#")[0]


def row_of(text: str, name: str) -> list[str]:
    """Returns the cells of the first row that begins with this name; later tables are of leads."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {name} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def means(runs: dict[int, dict[int, float]], rounds: tuple[int, ...]) -> list[str]:
    return [f"{statistics.mean(history[r] for history in runs.values()):.2f}" for r in rounds]


def end(runs: dict[int, dict[int, float]], rounds: tuple[int, ...]) -> str:
    return spread([statistics.mean(history[r] for r in rounds) for history in runs.values()])


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("FedTGP", "fedtgp"),
        ("no margin", "fedtgp margin=0.0"),
        ("margin fixed at 100", "fedtgp margin=100.0"),
        ("no F", "fedtgp use_f=false"),
        ("tau 1", "fedtgp tau=1.0"),
        ("tau 10", "fedtgp tau=10.0"),
        ("tau 1,000", "fedtgp tau=1000.0"),
        ("1 server epoch", "fedtgp server_epochs=1"),
        ("10 server epochs", "fedtgp server_epochs=10"),
        ("FedProto", "fedproto"),
    ],
)
def test_the_parts_of_fedtgp(name, method):
    prototypes, heads = (
        percents("fedtgp_parts.csv", score, "cifar10")[method]
        for score in ("accuracy", "accuracy_head")
    )
    lates = spread([late(history) for history in prototypes.values()])
    expected = [*means(prototypes, (10, 20, 30, 40, 50)), best(prototypes), lates, best(heads)]
    assert sorted(prototypes) == [0, 1, 2]
    assert row_of(section("fedtgp.md", "What each part is worth"), name)[:-1] == expected


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("FedKTL", ""),
        ("-L_M", " mu=0.0"),
        ("-L_MSE", " mse_weight=0.0"),
        ("-L_MMD", " mmd_weight=0.0"),
        ("-ETF", " classifier=head"),
        ("-Qbar", " transfer=images"),
        ("scale 1", " scale=1.0 margin=0.0"),
    ],
)
def test_the_parts_of_fedktl(name, options):
    runs = percents("fedktl_ablations.csv", "accuracy", TINY)[f"fedktl{options}"]
    expected = [*means(runs, (5, 10, 15, 20, 25, 30)), end(runs, (20, 25, 30)), best(runs)]
    assert sorted(runs) == [0, 1, 2]
    assert row_of(section("fedktl.md", "What each part is worth"), name)[:-1] == expected


@pytest.mark.parametrize(
    ("file", "heading", "rounds"),
    [
        ("fedktl_mu.csv", "Weights of the transfer", (5, 10, 15, 20, 25, 30)),
        (
            "fedktl_two_shots.csv",
            "Two images of each of a hundred classes",
            (10, 20, 40, 60, 80, 100),
        ),
    ],
)
@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("local", "local"),
        ("mu 0", "fedktl mu=0.0"),
        ("mu 4", "fedktl mu=4.0"),
        ("mu 50", "fedktl"),
    ],
)
def test_the_weights_of_fedktls_transfer(file, heading, rounds, name, method):
    runs = percents(file, "accuracy", TINY)[method]
    last = sorted(next(iter(runs.values())))[-3:]
    expected = [*means(runs, rounds), end(runs, tuple(last)), best(runs)]
    assert row_of(section("fedktl.md", heading), name) == expected
