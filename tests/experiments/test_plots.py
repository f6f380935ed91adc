"""Pictures that need no run."""

import numpy as np
from matplotlib import pyplot as plt

from experiments.plots import client_spread, image_grid


def test_an_image_grid_titles_its_blocks_and_names_each_class_once():
    images = np.linspace(0, 1, 5 * 4 * 4).reshape(5, 4, 4, 1)
    figure = image_grid({"made": images, "in colour": np.repeat(images[:2], 3, -1)}, ("cat", "dog", "owl"))
    parts = figure.subfigs
    assert [part.get_suptitle() for part in parts] == ["made", "in colour"]
    assert [[cell.get_title() for cell in part.axes] for part in parts] == [
        ["cat", "dog", "owl", "", "", ""],
        ["cat", "dog", ""],
    ]
    drawn = [cell.images[0].get_array().squeeze() for cell in parts[0].axes if cell.images]
    np.testing.assert_array_equal(drawn, images[..., 0])
    plt.close(figure)


def test_a_box_spans_the_clients_of_the_best_round_averaged_over_trials():
    rows = [
        {"trial": t, "round": r, "accuracy": a, "clients": clients}
        for t, r, a, clients in (
            (0, 0, 0.1, [0.1, 0.1, 0.1, None]),
            (0, 1, 0.6, [0.2, 0.6, 1.0, None]),
            (1, 0, 0.1, [0.1, 0.1, 0.1, None]),
            (1, 1, 0.4, [0.0, 0.4, 0.8, None]),
        )
    ]
    (axes,) = client_spread({"local": rows}).axes
    lines = [line.get_ydata() for line in axes.lines]
    clients = [10.0, 50.0, 90.0]  # percent; who has no score is left out
    drawn = np.concatenate(lines)
    assert drawn.min() == clients[0] and drawn.max() == clients[-1]
    assert any(np.allclose(line, clients[1]) and len(line) == 2 for line in lines)  # the median
    assert [label.get_text() for label in axes.get_xticklabels()] == ["local"]
    plt.close("all")
