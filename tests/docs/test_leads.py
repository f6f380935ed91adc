"""Sentences on pages of results that say which method leads, beside the committed CSVs."""

import statistics

import pytest

from experiments.paper_claims import points
from tests.docs.results import ROOT, differences, late, margins, percents, rows_of, text_of

HAR = ("fedtgp", "fd", "fedssa", "lg_fedavg")


def test_fedtgp_swings():
    """The order on all images, which the best round and the last third do not agree on."""
    runs = percents("fedtgp_all_images.csv", "accuracy", "cifar10")
    tgp, proto = (runs[f"{name} variant=released"][0] for name in ("fedtgp", "fedproto"))
    rounds = [r for r in tgp if r]
    above = sum(tgp[r] > proto[r] for r in rounds)
    half = [statistics.mean(x[r] for r in rounds if r >= 55) for x in (tgp, proto)]
    assert (
        f"above FedProto in {above} of {len(rounds)} evaluations, and below on the average of rounds "
        f"55 to 100, {half[0]:.2f} against {half[1]:.2f} %, of the last third, {late(tgp):.2f} "
        f"against {late(proto):.2f}, and in the last, {tgp[100]:.2f} against {proto[100]:.2f}. "
        "One seed."
    ) in text_of("fedtgp.md")
    assert f"by {max(tgp.values()) - max(proto.values()):.2f} points (by training" in text_of(
        "fedtgp.md"
    )


def test_fedktl_beside_fedproto_and_fedtgp():
    runs = percents("fedktl.csv", "accuracy", "cifar10")
    forms = percents("fedtgp_forms.csv", "accuracy", "cifar10")

    def lead(measure, than):
        mean = {m: statistics.mean(map(measure, runs[m].values())) for m in ("fedktl", than)}
        return f"{mean['fedktl'] - mean[than]:.1f}"

    def top(history):
        return max(history.values())

    best, last = ([lead(x, m) for m in ("fedproto", "fedtgp")] for x in (top, late))
    text = text_of("fedktl.md")
    assert (
        f"It is {best[0]} and {best[1]} points above them by the best round, {last[0]} and {last[1]} "
        "over the last third"
    ) in text
    shared, apart = (
        [top(forms[f"{name} variant=released{more}"][0]) for name in ("fedtgp", "fedproto")]
        for more in ("", " shared_init=false")
    )
    assert (
        f"FedTGP has {shared[0]:.2f} (shared first weights) and {apart[0]:.2f} (own) and FedProto "
        f"{shared[1]:.2f} and {apart[1]:.2f}, where this FedKTL has {top(runs['fedktl'][0]):.2f}."
    ) in text


def test_todays_fedktl_beside_fedproto_and_fedtgp():
    runs = percents("cifar10_shared.csv", "accuracy", "cifar10")

    def leads(method, than):
        pairs = [(runs[method][seed], runs[than][seed]) for seed in range(3)]
        best = statistics.mean(max(a.values()) - max(b.values()) for a, b in pairs)
        return best, statistics.mean(late(a) - late(b) for a, b in pairs)

    best, last = leads("fedktl", "fedproto")
    text, page = text_of("fedktl.md"), text_of("fedtgp.md")
    assert (
        f"is {best:.1f} points above FedProto's released form by the best round and {-last:.1f} below "
        "by the last third"
    ) in text
    best, last = leads("fedktl", "fedtgp")
    assert f"here it is {-best:.1f} and {-last:.1f} below" in text
    best, last = leads("fedtgp", "fedproto")
    assert (
        f"**FedTGP is above FedProto** by {best:.1f} points in the best round and {last:.1f}"
        in page
    )
    best, last = leads("fedtgp", "local")
    assert f"{best:.1f} points above in the best round, {-last:.1f} below in the last third" in page
    best, last = leads("fedproto", "local")
    assert f"FedProto is {-best:.1f} and {-last:.1f} below." in page


@pytest.mark.parametrize(
    ("label", "options"),
    [
        ("no margin", "margin=0.0"),
        ("margin fixed at 100", "margin=100.0"),
        ("no F", "use_f=false"),
        ("tau 1", "tau=1.0"),
        ("1 server epoch", "server_epochs=1"),
    ],
)
def test_what_fedtgps_parts_are_worth_by_seed(label, options):
    runs = percents("fedtgp_parts.csv", "accuracy", "cifar10")
    cells = []
    for measure in (lambda history: max(history.values()), late):
        leads = [
            measure(runs["fedtgp"][seed]) - measure(runs[f"fedtgp {options}"][seed])
            for seed in range(3)
        ]
        cells += [", ".join(f"{lead:+.2f}" for lead in leads), points(leads)]
    assert [row[1:5] for row in rows_of("fedtgp.md") if row[0] == label][-1] == cells


def test_the_tutorials_leads_of_the_quickstart():
    text = " ".join((ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8").split())
    best, chosen = (
        [
            statistics.mean(differences("quickstart.csv", column, method, "local@tuned"))
            for method in ("fedapen", "fedssa@tuned")
        ]
        for column in ("best", "by_validation")
    )
    assert f"FedAPEN leads by {best[0]:.2f} points in the best round (" in text
    assert f"and FedSSA by {best[1]:.2f} (" in text
    assert f"validation chooses they lead by {chosen[0]:.2f} and {chosen[1]:.2f}." in text


def test_the_papers_order_of_dfrds_rows_by_either_measure():
    runs = percents("dfrd.csv", "global_accuracy_head", "fashion_mnist")
    rows = ["fedrolex+dfrd", "fedrolex+dense", "fedrolex+fedftg", "fedrolex"]
    for seed in (0, 1):
        for measure in (lambda history: max(history.values()), late):
            values = [measure(runs[name][seed]) for name in rows]
            assert values == sorted(values, reverse=True)


def test_leads_by_the_last_round():
    """Comparisons of our own, where pages say more than the best round."""
    text = text_of("sensors.md")
    leads = {m: differences("fair_har.csv", "last", f"{m}@tuned", "local@tuned") for m in HAR}
    mean = {name: f"{statistics.mean(values):.1f}" for name, values in leads.items()}
    ahead = [sum(x > 0 for x in leads[name]) for name in HAR]
    assert ahead == [3, 3, 3, 2]
    assert (
        f"By the last round FedTGP is {mean['fedtgp']} points ahead of local training, FD "
        f"{mean['fd']} and FedSSA {mean['fedssa']}, each in all three seeds, and LG-FedAvg "
        f"{mean['lg_fedavg']}, in two."
    ) in text
    chosen = {
        m: differences("fair_har.csv", "by_validation", f"{m}@tuned", "local@tuned") for m in HAR
    }
    assert [name for name in HAR if min(chosen[name]) > 0] == ["fedtgp"]
    assert f"in all three, by {statistics.mean(chosen['fedtgp']):.1f}." in text
    for file in ("fair_dirichlet.csv", "fair_four_classes.csv"):
        for column in ("best", "last"):
            assert min(differences(file, column, "fedssa@tuned", "local@tuned")) > 0


def test_words_of_claims_without_an_order():
    text = text_of("claims.toml")
    clients, server = margins("fedtgp")
    above = sum(server[label] > max(values) for label, values in clients.items())
    assert f"above all clients' for {above} of {len(clients)} classes" in text
    clients, server = margins("fedproto")
    assert not any(server[label] > max(values) for label, values in clients.items())
    runs = percents("dfrd.csv", "global_accuracy_head", "fashion_mnist")["dfrd"].values()
    mean = statistics.mean(max(history.values()) for history in runs)
    assert f"data-free DFRD itself has {mean:.1f} %" in text
