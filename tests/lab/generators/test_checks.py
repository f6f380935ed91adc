"""Networks that do not fit together, and .npz files of another kind, are one line."""

import numpy as np
import pytest

from fedjax_ht.lab.generators import Card, npz, open_generator
from fedjax_ht.lab.generators.stylegan3_files import checked
from tests.lab.generators.small import SMALL, random_variables, refused


def with_layer(**fields):
    return SMALL._replace(layers=(SMALL.layers[0]._replace(**fields), *SMALL.layers[1:]))


@pytest.mark.parametrize(
    ("network", "arrays", "message"),
    [
        (SMALL, {"layers/0/bias": None}, "the arrays layers/0/bias are missing or unknown"),
        (SMALL, {"layers/2/bias": np.ones(3)}, "the arrays layers/2/bias are missing"),
        (SMALL, {"average": np.ones(3)}, r"average is of shape \(3,\); expected \(7, 8\)"),
        (SMALL, {"average": np.full((7, 8), np.nan)}, "average has non-finite values"),
        (with_layer(outputs=6), {}, "layer 1 does not fit the one before it"),
        (with_layer(padding=(-9, -9, 9, 9)), {}, "leaves an image of -"),
        (SMALL._replace(mapping_layers=10**12), {}, r"has 1,000,000,000,000 mapping layers"),
        (SMALL._replace(layers=()), {}, "the synthesis has no layers"),
    ],
)
def test_damaged_networks_are_one_clear_line(network, arrays, message):
    variables = random_variables(SMALL) | arrays
    variables = {name: value for name, value in variables.items() if value is not None}
    refused(message, checked, network, variables)


def test_other_npz_files(tmp_path):
    path = tmp_path / "x.npz"
    npz.write(path, {"format": "vae"}, Card("x"), {})
    refused(r"x\.npz: holds a generator of format 'vae'; expected", open_generator, path)
    np.savez(path, metadata=np.array("[1]"))
    refused(r"x\.npz: its metadata lacks the generator's format", open_generator, path)
