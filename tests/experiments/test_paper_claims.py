"""The papers' headline claims: their table is made of the runs, and a verdict obeys the one rule."""

from pathlib import Path

import pytest

from experiments.paper_claims import Claim, Lead, Order, check_claim, decided, lead, read_claims
from experiments.paper_tables import with_claims
from tests.docs.links import assert_links_lead_to_headings

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
    assert_links_lead_to_headings(PAGE)


def test_every_paper_has_claims():
    papers = {claim.paper for claim in read_claims(RESULTS / "claims.toml", RESULTS)}
    assert papers == {"FedTGP", "FedKTL", "FedSSA", "FedRAL", "DFRD"}


def test_a_lead_is_of_the_best_round_and_of_the_last_third(results):
    """Round 30 alone is in the last third of 30; seed 1 has one method only."""
    leads = lead(an_order(), results)
    assert (round(leads.best, 9), round(leads.late, 9), leads.seeds) == (30.0, -20.0, 1)
    with pytest.raises(ValueError, match="no 'a' and 'c' of one seed"):
        lead(an_order()._replace(than="c"), results)


AHEAD, BEHIND, SWINGS = Lead(1.0, 0.5, 3), Lead(-1.0, -0.5, 3), Lead(1.0, -0.5, 3)


@pytest.mark.parametrize(
    ("measured", "changes", "verdict"),
    [
        (AHEAD, {}, "reproduced"),
        (SWINGS, {}, "open"),
        (AHEAD._replace(seeds=2), {}, "open"),
        (AHEAD, {"published_form": False}, "open"),
        (AHEAD, {"todays_code": False}, "open"),
        (BEHIND, {}, "open"),
        (BEHIND, {"papers_setting": True}, "refuted"),
        (BEHIND._replace(seeds=2), {"papers_setting": True}, "open"),
        (Lead(-1.0, 0.5, 3), {"papers_setting": True}, "open"),
    ],
)
def test_the_rule(measured, changes, verdict):
    order = an_order(**({"published_form": True} | changes))
    assert decided(order, measured) == verdict


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"verdict": "likely"}, "the verdict is 'likely'; it must be one of reproduced, refuted"),
        ({"orders": (), "seen": ""}, "`seen` or `orders` must say what was seen"),
        ({"hours": ""}, "it is open: `decides` and `hours` must say what decides it"),
        ({"verdict": "reproduced"}, "the verdict is reproduced; by its runs open"),
    ],
)
def test_a_verdict_that_the_runs_do_not_bear_is_refused(results, changes, message):
    claim = Claim("X", "it", "+1", "open", (an_order(),), decides="runs", hours="1")
    check_claim(claim, results)
    with pytest.raises(ValueError, match=message):
        check_claim(claim._replace(**changes), results)
