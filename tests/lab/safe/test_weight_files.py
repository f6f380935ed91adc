"""Weights in other files than torch's zip: safetensors and .npz."""

import json
import struct
import sys
import zipfile

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.lab.safe.torch_files import load_state_dict, noted_classes, save_safetensors
from tests.lab.safe.test_torch_files import TORCH_FILE, refused, tensor, write
from tests.pickles import ORDERED_DICT, call, dictionary, plain


def test_other_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no weights at .*none\.pth"):
        load_state_dict(tmp_path / "none.pth")
    (tmp_path / "x.ckpt").write_bytes(b"")
    refused(r"in a file that ends in \.pth, \.pt, \.tar", tmp_path / "x.ckpt")
    (tmp_path / "x.npz").write_bytes(b"")
    refused(r"x\.npz: ", tmp_path / "x.npz")
    with zipfile.ZipFile(tmp_path / "zip.pt", "w") as archive:
        archive.writestr("readme", "")
    refused(r"zip file with 0 entries data\.pkl", tmp_path / "zip.pt")
    (tmp_path / "cut.pt").write_bytes(TORCH_FILE[:-60] + TORCH_FILE[-22:])
    refused(r"cut\.pt: damaged", tmp_path / "cut.pt")


def test_safetensors_is_asked_for_by_name(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    (tmp_path / "x.safetensors").write_bytes(b"")
    with pytest.raises(ImportError, match=r"x\.safetensors: needs safetensors; run pip install"):
        load_state_dict(tmp_path / "x.safetensors")


def write_safetensors(path, values: bytes, **entries: tuple):
    """Writes a file by hand: of each entry its dtype, shape, and where its bytes are."""
    fields = ("dtype", "shape", "data_offsets")
    named = {name: dict(zip(fields, entry)) for name, entry in entries.items()}
    header = json.dumps(named).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + values)
    return path


def test_safetensors(tmp_path):
    pytest.importorskip("safetensors")
    entries = {"a": ("F32", [2, 1], [0, 8]), "b": ("BF16", [1], [8, 10])}
    values = np.array([1, 2], np.float32).tobytes() + np.array([3], jnp.bfloat16).tobytes()
    arrays = load_state_dict(write_safetensors(tmp_path / "x.safetensors", values, **entries))
    np.testing.assert_array_equal(arrays["a"], np.array([[1], [2]], np.float32))
    assert arrays["b"].dtype == jnp.bfloat16 and arrays["b"].tolist() == [3]
    path = write_safetensors(tmp_path / "x.safetensors", values[:-1], **entries)
    refused(r"x\.safetensors: not a safetensors file", path)


@pytest.mark.parametrize("kind", ["F8_E4M3", "F8_E5M2"])
def test_safetensors_of_numbers_that_numpy_lacks(tmp_path, kind):
    pytest.importorskip("safetensors")
    path = write_safetensors(tmp_path / "x.safetensors", bytes(4), weight=(kind, [4], [0, 4]))
    refused(rf"x\.safetensors: 'weight' is {kind}, which numpy does not have; save it", path)


def test_checkpoints_of_training_scripts(tmp_path):
    names = {"module.fc.weight": tensor(), "module.fc.bias": tensor(shape=(1,))}
    inner = dictionary(names, ORDERED_DICT)
    script = {
        "epoch": plain(3),
        "optimizer": dictionary({"state": dictionary({"step": tensor()})}),
        "args": call("argparse Namespace"),
    }

    def read(entries):
        pickled = b"\x80\x02" + dictionary(entries) + b"."
        return load_state_dict(write(tmp_path / "x.pth", pickled))

    for key in ("state_dict", "model"):
        arrays = read(script | {key: inner})
        expected = {"fc.weight": [0, 1], "fc.bias": [0]}
        assert {name: array.tolist() for name, array in arrays.items()} == expected
    mixed = {"module.a": tensor(), "b": tensor()}  # no prefix of all names
    assert list(read(mixed)) == ["module.a", "b"]


def test_numpy_and_safetensors(tmp_path):
    arrays = {
        "params/base/a": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "n": np.array(3),
        "c": np.zeros((0, 2), "f4"),
    }
    np.savez(tmp_path / "x.npz", **arrays)
    save_safetensors(tmp_path / "x.safetensors", arrays, ("a", "b"))
    pytest.importorskip("safetensors")
    assert noted_classes(tmp_path / "x.safetensors") == ("a", "b")
    assert noted_classes(tmp_path / "x.npz") is None
    for name in ("x.npz", "x.safetensors"):
        read = load_state_dict(tmp_path / name)
        assert read.keys() == arrays.keys()
        for key, value in arrays.items():
            assert read[key].dtype == value.dtype
            np.testing.assert_array_equal(read[key], value)
