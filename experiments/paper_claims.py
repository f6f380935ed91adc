"""Reads experiments/results/claims.toml: the papers' headline claims, and which of them hold here.

The file's head explains the fields; `experiments.paper_tables` makes the table of papers.md. One
rule, `verdict`, decides whether one method is above another.
"""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from experiments.evaluations import read_evaluations
from experiments.paper_manifest import filled, read_toml
from experiments.rows import late_mean
from fedjax_ht.lab.report.document import Table
from fedjax_ht.lab.report.statistics import mean_interval
from fedjax_ht.simulation.rows import evaluated

SMALL = " in a small form"
VERDICTS = ("reproduced", "contradicted", f"reproduced{SMALL}", f"contradicted{SMALL}", "open")
SEEDS = 3
"""Fewest seeds for which an interval counts."""
AGREEING = 5
"""Fewest seeds that count if they merely agree."""
HEAD = ("claim", "the paper", "seen here", "verdict", "what decides it", "core-hours")


class Order(NamedTuple):
    """Runs of two methods whose order a claim states; fields as in claims.toml."""

    what: str
    page: str
    csv: str
    dataset: str
    method: str
    than: str
    than_csv: str = ""
    score: str = "accuracy"
    than_score: str = ""
    distance: int = 1
    own_splits: bool = False
    todays_code: bool = True


class Claim(NamedTuple):
    """A headline claim of a paper; fields as in claims.toml."""

    paper: str
    claim: str
    published: str
    verdict: str = ""
    orders: Sequence[Order] = ()
    seen: str = ""
    decides: str = ""
    hours: str = ""


class Lead(NamedTuple):
    """A method's lead in points, per seed.

    Attributes:
      best: difference between the best rounds of each.
      late: difference between the means over the last third of the rounds.
    """

    best: Sequence[float]
    late: Sequence[float]


class Verdict(NamedTuple):
    """A claim's verdict, computed from its runs.

    Attributes:
      verdict: one of `VERDICTS`.
      opposed: orders further from the paper's setting that contradict it.
    """

    verdict: str
    opposed: Sequence[Order] = ()


def read_claims(path: Path, results: Path) -> list[Claim]:
    """Reads the claims; the `verdict` of a claim with orders comes from its runs.

    Args:
      path: path of the file.
      results: folder of its CSVs.

    Raises:
      ValueError: the file has a mistake. One line.
    """
    claims = []
    for values in read_toml(path).get("claims", ()):
        claim = filled(Claim, values, "claims")
        orders = [filled(Order, order, claim.claim) for order in values.get("orders", ())]
        claims.append(settled(claim._replace(orders=orders), results))
    return claims


def settled(claim: Claim, results: Path) -> Claim:
    """Returns the claim with its verdict.

    Raises:
      ValueError: a field is missing, unknown, or given beside runs that decide. One line.
    """
    if bool(claim.orders) == bool(claim.verdict):
        raise ValueError(f"{claim.claim}: give either `orders`, whose runs decide, or `verdict`")
    if not claim.orders and not claim.seen:
        raise ValueError(f"{claim.claim}: `seen` or `orders` must say what was seen")
    if claim.orders:
        leads = [(order, lead(order, results)) for order in claim.orders]
        found = verdict(leads)
        text = found.verdict
        if found.opposed:
            text += f"; the opposite further away ({found.opposed[0].what})"
        claim = claim._replace(verdict=text)
    elif claim.verdict not in VERDICTS:
        raise ValueError(
            f"{claim.claim}: the verdict is {claim.verdict!r}; it must be one of "
            f"{', '.join(VERDICTS)}"
        )
    if claim.verdict == "open" and not (claim.decides and claim.hours):
        raise ValueError(f"{claim.claim} is open: `decides` and `hours` must say what decides it")
    return claim


def verdict(leads: Sequence[tuple[Order, Lead]]) -> Verdict:
    """Decides a claim that one method is above another.

    Of the orders that take part, those at the smallest distance with any lead that counts decide,
    and must agree. Distance 0 is the paper's setting; further away, a claim holds or fails in a
    small form.
    """

    def distance(counted: tuple[Order, int]) -> int:
        return counted[0].distance

    counted = [(order, direction(lead)) for order, lead in leads if takes_part(order, lead)]
    counted.sort(key=distance)
    for nearest, group in groupby(counted, distance):
        signs = {sign for _, sign in group}
        if signs == {0}:
            continue
        if len(signs) > 1:
            return Verdict("open")
        (sign,) = signs
        found = "reproduced" if sign > 0 else "contradicted"
        opposed = [order for order, other in counted if other == -sign]
        return Verdict(found + SMALL * (nearest > 0), opposed)
    return Verdict("open")


def takes_part(order: Order, lead: Lead) -> bool:
    """Returns whether a lead could count: today's code made three runs, each with its own split."""
    return order.own_splits and order.todays_code and len(lead.best) >= SEEDS


def direction(lead: Lead) -> int:
    """Returns 1 if a lead counts by both scores, -1 if the opposite does, and 0 if neither does."""
    best, late = sign_of(lead.best), sign_of(lead.late)
    return best if best == late else 0


def sign_of(differences: Sequence[float]) -> int:
    """Returns the sign of a mean difference beyond its interval, or of `AGREEING` seeds; else 0."""
    if len(differences) >= AGREEING:
        if min(differences) > 0:
            return 1
        if max(differences) < 0:
            return -1
    if len(differences) < SEEDS:
        return 0
    _, low, high = mean_interval(differences, least=SEEDS)
    return (low > 0) - (high < 0)


def lead(order: Order, results: Path) -> Lead:
    """Computes the lead of the first method over the second, for the seeds that both have.

    Raises:
      ValueError: there are no such runs.
    """
    first = scores_of(results / order.csv, order.dataset, order.method, order.score)
    other = order.than_csv or order.csv, order.dataset, order.than, order.than_score or order.score
    second = scores_of(results / other[0], *other[1:])
    seeds = sorted(set(first) & set(second))
    if not seeds:
        raise ValueError(f"{order.csv} has no {order.method!r} and {order.than!r} of one seed")
    best, late = (
        [100 * (first[seed][measure] - second[seed][measure]) for seed in seeds]
        for measure in (0, 1)
    )
    return Lead(best, late)


def scores_of(path: Path, dataset: str, method: str, score: str) -> dict[int, tuple[float, float]]:
    """Reads seed -> a run's score in its best round, and its mean over the last third.

    In the best round of participants, nobody else may have been scored.
    """
    scores = {}
    for run in read_evaluations(path):
        rows = [row for row in run.history if score in row]
        if (run.dataset, run.method) == (dataset, method) and rows:
            late = late_mean({row["round"]: row[score] for row in evaluated(rows)})
            scores[run.seed] = max(row[score] for row in rows), late
    return scores


def claims_markdown(claims: Sequence[Claim], results: Path) -> str:
    """Makes a table of the claims, and counts their verdicts."""
    rows = []
    for claim in claims:
        seen = [sentence(order, lead(order, results)) for order in claim.orders]
        if claim.seen:
            seen.append(" ".join(claim.seen.split()))
        about = f"{claim.paper}: {' '.join(claim.claim.split())}"
        decides = " ".join(claim.decides.split())
        cells = [about, claim.published, "; ".join(seen), f"**{claim.verdict}**", decides]
        rows.append([*cells, claim.hours])
    found = [claim.verdict.partition(";")[0] for claim in claims]
    counts = ", ".join(f"{found.count(kind)} {kind}" for kind in VERDICTS)
    return f"Of {len(claims)} claims: {counts}.\n\n{Table(HEAD, rows).markdown()}"


def sentence(order: Order, lead: Lead) -> str:
    """Describes the result for an order."""
    seeds = len(lead.best)
    about = "1 seed" if seeds == 1 else f"{seeds} seeds"
    if seeds > 1:
        about += ", a split each" if order.own_splits else ", one split"
    return (
        f"[{order.what}]({order.page}): best {points(lead.best)}, late {points(lead.late)}, {about}"
    )


def points(values: Sequence[float]) -> str:
    """Formats a mean, with half its interval if there are enough seeds."""
    mean, _, high = mean_interval(values, least=SEEDS)
    return f"{mean:+.2f}" if len(values) < SEEDS else f"{mean:+.2f} ± {high - mean:.2f}"
