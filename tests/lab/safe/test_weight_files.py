"""Weights in other files than torch's zip: safetensors and .npz."""

import json
import pickle
import struct
import sys
import zipfile

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.lab.safe.torch_files import load_state_dict, noted_classes, save_safetensors
from tests.lab.safe.test_torch_files import TORCH_FILE, tensor, write
from tests.pickles import ORDERED_DICT, call, dictionary, plain


def test_other_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no weights at .*none\.pth"):
        load_state_dict(tmp_path / "none.pth")
    (tmp_path / "x.ckpt").write_bytes(b"")
    with pytest.raises(ValueError, match=r"read from files that end in \.pth, \.pt, \.tar"):
        load_state_dict(tmp_path / "x.ckpt")
    (tmp_path / "x.npz").write_bytes(b"")
    with pytest.raises(ValueError, match=r"x\.npz: "):
        load_state_dict(tmp_path / "x.npz")
    (tmp_path / "old.pth").write_bytes(
        pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2)
    )
    with pytest.raises(ValueError, match=r"old\.pth: damaged pickle: EOFError"):
        load_state_dict(tmp_path / "old.pth")
    with zipfile.ZipFile(tmp_path / "zip.pt", "w") as archive:
        archive.writestr("readme", "")
    with pytest.raises(ValueError, match=r"zip file with 0 entries data\.pkl"):
        load_state_dict(tmp_path / "zip.pt")
    (tmp_path / "cut.pt").write_bytes(TORCH_FILE[:-60] + TORCH_FILE[-22:])
    with pytest.raises(ValueError, match=r"cut\.pt: damaged"):
        load_state_dict(tmp_path / "cut.pt")


def test_safetensors_is_asked_for_by_name(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    (tmp_path / "x.safetensors").write_bytes(b"")
    with pytest.raises(ImportError, match=r"x\.safetensors: needs safetensors; run pip install"):
        load_state_dict(tmp_path / "x.safetensors")


def test_safetensors(tmp_path):
    pytest.importorskip("safetensors")
    entries = {
        "a": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]},
        "b": {"dtype": "BF16", "shape": [1], "data_offsets": [8, 10]},
    }
    header = json.dumps(entries).encode()
    values = np.array([1, 2], np.float32).tobytes() + np.array([3], jnp.bfloat16).tobytes()
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + values)
    arrays = load_state_dict(path)
    np.testing.assert_array_equal(arrays["a"], np.array([[1], [2]], np.float32))
    assert arrays["b"].dtype == jnp.bfloat16 and arrays["b"].tolist() == [3]
    path.write_bytes(struct.pack("<Q", len(header)) + header + values[:-1])
    with pytest.raises(ValueError, match=r"x\.safetensors: no safetensors file"):
        load_state_dict(path)


@pytest.mark.parametrize("kind", ["F8_E4M3", "F8_E5M2"])
def test_safetensors_of_numbers_that_numpy_lacks(tmp_path, kind):
    pytest.importorskip("safetensors")
    header = json.dumps(
        {"a.weight": {"dtype": kind, "shape": [4], "data_offsets": [0, 4]}}
    ).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    line = rf"x\.safetensors: 'a\.weight' is {kind}, which numpy does not have; save it"
    with pytest.raises(ValueError, match=line):
        load_state_dict(path)


def test_checkpoints_of_training_scripts(tmp_path):
    names = {"module.fc.weight": tensor(), "module.fc.bias": tensor(shape=(1,))}
    inner = dictionary(names, ORDERED_DICT)
    script = {
        "epoch": plain(3),
        "optimizer": dictionary({"state": dictionary({"step": tensor()})}),
        "args": call("argparse Namespace"),
    }
    for key in ("state_dict", "model"):
        arrays = load_state_dict(
            write(tmp_path / "x.pth", b"\x80\x02" + dictionary(script | {key: inner}) + b".")
        )
        expected = {"fc.weight": [0, 1], "fc.bias": [0]}
        assert {name: array.tolist() for name, array in arrays.items()} == expected
    mixed = dictionary({"module.a": tensor(), "b": tensor()})  # no prefix of all names
    expected = ["module.a", "b"]
    assert list(load_state_dict(write(tmp_path / "x.pth", b"\x80\x02" + mixed + b"."))) == expected


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
