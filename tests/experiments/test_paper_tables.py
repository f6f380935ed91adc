"""The page of results beside the papers' is made by its command, and compares like with like."""

import re
from pathlib import Path

import pytest

from experiments import paper_tables
from experiments.paper_manifest import Part, Selection, read_manifest
from experiments.paper_parts import part_markdown, selected
from experiments.paper_tables import page
from fedjax_ht.lab.config.config_files import read_config_file
from fedjax_ht.lab.config.typed import paths

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "experiments" / "results"
PAGE, MANIFEST = RESULTS / "papers.md", read_manifest(RESULTS / "tables.toml")
NO_FML = Selection("runs.csv", "digits", methods=["fml"])

RUNS = """dataset,method,seed,round,accuracy,accuracy_head,accuracy_participants,best_participants
digits,fedproto,0,0,0.1,0.2,,
digits,fedproto,0,10,0.5,0.6,0.7,0.9
digits,fedproto,1,10,0.7,0.8,0.7,0.8
digits,fedproto,1,20,0.6,0.7,0.7,0.8
digits,local mu=0,0,10,0.65,0.65,0.6,0.6
other,local,0,10,0.3,0.3,0.3,0.3
"""
PUBLISHED = """dataset,method,accuracy,std,source
digits,fedproto,61,0.5,a
digits,local,70.5,,a
digits,fd,,,a
other,fedproto,5,,a
"""


@pytest.fixture
def results(tmp_path):
    (tmp_path / "runs.csv").write_text(RUNS)
    (tmp_path / "published.csv").write_text(PUBLISHED)
    return tmp_path


def a_part(**more):
    return Part(Selection("runs.csv", "digits"), "all", published="published.csv", **more)


def rows(text):
    lines = [line.strip("|").split("|") for line in text.splitlines() if line[:1] == "|"]
    return [[cell.strip() for cell in cells] for cells in lines]


def test_the_page_is_what_the_command_makes_from_the_committed_files():
    text = PAGE.read_text(encoding="utf-8")
    assert page(text, MANIFEST, RESULTS) == text


def test_ours_beside_the_papers_by_one_score(results):
    part = a_part(published_as={"local mu=0": "local"}, also=["accuracy_head"])
    text = part_markdown(part, results)
    head, _, *lines = rows(text)
    named = "method | all clients, best % | last round % | own head, best % | rounds | seeds"
    assert head == [*named.split(" | "), "paper %", "ours - paper"]
    fedproto = "60.00 ± 10.00 | 55.00 ± 5.00 | 70.00 ± 10.00 | 10 to 20 | 2 | 61.00 ± 0.50 | -1.00"
    assert lines == [
        ["local mu=0", "65.00", "65.00", "65.00", "10", "1", "70.50", "-5.50"],
        ["fedproto", *fedproto.split(" | ")],
    ]
    assert text.endswith("Rows of the paper that were not run in this form: fd no convergence.")
    text = part_markdown(a_part(), results)
    assert "not run in this form: local 70.50, fd no convergence." in text


def test_the_participants_score_is_the_best_of_all_rounds_and_has_no_last_round(results):
    head, _, first, *_ = rows(part_markdown(a_part(score="accuracy_participants"), results))
    assert head[:3] == ["method", "participants, best %", "rounds"]
    assert first == ["fedproto", "85.00 ± 5.00", "10 to 20", "2", "61.00 ± 0.50", "+24.00"]


@pytest.mark.parametrize(
    "more, paper, why",
    [
        ({"published_score": "accuracy_weighted"}, "61.00 ± 0.50", "another score (clients"),
        ({"published_dataset": "other"}, "5.00", "another dataset (other)"),
    ],
)
def test_other_scores_and_datasets_have_no_difference(results, more, paper, why):
    text = part_markdown(a_part(**more), results)
    assert [line[-1] for line in rows(text) if line[0] == "fedproto"] == [paper]
    assert f"No difference is given: the paper's numbers are of {why}" in text
    assert "ours - paper" not in text


def test_a_rule_of_inference_counts_for_all_scores_of_its_method(results):
    lines = rows(part_markdown(a_part(rules={"fedproto": "head"}), results))
    (line,) = [line for line in lines if "own head" in line[0]]
    assert line[:3] == ["fedproto, by own head", "70.00 ± 10.00", "65.00 ± 5.00"]


def test_runs_are_chosen_by_method_seed_and_round(results):
    chosen = Selection("runs.csv", "digits", methods=["fedproto"], seeds=[1], rounds=10)
    (run,) = selected(chosen, results)
    assert {row["round"] for row in run.history} == {10}


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda r: part_markdown(a_part(score="loss"), r), "all: loss is no score; there are"),
        (lambda r: part_markdown(a_part(published_dataset="x"), r), "all: published.csv has no"),
        (lambda r: part_markdown(a_part(rules={"fedproto": "y"}), r), "all: runs.csv has no"),
        (lambda r: selected(NO_FML, r), "runs.csv has no fml on digits"),
        (lambda r: page("no marks", MANIFEST, r), "the page needs the lines <!-- made"),
    ],
)
def test_wrong_parts_and_selections_are_one_line(results, make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make(results)


@pytest.mark.parametrize(
    "text, message",
    [
        ("tables = [", "is no TOML file"),
        ("tables = []", "x.toml: the field 'pictures' is missing"),
        ("tables = [{titel = 'a'}]\npictures = []", "tables: there is no field 'titel'"),
    ],
)
def test_a_mistake_in_the_manifest_is_one_line(tmp_path, text, message):
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)):
        read_manifest(tmp_path / "x.toml")


def test_outside_of_the_repository_it_says_what_it_misses(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        paper_tables.main(None)
    assert stopped.value.code == 2 and "tables.toml" in capsys.readouterr().err


def test_files_commands_and_settings_that_the_page_names_exist():
    for table in MANIFEST.tables:
        for part in table.parts:
            for command in re.sub(r"\\\n", " ", part.command).strip().splitlines():
                file, argument = re.search(r"--config=(\w+):?(\S*)", command).groups()
                assert f"{file}.py" in table.configs
                config = read_config_file(f"{file}:{argument}" if argument else file)
                fields = set(paths(config))
                for key in re.findall(r"--config\.([\w.]+)=", command):
                    assert key in fields, command
    for picture in MANIFEST.pictures:
        assert (ROOT / picture.file).exists() and picture.runs
