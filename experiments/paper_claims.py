"""Reads experiments/results/claims.toml: the papers' headline claims, and which of them stand here.

Its head explains the fields; `experiments.paper_tables` makes the table of papers.md of it. A claim
that one method is above another stands by one rule, which `decided` is.
"""

import statistics
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.evaluations import read_evaluations
from experiments.paper_manifest import filled
from experiments.rows import late_mean
from fedjax_ht.report.table import Table
from fedjax_ht.simulation.rows import evaluated

VERDICTS = ("reproduced", "refuted", "open")
SEEDS = 3
"""Fewest seeds that decide an order."""
HEAD = ("claim", "the paper", "seen here", "verdict", "what decides it", "core-hours")


class Order(NamedTuple):
    """Runs of two methods, which a claim says the order of; fields as in claims.toml."""

    what: str
    page: str
    csv: str
    dataset: str
    method: str
    than: str
    than_csv: str = ""
    score: str = "accuracy"
    than_score: str = ""
    published_form: bool = False
    todays_code: bool = True
    papers_setting: bool = False


class Claim(NamedTuple):
    """A headline claim of a paper; fields as in claims.toml."""

    paper: str
    claim: str
    published: str
    verdict: str
    orders: Sequence[Order] = ()
    seen: str = ""
    decides: str = ""
    hours: str = ""


class Lead(NamedTuple):
    """A method's lead in points, means over the seeds that both methods have.

    Attributes:
      best: between the rounds that are best for each.
      late: between the means over the last third of the rounds.
      seeds: their number.
    """

    best: float
    late: float
    seeds: int


def read_claims(path: Path, results: Path) -> list[Claim]:
    """Reads the claims, and holds their verdicts against the runs.

    Args:
      path: of the file.
      results: folder of its CSVs.

    Raises:
      ValueError: the file has a mistake, or a verdict is not what the runs say. One line.
    """
    try:
        fields = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is no TOML file: {error}") from None
    claims = []
    for values in fields.get("claims", ()):
        claim = filled(Claim, values, "claims")
        orders = [filled(Order, order, claim.claim) for order in values.get("orders", ())]
        claims.append(claim._replace(orders=orders))
        check_claim(claims[-1], results)
    return claims


def check_claim(claim: Claim, results: Path) -> None:
    """Raises a ValueError where a claim's verdict is not what `decided` says of its runs."""
    if claim.verdict not in VERDICTS:
        raise ValueError(
            f"{claim.claim}: the verdict is {claim.verdict!r}; it must be one of "
            f"{', '.join(VERDICTS)}"
        )
    if not claim.orders and not claim.seen:
        raise ValueError(f"{claim.claim}: `seen` or `orders` must say what was seen")
    if claim.verdict == "open" and not (claim.decides and claim.hours):
        raise ValueError(f"{claim.claim} is open: `decides` and `hours` must say what decides it")
    if not claim.orders:  # of one run's figure, or of messages
        return
    verdicts = {decided(order, lead(order, results)) for order in claim.orders} - {"open"}
    expected = verdicts.pop() if len(verdicts) == 1 else "open"
    if claim.verdict != expected:
        raise ValueError(f"{claim.claim}: the verdict is {claim.verdict}; by its runs {expected}")


def decided(order: Order, lead: Lead) -> str:
    """Returns what two methods' runs say of a claim that the first is above the second.

    Both measures must agree, on at least `SEEDS` seeds, by today's code, in the form that the
    published numbers are of. What is below is refuted in the paper's setting alone.
    """
    comparable = order.published_form and order.todays_code and lead.seeds >= SEEDS
    if comparable and min(lead.best, lead.late) > 0:
        return "reproduced"
    if comparable and order.papers_setting and max(lead.best, lead.late) < 0:
        return "refuted"
    return "open"


def lead(order: Order, results: Path) -> Lead:
    """Computes the lead of the first method over the second.

    Raises:
      ValueError: there are no such runs.
    """
    first = scores_of(results / order.csv, order.dataset, order.method, order.score)
    other = order.than_csv or order.csv, order.dataset, order.than, order.than_score or order.score
    second = scores_of(results / other[0], *other[1:])
    seeds = sorted(set(first) & set(second))
    if not seeds:
        raise ValueError(f"{order.csv} has no {order.method!r} and {order.than!r} of one seed")
    leads = [
        statistics.mean(first[seed][measure] - second[seed][measure] for seed in seeds)
        for measure in (0, 1)
    ]
    return Lead(100 * leads[0], 100 * leads[1], len(seeds))


def scores_of(path: Path, dataset: str, method: str, score: str) -> dict[int, tuple[float, float]]:
    """Reads seed -> a run's score in its best round, and its mean over the last third.

    The best round of participants may be one in which nobody else was scored.
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
        verdict = f"**{claim.verdict}**"
        about = f"{claim.paper}: {' '.join(claim.claim.split())}"
        decides = " ".join(claim.decides.split())
        rows.append([about, claim.published, "; ".join(seen), verdict, decides, claim.hours])
    counts = []
    for verdict in VERDICTS:
        counts.append(f"{sum(claim.verdict == verdict for claim in claims)} {verdict}")
    return f"Of {len(claims)} claims: {', '.join(counts)}.\n\n{Table(HEAD, rows).markdown()}"


def sentence(order: Order, lead: Lead) -> str:
    """Says what was seen of an order."""
    seeds = "1 seed" if lead.seeds == 1 else f"{lead.seeds} seeds"
    return f"[{order.what}]({order.page}): best {lead.best:+.2f}, late {lead.late:+.2f}, {seeds}"
