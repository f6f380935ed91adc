"""The page of a data set: samples, classes and values of every kind, in one file."""

import re

import numpy as np
import pytest

import fedjax_ht as fl
from fedjax_ht.data.reading import LeftOut, Reading
from fedjax_ht.data.selection import subset
from fedjax_ht.lab.runs.data import SAMPLES, command, page_name, write_data_page

LABELS = np.arange(60) % 3
NAMES = ("<ant>", "bee", "cow")
RNG = np.random.default_rng(0)
READING = Reading(
    path="/x",
    features=("age", "dose & rate"),
    token_texts=("", "?", "sun", "rain"),
    left_out=(LeftOut(2, "file .heic", "unsupported image format"),),
    warnings=("column 'age' is used as <the label>",),
)
SETS = {
    "images": {"inputs": RNG.integers(0, 255, (60, 6, 5, 3), np.uint8)},
    "windows": {"inputs": RNG.normal(size=(60, 16, 2))},
    "rows": {"inputs": RNG.normal(size=(60, 2)), "preprocess": fl.Standardised()},
    "texts": {"inputs": RNG.integers(0, 4, (60, 7)), "vocabulary": 4},
    "samples": {"inputs": RNG.integers(0, 9, (60, 2))},
}


def made(kind: str, **fields) -> fl.Dataset:
    official = {"train": np.arange(40), "test": np.arange(40, 60)}
    fields = {"official": official, "reading": READING} | SETS[kind] | fields
    return fl.Dataset("mine", labels=LABELS, class_names=NAMES, **fields)


@pytest.mark.parametrize("kind", SETS)
def test_every_kind_has_samples_classes_and_values(tmp_path, kind):
    dataset = made(kind)
    page = write_data_page(dataset, tmp_path / "page.html").read_text()
    for line in fl.describe(dataset).lines:
        assert line.partition(" (")[0].replace("<", "&lt;").replace(">", "&gt;")[:40] in page
    assert re.findall("<h2>(.*?)</h2>", page) == ["What was read", "Samples", "Classes", "Values"]
    assert "column &#x27;age&#x27; is used as &lt;the label&gt;" in page
    assert "left out: 2 files .heic" in page and "<ant>" not in page
    assert 'src="http' not in page and page.count("<img ") >= (1 if kind == "texts" else 2)
    if kind == "rows":
        assert page.count("<tr>") == SAMPLES + 1 and "dose &amp; rate: mean " in page
    else:
        assert page.count("<small>") == SAMPLES
    if kind == "texts":
        assert re.search("<blockquote>[?sunrai ]*(sun|rain)[?sunrai ]*</blockquote>", page)


@pytest.mark.parametrize("task", ["regression", "multi-label"])
def test_targets_are_shown_as_they_are(tmp_path, task):
    """Not as the groups that partitions make of them."""
    rows = [f"{x / 2},{x % 2},{x % 3 // 2}" for x in range(30)]
    (tmp_path / "x.csv").write_text("\n".join(["a,hot,wide", *rows]))
    dataset = fl.load_dataset(f"csv:{tmp_path}/x.csv:hot,wide", task=task)
    page = write_data_page(dataset, tmp_path / "page.html").read_text()
    assert re.search("<th>hot</th>\\s*<th>wide</th>\\s*<th>row</th>\\s*<th>a</th>", page)
    assert re.search("<td>1</td>\\s*<td>0</td>\\s*<td>3</td>\\s*<td>1.5</td>", page)
    assert "hot: mean 0.5, deviation 0.5" in page and "wide: mean 0.3333" in page
    assert "by columns &#x27;hot, wide&#x27;" in page


def test_samples_are_of_all_classes_and_few_sets_are_whole(tmp_path):
    page = write_data_page(subset(made("images"), 5, 0), tmp_path / "few.html").read_text()
    assert page.count("<small>") == 5
    many = tuple(map(str, range(70)))
    dataset = fl.Dataset("many", np.ones((70, 2)), np.arange(70), many, reading=READING)
    page = write_data_page(dataset, tmp_path / "many.html").read_text()
    assert len(set(re.findall("<tr><td>(.*?)</td>", page))) == SAMPLES
    groups = made("windows", official={}, groups=LABELS)
    assert "<svg" not in write_data_page(groups, tmp_path / "groups.html").read_text()


def test_the_command_prints_the_lines_and_writes_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command(["show", "har_10persons"], "data")
    first, second, written = capsys.readouterr().out.splitlines()
    assert (first, second) == fl.describe(fl.load_dataset("har_10persons")).lines
    assert written == "written: data-har_10persons.html" and (tmp_path / written[9:]).exists()
    with pytest.raises(ValueError, match="unknown command 'show'; give `get NAME`, `list`"):
        command(["show"], "data")


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("cifar10", "data-cifar10.html"),
        ("csv:a/my table.csv.gz:label:who", "data-my-table.html"),
        ("folder:.", "data-folder.html"),
        ("tfds:mnist:3.0.1", "data-mnist-3.html"),
    ],
)
def test_names_of_pages(name, page):
    assert page_name(name) == page
