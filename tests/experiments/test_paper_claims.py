"""The papers' headline claims: the runs make their table, and one rule decides every verdict."""

from pathlib import Path

import pytest

from experiments.paper_claims import (
    Claim,
    Lead,
    Order,
    claims_markdown,
    direction,
    lead,
    points,
    sentence,
    settled,
    sign_of,
    verdict,
)
from experiments.paper_tables import with_claims

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "experiments" / "results"
PAGE = RESULTS / "papers.md"
RUNS = """dataset,method,seed,round,accuracy
digits,a,0,0,0.9
digits,a,0,10,0.5
digits,a,0,20,0.8
digits,a,0,30,0.4
digits,b,0,10,0.6
digits,b,0,20,0.6
digits,b,0,30,0.6
digits,b,1,30,0.6
"""


@pytest.fixture
def results(tmp_path):
    (tmp_path / "runs.csv").write_text(RUNS)
    return tmp_path


def an_order(**more) -> Order:
    return Order("all", "page.md", "runs.csv", "digits", "a", "b", **more)


def test_the_table_is_what_the_command_makes_of_the_runs():
    text = PAGE.read_text(encoding="utf-8")
    assert with_claims(text, RESULTS) == text


def test_a_lead_is_of_the_best_round_and_of_the_last_third(results):
    """Round 30 alone is in the last third of 30; seed 1 has one method only."""
    leads = lead(an_order(), results)
    assert leads.best == pytest.approx([30.0]) and leads.late == pytest.approx([-20.0])
    with pytest.raises(ValueError, match="no 'a' and 'c' of one seed"):
        lead(an_order()._replace(than="c"), results)


def test_half_an_interval_is_students():
    """Tables have 4.303 for three values and 2.776 for five; deviations are those of samples."""
    assert points([1.0, 2.0, 3.0]) == f"+2.00 ± {4.303 / 3**0.5:.2f}"
    assert points([1.0, 2.0, 3.0, 4.0, 5.0]) == f"+3.00 ± {2.776 * 0.5**0.5:.2f}"


UP, DOWN = [1.0, 1.1, 0.9], [-1.0, -1.1, -0.9]
WIDE = [0.1, 0.2, 3.0]  # all above 0, and the interval holds 0
AHEAD, BEHIND, LEVEL = Lead(UP, UP), Lead(DOWN, DOWN), Lead(UP, WIDE)


@pytest.mark.parametrize(
    ("differences", "sign"),
    [
        (UP, 1),
        (DOWN, -1),
        (WIDE, 0),
        ([1.0, 1.0], 0),  # two seeds
        ([0.1, 0.2, 0.3, 9.0], 0),  # four that agree
        ([0.1, 0.2, 0.3, 0.1, 9.0], 1),  # five that agree
        ([-0.1, -0.2, -0.3, -0.1, -9.0], -1),
        ([-0.1, 0.2, 0.3, 0.1, 9.0], 0),
        ([-0.1, 1.0, 1.1, 0.9, 1.0], 1),  # four of five, beyond the interval
    ],
)
def test_a_lead_counts_beyond_its_interval_or_where_five_agree(differences, sign):
    assert sign_of(differences) == sign


@pytest.mark.parametrize(
    ("measured", "sign"),
    [(AHEAD, 1), (BEHIND, -1), (LEVEL, 0), (Lead(WIDE, UP), 0), (Lead(UP, DOWN), 0)],
)
def test_both_scores_must_count(measured, sign):
    assert direction(measured) == sign


@pytest.mark.parametrize(
    ("measured", "changes"),
    [
        (Lead([1.0, 1.0], [1.0, 1.0]), {}),
        (BEHIND, {"own_splits": False}),
        (BEHIND, {"todays_code": False}),
    ],
)
def test_runs_that_cannot_count_take_no_part(measured, changes):
    order = an_order(own_splits=True)
    leads = [(order, AHEAD), (order._replace(**changes), measured)]
    assert verdict(leads).verdict == "reproduced in a small form"
    assert verdict(leads[1:]).verdict == "open"


@pytest.mark.parametrize(
    ("rows", "expected", "opposed"),
    [
        ([(0, AHEAD)], "reproduced", 0),
        ([(0, BEHIND)], "contradicted", 0),
        ([(1, AHEAD)], "reproduced in a small form", 0),
        ([(1, BEHIND)], "contradicted in a small form", 0),
        ([(0, LEVEL)], "open", 0),
        # the nearest runs that decide outweigh those further away, in whatever order they come
        ([(2, BEHIND), (0, AHEAD)], "reproduced", 1),
        ([(0, BEHIND), (1, AHEAD)], "contradicted", 1),
        ([(1, AHEAD), (2, BEHIND), (3, BEHIND)], "reproduced in a small form", 2),
        ([(0, LEVEL), (1, AHEAD)], "reproduced in a small form", 0),
        ([(0, AHEAD), (1, AHEAD)], "reproduced", 0),
        # equally near runs must agree
        ([(1, AHEAD), (1, BEHIND)], "open", 0),
        ([(1, AHEAD), (1, LEVEL), (2, BEHIND)], "open", 0),
        ([(1, AHEAD), (1, AHEAD)], "reproduced in a small form", 0),
    ],
)
def test_the_verdict_in_every_direction(rows, expected, opposed):
    leads = [(an_order(distance=distance, own_splits=True), lead) for distance, lead in rows]
    decided = verdict(leads)
    assert (decided.verdict, len(decided.opposed)) == (expected, opposed)


def test_a_claim_says_what_its_runs_do(tmp_path):
    lines = ["dataset,method,seed,round,accuracy"]
    for seed, score in enumerate((0.90, 0.91, 0.92)):
        for method, value in (("a", score), ("b", 0.5), ("c", 0.99)):
            lines.append(f"digits,{method},{seed},10,{value}")
    (tmp_path / "runs.csv").write_text("\n".join(lines) + "\n")
    near = an_order(distance=0, own_splits=True)
    far = near._replace(what="other", than="c", distance=1)
    claim = settled(Claim("X", "it", "+1", orders=(near, far)), tmp_path)
    assert claim.verdict == "reproduced; the opposite further away (other)"
    assert "1 reproduced, 0 contradicted, " in claims_markdown([claim], tmp_path)
    assert sentence(near, lead(near, tmp_path)) == (
        "[all](page.md): best +41.00 ± 2.48, late +41.00 ± 2.48, 3 seeds, a split each"
    )


OPEN = Claim("X", "it", "+1", orders=(an_order(),), decides="runs", hours="1")
COUNTED = Claim("X", "it", "+1", verdict="reproduced", seen="counted")


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        (COUNTED._replace(verdict="likely"), "the verdict is 'likely'; it must be one of reprod"),
        (COUNTED._replace(seen=""), "`seen` or `orders` must say what was seen"),
        (COUNTED._replace(verdict=""), "give either `orders`, whose runs decide, or `verdict`"),
        (OPEN._replace(verdict="open"), "give either `orders`, whose runs decide, or `verdict`"),
        (OPEN._replace(hours=""), "it is open: `decides` and `hours` must say what decides it"),
    ],
)
def test_a_mistake_in_a_claim_is_one_line(results, claim, message):
    assert settled(OPEN, results).verdict == "open" and settled(COUNTED, results) == COUNTED
    with pytest.raises(ValueError, match=message):
        settled(claim, results)
