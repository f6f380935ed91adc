"""The spread over splits, model seeds and methods, against sums written out in NumPy."""

import csv

import numpy as np
import pytest

from fedjax_ht.lab.report.seed_sensitivity import (
    SOURCES,
    components,
    sensitivity,
    shares,
    write_cells,
    write_page,
)

RNG = np.random.default_rng(3)
SPLITS, MODELS = np.array([[-3.0], [0.0], [3.0]]), np.array([-1.0, 0.0, 1.0, 0.0])


def test_components_are_the_mean_squares_written_out():
    cells = RNG.normal(70, 2, (3, 4)) + SPLITS
    rows, columns, mean = cells.mean(1), cells.mean(0), cells.mean()
    rest = sum(
        (cells[s, k] - rows[s] - columns[k] + mean) ** 2 for s in range(3) for k in range(4)
    ) / (2 * 3)
    of_split = (4 * sum((rows - mean) ** 2) / 2 - rest) / 4
    of_model = max(0.0, (3 * sum((columns - mean) ** 2) / 3 - rest) / 3)
    estimate = components(cells)
    assert estimate.mean == pytest.approx(mean) and estimate.split**2 == pytest.approx(of_split)
    assert estimate.model**2 == pytest.approx(of_model) and estimate.rest**2 == pytest.approx(rest)
    assert estimate.error**2 == pytest.approx(of_split / 3 + of_model / 4 + rest / 12)


def test_effects_that_add_up_leave_no_rest():
    estimate = components(80 + SPLITS + MODELS)
    assert estimate.rest == pytest.approx(0) and estimate.split == pytest.approx(3)
    assert estimate.model == pytest.approx(np.std(MODELS, ddof=1))


def test_a_negative_estimate_is_zero():
    estimate = components(np.array([[1.0, -1.0], [-1.0, 1.0]]))
    assert estimate.split == estimate.model == 0 and estimate.rest == 2


def test_the_estimates_are_right_on_average():
    draws = [
        RNG.normal(0, 3, (3, 1)) + RNG.normal(0, 2, 3) + RNG.normal(0, 1, (3, 3))
        for _ in range(3000)
    ]
    estimate = np.array([components(cells) for cells in draws])
    assert np.mean(estimate[:, 1:4] ** 2, 0) == pytest.approx([9, 4, 1], rel=0.1)
    # the error is that of the mean over other splits and seeds
    assert np.mean(estimate[:, 4] ** 2) == pytest.approx(np.var(estimate[:, 0]), rel=0.1)


def test_shares_are_the_sums_of_squares_of_every_effect():
    y = RNG.normal(70, 1, (2, 3, 4)) + SPLITS + np.array([0.0, 5.0])[:, None, None]
    mean = y.mean()
    methods, splits, models = y.mean((1, 2)), y.mean((0, 2)), y.mean((0, 1))
    by_split, by_model = y.mean(2), y.mean(1)
    squares = {
        "method": 12 * np.sum((methods - mean) ** 2),
        "split": 8 * np.sum((splits - mean) ** 2),
        "model": 6 * np.sum((models - mean) ** 2),
        "method x split": 4 * np.sum((by_split - methods[:, None] - splits + mean) ** 2),
        "method x model": 3 * np.sum((by_model - methods[:, None] - models + mean) ** 2),
    }
    total = np.sum((y - mean) ** 2)
    estimate = shares(y)
    assert tuple(estimate) == SOURCES and sum(estimate.values()) == pytest.approx(1)
    for name, value in squares.items():
        assert estimate[name] == pytest.approx(value / total)


def test_what_cannot_be_decomposed():
    assert all(map(np.isnan, shares(np.ones((2, 2, 2))).values()))
    for shape in ((1, 3), (3, 1), (3,)):
        with pytest.raises(ValueError, match=r"it must be \[splits, models\], 2 of each at least"):
            components(np.zeros(shape))


def test_the_tables_and_the_files(tmp_path):
    base = 70 + SPLITS[:2] + np.array([0.0, 1.0])
    text = sensitivity(["fedssa", "local"], np.array([base + 2, base]), "local")
    assert "| fedssa minus local | 2.00 | 0.00 | 0.00 | 0.00 | 0.00 |" in text.markdown()
    assert "| method x split | 0.0 |" in text.markdown()
    assert "share" not in sensitivity(["local"], base[None], "local").markdown()
    page = write_page(text, ["fedssa", "local"], [1, 2], tmp_path / "report.html").read_text()
    assert 'href="split_2/report.html"' in page and "fedssa minus local" in page
    file = write_cells({"local": base / 100}, [1, 2], [0, 1], tmp_path / "seeds.csv")
    rows = list(csv.DictReader(file.open()))
    assert len(rows) == 4 and rows[3]["split_seed"] == "2" and rows[3]["model_seed"] == "1"
    assert float(rows[3]["best"]) == pytest.approx(0.71 - 0.03 + 0.03, abs=0.05)
