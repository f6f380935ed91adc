"""Pictures that need no run."""

import numpy as np
from matplotlib import pyplot as plt

from experiments.plots import image_grid


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
