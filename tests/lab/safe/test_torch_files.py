"""Weights that torch and safetensors save are read without either, and nothing in a file runs."""

import base64
import json
import pickle
import struct
import sys
import zipfile
import zlib

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.lab.safe.torch_files import (
    load_state_dict,
    noted_classes,
    read_storage,
    save_safetensors,
)
from tests.pickles import ORDERED_DICT, call, dictionary, plain, storage

# Written by torch 2.13: {"weight": arange(6.).reshape(2, 3).T, "count": int64 7, "half": bfloat16
# [1.5, -2]}.
TORCH_FILE = zlib.decompress(
    base64.b64decode(
        "eNqlVbtv00AYPzuJkxqaPoAmLdA5lUrqOC+HVyoLuYORSFMhRV0iN3FjCzfuOZdWICFFQq3UDRASG2JBYmCHsTsTCxNbh4qJPwHu7Ma1XSWh7adc"
        "Torv9/B9j1TkUBiAWAyciUkwDRSroek76lJTQUp6+5khiXGw7ose/RKCVI3BgF1Vb2kIUg1kYli63kW60WHrlrrR1Y1mHantjmnVd3gW0qlULYoR"
        "HXxSaakw5EBYyTAVtOb8yMJwjcJnOBiphfDe2O5CRmYQjK7KQA7J9D6MyZQc2odjB42GaRhqA+lmu8M+sZqqpTYf6Q3EQnahCq8geLUKx2sRwmJ2"
        "2wjGNexA66s+NtstV3TCFs3ASY2RKQSnsNjCwoFGeKYRvFaF12v4voCmGJvwho9GtN1nCi7VjE3FwwSmohFMEt/0HpyVqT0451DeRPBWFd7upity"
        "NDb+vbS4giFkVQamJQFyblrSm6a1paD6jmp18LtLIhfIzujIEOWvf369Il7JGqw8B4qnyiepqyuG3mpvqW0kidlzi+Mo5IiB8i78TWMJeqiBKVB2"
        "DWw8R6pJMi2J9y6i2w9DR8hQiYe9B0ezpIyZoR7i4KGvK5Y4Sbx7CQMOa6+Mv5bxB68eXh+XiaPE6+M3SfwgOcLRot9RRhJT/+0oesJC9LZ/HptE"
        "IDZC775fj5dE4cI3cFgGh0Q7urp+RBorPFR7wlMBbtFfKv9Zlqj/+NB6Orr+5gF/2gD2q3dUS8cd8EIho6euNyUxfU4znJAr5QRByBVLhTyXE4rZ"
        "PMcV81meywqZQonP4yccny/ZFfrpSy+FfaRslxQx6/r0Do/JM86DczyI9g6AhA/5ngKDxk2QxNvEc/7GpcGQyRHk8TbilI/nrYfHHQBBuLdr4j74"
        "TAgEejeI9XaAH/s5iM0Esd4K9mOT4QCWD2K99Tfhw77zYAfcu7cs5n3g6QgYUbAVmWEW++UduuMixwL7Cu3s3yL9ccHYk+Pvyfxw/jkijIMZs887"
        "Z/8B1gPUvQ=="
    )
)


def tensor(kind="FloatStorage", key="0", offset=0, shape=(2,), strides=(1,)):
    """The opcodes of a tensor, as torch writes them."""
    parts = [plain("storage"), f"ctorch\n{kind}\n".encode(), *map(plain, (key, "cpu", 0))]
    storage = b"(" + b"".join(parts) + b"tQ"
    places = map(plain, (offset, shape, strides, False))
    return call("torch._utils _rebuild_tensor_v2", storage, *places, ORDERED_DICT)


def state_dict(**tensors):
    """The pickle of an OrderedDict with the attribute that torch gives it."""
    attributes = dictionary({"_metadata": plain({"": 1})})
    return b"\x80\x02" + dictionary(tensors, ORDERED_DICT) + attributes + b"b."


def write(path, pickled, storages=None, compression=zipfile.ZIP_STORED, byteorder=b"little"):
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("top/data.pkl", pickled)
        archive.writestr("top/byteorder", byteorder)
        for key, array in (storages or {"0": np.arange(2, dtype=np.float32)}).items():
            archive.writestr(f"top/data/{key}", array.tobytes())
    return path


def refused(message, path):
    """`load_state_dict` refuses the file in one line that matches the message."""
    with pytest.raises(ValueError, match=message) as error:
        load_state_dict(path)
    assert "\n" not in str(error.value)


def test_a_file_that_torch_wrote(tmp_path):
    (tmp_path / "weights.pth").write_bytes(TORCH_FILE)
    arrays = load_state_dict(tmp_path / "weights.pth")
    assert list(arrays) == ["weight", "count", "half"]
    np.testing.assert_array_equal(arrays["weight"], np.arange(6, dtype=np.float32).reshape(2, 3).T)
    assert arrays["count"].shape == () and arrays["count"].dtype == np.int64
    assert arrays["count"] == 7
    assert arrays["half"].dtype == jnp.bfloat16 and arrays["half"].tolist() == [1.5, -2]


DTYPES = {
    "BFloat16Storage": jnp.bfloat16,
    "BoolStorage": np.bool_,
    "ByteStorage": np.uint8,
    "CharStorage": np.int8,
    "DoubleStorage": np.float64,
    "FloatStorage": np.float32,
    "HalfStorage": np.float16,
    "IntStorage": np.int32,
    "LongStorage": np.int64,
    "ShortStorage": np.int16,
}


@pytest.mark.parametrize("kind", DTYPES)
def test_dtypes(tmp_path, kind):
    values = np.array([0, 1, 0, 1, 1, 0]).astype(DTYPES[kind])
    pickled = state_dict(x=tensor(kind, offset=1, shape=(2, 2), strides=(2, 1)))
    array = load_state_dict(write(tmp_path / "x.pt", pickled, {"0": values}))["x"]
    old = read_storage(storage(values, kind))
    assert array.dtype == old.dtype == DTYPES[kind]
    np.testing.assert_array_equal(array, values[1:5].reshape(2, 2))
    np.testing.assert_array_equal(old, values)


def test_a_storage_of_another_length_is_refused():
    content = storage(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="11 bytes are left for a storage of 3 numbers; the file"):
        read_storage(content[:-1])
    with pytest.raises(ValueError, match="it has 1 bytes too many; the file is damaged"):
        read_storage(content + b"x")


def stream(pickled, storages, keys=None, version=1001, little=True):
    """A file of torch before 1.6."""
    system = {"protocol_version": 1001, "little_endian": little, "type_sizes": {}}
    header = [pickle.dumps(value, 2) for value in (0x1950A86A20F9469CFC6C, version, system)]
    names = pickle.dumps(list(storages) if keys is None else keys, 2)
    parts = [x.size.to_bytes(8, "little") + x.tobytes() for x in storages.values()]
    return b"".join([*header, pickled, names, *parts])


OLD = (
    state_dict(x=tensor(), count=tensor("LongStorage", "1", shape=(), strides=())),
    {"1": np.array([7]), "0": np.array([1.5, -2], np.float32)},
)


def test_a_file_of_torch_before_1_6(tmp_path):
    (tmp_path / "old.pth").write_bytes(stream(*OLD))
    arrays = load_state_dict(tmp_path / "old.pth")
    assert list(arrays) == ["x", "count"]
    assert arrays["x"].tolist() == [1.5, -2] and arrays["x"].dtype == np.float32
    assert arrays["count"] == 7 and arrays["count"].dtype == np.int64


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (stream(*OLD, version=1002), "not in a torch format"),
        (stream(*OLD, little=False), "from a big-endian machine"),
        (stream(*OLD, keys=["0", "1", "1"]), "storages differ from those it names"),
        (stream(*OLD, keys=[["0"], "1"]), "damaged pickle: TypeError"),
        (b"", "damaged pickle: EOFError"),
    ],
)
def test_damaged_files_of_torch_before_1_6(tmp_path, content, message):
    (tmp_path / "old.pth").write_bytes(content)
    refused(rf"old\.pth: .*{message}", tmp_path / "old.pth")


def test_a_cut_stream_is_one_line(tmp_path):
    whole = stream(*OLD)
    for end in range(len(whole)):
        (tmp_path / "old.pth").write_bytes(whole[:end])
        refused(r"old\.pth: ", tmp_path / "old.pth")


def test_views_of_one_storage(tmp_path):
    values = np.arange(12, dtype=np.float32)
    views = {
        "whole": tensor(shape=(3, 4), strides=(4, 1)),
        "transposed": tensor(shape=(4, 3), strides=(1, 4)),
        "column": tensor(offset=1, shape=(3,), strides=(4,)),
        "last": tensor(offset=11, shape=(), strides=()),
        "none": tensor(shape=(0, 4), strides=(4, 1)),
        "repeated": tensor(shape=(3, 2), strides=(0, 1)),
    }
    arrays = load_state_dict(write(tmp_path / "x.pth", state_dict(**views), {"0": values}))
    table = values.reshape(3, 4)
    expected = [table, table.T, table[:, 1], values[11], table[:0], np.tile(values[:2], (3, 1))]
    for name, value in zip(views, expected, strict=True):
        np.testing.assert_array_equal(arrays[name], value)
        assert arrays[name].shape == value.shape and arrays[name].flags.c_contiguous


def test_parameters_are_tensors(tmp_path):
    parameter = call("torch._utils _rebuild_parameter", tensor(), plain(True), ORDERED_DICT)
    found = load_state_dict(write(tmp_path / "x.pth", state_dict(x=parameter)))["x"].tolist()
    assert found == [0, 1]


@pytest.mark.parametrize(
    "place", ["instead of the dict", "as an entry", "as a storage", "in the metadata"]
)
def test_nothing_runs(tmp_path, place):
    target = tmp_path / "written"
    attack = call("os system", plain(f"touch {target}"))
    alone = b"\x80\x02" + attack + b"."
    pickle.loads(alone)
    assert target.exists()  # the attack is real
    target.unlink()
    stored = tensor().replace(plain("storage"), plain("storage") + attack)
    pickled = {
        "instead of the dict": alone,
        "as an entry": state_dict(x=attack),
        "as a storage": state_dict(x=stored),
        "in the metadata": state_dict(x=tensor()).replace(plain({"": 1}), attack),
    }[place]
    new = write(tmp_path / "x.pth", pickled)
    (tmp_path / "old.pth").write_bytes(stream(pickled, OLD[1]))
    for path in (new, tmp_path / "old.pth"):
        refused(r"\.pth: the pickle names os\.system; only tensors by", path)
    assert not target.exists()


@pytest.mark.parametrize("name", ["torch.storage _load_from_bytes", "torch load", "builtins dict"])
def test_other_names_of_torch_are_refused(tmp_path, name):
    pickled = state_dict(x=call(name, plain(b"")))
    message = f"names {name.replace(' ', '.')}; only tensors"
    refused(message, write(tmp_path / "x.pth", pickled))


@pytest.mark.parametrize(
    "place",
    [
        {"offset": 1},
        {"offset": -1},
        {"shape": (3,)},
        {"shape": (2,), "strides": (2,)},
        {"shape": (2,), "strides": (-1,), "offset": 1},
        {"shape": (1, 2), "strides": (1,)},
        {"shape": (10**12,), "strides": (0,)},
        {"shape": (-2,), "strides": (1,)},
        {"shape": ("2",)},
    ],
)
def test_tensors_outside_their_storage_are_refused(tmp_path, place):
    path = write(tmp_path / "x.pth", state_dict(x=tensor(**place)))
    refused("tensor 'x' lies outside its storage", path)


WHOLE = state_dict(x=tensor())
REFUSED = {  # message -> the pickle, and how it is written
    "entry 'epoch' is not a tensor": (state_dict(x=tensor(), epoch=plain(3)), {}),
    "holds a list; expected tensors by name": (b"\x80\x02].", {}),
    "holds a _rebuild_tensor_v2; expected tensors": (b"\x80\x02" + tensor() + b".", {}),
    "entry 1 is not a tensor": (b"\x80\x02}" + plain(1) + tensor() + b"s.", {}),
    "damaged pickle": (WHOLE[:-9], {}),
    "damaged.*top/data/1": (state_dict(x=tensor(key="1")), {}),
    r"damaged.*top/data/\.\./data\.pkl": (state_dict(x=tensor(key="../data.pkl")), {}),
    "multiple of element size": (WHOLE, {"storages": {"0": np.zeros(5, np.uint8)}}),
    "is compressed": (WHOLE, {"compression": zipfile.ZIP_DEFLATED}),
    "big-endian machine": (WHOLE, {"byteorder": b"big"}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_anything_else_is_one_clear_line(tmp_path, message):
    pickled, options = REFUSED[message]
    refused(rf"x\.pth: .*{message}", write(tmp_path / "x.pth", pickled, **options))


# Weights in other files than torch's zip: safetensors and .npz.


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
