"""A converted snapshot is the same generator, and a wrong command is one line."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedjax_ht.lab.generators import Card, npz, open_generator
from fedjax_ht.lab.generators.convert import main
from fedjax_ht.lab.generators.stylegan3_files import read_snapshot, save_converted
from tests.lab.generators.small import SMALL, random_variables

REFERENCE = Path(__file__).parent / "reference"


@pytest.fixture(scope="module", params=["stylegan3_t", "stylegan3_r", "styleganxl_t64"])
def converted(request, tmp_path_factory):
    """(the snapshot, what it was converted to)."""
    source, out = (
        REFERENCE / f"{request.param}.pkl",
        tmp_path_factory.mktemp("converted") / "out.npz",
    )
    main([str(source), str(out), "--trained_on=ffhq,afhqv2", "--domain=faces", "--licence=free"])
    return source, out


def test_everything_survives(converted):
    source, out = converted
    network, variables = read_snapshot(source)
    generator = open_generator(out)
    assert generator.synthesize.args == (network,)
    assert generator.variables.keys() == variables.keys()
    for name, value in variables.items():
        assert generator.variables[name].dtype == value.dtype
        np.testing.assert_array_equal(generator.variables[name], value)
    assert generator.card == Card(
        source.stem, ("ffhq", "afhqv2"), "faces", "free", f"{network.family} snapshot {source.name}"
    )


def test_nothing_in_it_is_pickled(converted):
    with np.load(converted[1], allow_pickle=False) as file:
        assert all(file[name].dtype.kind in "fU" for name in file.files)


@pytest.mark.parametrize(
    "arguments",
    [["none.pkl", "x.npz"], ["x.pkl"], ["x.pkl", "y.npz", "--licnce=x"], ["a.pkl", "b"]],
)
def test_a_wrong_command_is_one_line(capsys, arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    output = capsys.readouterr()
    assert stop.value.code == 2 and not output.out
    assert output.err.startswith("error: ") and output.err.count("\n") == 1


def altered(path, **changes):
    """A converted SMALL whose metadata and arrays are changed; None removes one."""
    variables = {
        **random_variables(SMALL),
        **{name: changes[name] for name in changes if name != "metadata"},
    }
    save_converted(
        path,
        SMALL,
        {name: value for name, value in variables.items() if value is not None},
        Card("small"),
    )
    metadata, arrays = npz.read(path)
    metadata = changes.get("metadata", lambda m: m)(metadata)
    np.savez(path, metadata=np.array(json.dumps(metadata)), **arrays)
    return path


def with_layer(metadata, **fields):
    metadata["network"]["layers"][0] |= fields
    return metadata


DAMAGED = {
    "array missing": ({"layers/0/bias": None}, "the arrays layers/0/bias are missing or unknown"),
    "array too many": ({"layers/2/bias": np.ones(3)}, "the arrays layers/2/bias are missing"),
    "shape": ({"average": np.ones(3)}, r"average is of shape \(3,\); expected \(7, 8\)"),
    "not finite": ({"average": np.full((7, 8), np.nan)}, "average holds values that are not"),
    "channels": (
        {"metadata": lambda m: with_layer(m, outputs=6)},
        "layer 1 does not fit the one before it",
    ),
    "padding": (
        {"metadata": lambda m: with_layer(m, padding=[-9, -9, 9, 9])},
        "leaves an image of -",
    ),
    "field missing": ({"metadata": lambda m: {"format": "stylegan3"}}, "'network' is missing"),
    "field unknown": (
        {"metadata": lambda m: with_layer(m, stride=2)},
        "unexpected keyword argument 'stride'",
    ),
    "text for a number": ({"metadata": lambda m: with_layer(m, up="2")}, "no converted StyleGAN3"),
    "10^12 layers": (
        {"metadata": lambda m: m | {"network": m["network"] | {"mapping_layers": 10**12}}},
        r"says 1,000,000,000,000 mapping layers and holds \d+ arrays",
    ),
    "nothing": (
        {"metadata": lambda m: m | {"network": m["network"] | {"layers": []}}},
        "the synthesis has no layers",
    ),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_damaged_files_are_one_clear_line(tmp_path, what):
    changes, message = DAMAGED[what]
    with pytest.raises(
        ValueError, match=rf"x\.npz: no converted StyleGAN3: .*{message}|x\.npz: {message}"
    ) as error:
        open_generator(altered(tmp_path / "x.npz", **changes))
    assert "\n" not in str(error.value)


def test_other_npz_files(tmp_path):
    path = altered(tmp_path / "x.npz", metadata=lambda m: m | {"format": "vae"})
    with pytest.raises(ValueError, match=r"x\.npz: holds a generator of format 'vae'; expected"):
        open_generator(path)
    np.savez(path, x=np.ones(2))
    with pytest.raises(ValueError, match=r"x\.npz: not an \.npz with an entry metadata"):
        open_generator(path)
    np.savez(path, metadata=np.array({"format": "stylegan3"}, dtype=object))
    with pytest.raises(ValueError, match=r"x\.npz: not an \.npz with an entry metadata"):
        open_generator(path)
    path.write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"x\.npz: not an \.npz"):
        open_generator(path)
    np.savez(path, metadata=np.array("[1]"))
    with pytest.raises(ValueError, match=r"x\.npz: its metadata does not say of what format"):
        open_generator(path)
