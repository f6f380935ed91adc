"""Weights that torch and safetensors save are read without either, and nothing in a file runs."""

import base64
import io
import json
import os
import pickle
import struct
import sys
import zipfile
import zlib

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.data.files.torch_files import load_state_dict, read_storage, save_safetensors
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
    storage = (
        b"("
        + plain("storage")
        + b"ctorch\n"
        + kind.encode()
        + b"\n"
        + b"".join(map(plain, (key, "cpu", 0)))
        + b"tQ"
    )
    arguments = b"".join(map(plain, (offset, shape, strides, False)))
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + arguments + ORDERED_DICT + b"tR"


def state_dict(**tensors):
    """The pickle of an OrderedDict with the attribute that torch gives it."""
    entries = b"".join(plain(name) + value for name, value in tensors.items())
    return (
        b"\x80\x02"
        + ORDERED_DICT
        + b"("
        + entries
        + b"u}"
        + plain("_metadata")
        + plain({"": 1})
        + b"sb."
    )


def write(path, pickled, storages=None, compression=zipfile.ZIP_STORED, byteorder=b"little"):
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("top/data.pkl", pickled)
        archive.writestr("top/byteorder", byteorder)
        for key, array in (storages or {"0": np.arange(2, dtype=np.float32)}).items():
            archive.writestr(f"top/data/{key}", array.tobytes())
    return path


def test_a_file_that_torch_wrote(tmp_path):
    (tmp_path / "weights.pth").write_bytes(TORCH_FILE)
    arrays = load_state_dict(tmp_path / "weights.pth")
    assert list(arrays) == ["weight", "count", "half"]
    np.testing.assert_array_equal(arrays["weight"], np.arange(6, dtype=np.float32).reshape(2, 3).T)
    assert (
        arrays["count"].shape == () and arrays["count"].dtype == np.int64 and arrays["count"] == 7
    )
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
    assert array.dtype == DTYPES[kind]
    np.testing.assert_array_equal(array, values[1:5].reshape(2, 2))


@pytest.mark.parametrize("kind", DTYPES)
def test_storages_of_old(kind):
    values = np.array([0, 1, 0, 1, 1]).astype(DTYPES[kind])
    read = read_storage(storage(values, kind))
    assert read.dtype == DTYPES[kind]
    np.testing.assert_array_equal(read, values)


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
    expected = {
        "whole": table,
        "transposed": table.T,
        "column": table[:, 1],
        "last": values[11],
        "none": table[:0],
    }
    for name, value in (expected | {"repeated": np.tile(values[:2], (3, 1))}).items():
        np.testing.assert_array_equal(arrays[name], value)
        assert arrays[name].shape == value.shape and arrays[name].flags.c_contiguous


def test_parameters_are_tensors(tmp_path):
    parameter = (
        b"ctorch._utils\n_rebuild_parameter\n(" + tensor() + plain(True) + ORDERED_DICT + b"tR"
    )
    assert load_state_dict(write(tmp_path / "x.pth", state_dict(x=parameter)))["x"].tolist() == [
        0,
        1,
    ]


class Attack:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize(
    "place", ["instead of the dict", "as an entry", "as a storage", "in the metadata"]
)
def test_nothing_runs(tmp_path, place):
    target = tmp_path / "written"
    attack = pickle.dumps(Attack(target), 2)
    pickle.loads(attack)
    assert target.exists()  # the attack is real
    target.unlink()
    pickled = {
        "instead of the dict": attack,
        "as an entry": state_dict(x=attack[2:-1]),
        "as a storage": state_dict(
            x=tensor().replace(plain("storage"), plain("storage") + attack[2:-1])
        ),
        "in the metadata": state_dict(x=tensor()).replace(plain({"": 1}), attack[2:-1]),
    }[place]
    with pytest.raises(
        ValueError, match=r"x\.pth: the pickle names \w+\.system; only tensors by name"
    ):
        load_state_dict(write(tmp_path / "x.pth", pickled))
    assert not target.exists()


@pytest.mark.parametrize(
    "name",
    [
        "torch.storage _load_from_bytes",
        "torch._utils _rebuild_tensor_v3",
        "torch load",
        "builtins dict",
    ],
)
def test_other_names_of_torch_are_refused(tmp_path, name):
    pickled = state_dict(x=b"c" + name.replace(" ", "\n").encode() + b"\n(" + plain(b"") + b"tR")
    with pytest.raises(ValueError, match=f"names {name.replace(' ', '.')}; only tensors"):
        load_state_dict(write(tmp_path / "x.pth", pickled))


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
    with pytest.raises(ValueError, match="tensor 'x' does not lie in its storage"):
        load_state_dict(write(tmp_path / "x.pth", state_dict(x=tensor(**place))))


REFUSED = {
    "an entry that is no tensor": (
        state_dict(x=tensor(), epoch=plain(3)),
        {},
        "entry 'epoch' is no tensor",
    ),
    "a list": (b"\x80\x02].", {}, "holds a list; expected tensors by name"),
    "a tensor": (
        b"\x80\x02" + tensor() + b".",
        {},
        "holds a _rebuild_tensor_v2; expected tensors by name",
    ),
    "a tensor without a name": (
        b"\x80\x02}" + plain(1) + tensor() + b"s.",
        {},
        "entry 1 is no tensor",
    ),
    "half a pickle": (state_dict(x=tensor())[:-9], {}, "damaged"),
    "no storage": (state_dict(x=tensor(key="1")), {}, "damaged.*top/data/1"),
    "another storage": (
        state_dict(x=tensor(key="../data.pkl")),
        {},
        r"damaged.*top/data/\.\./data\.pkl",
    ),
    "half a number": (
        state_dict(x=tensor()),
        {"storages": {"0": np.zeros(5, np.uint8)}},
        "multiple of element size",
    ),
    "compressed": (state_dict(x=tensor()), {"compression": zipfile.ZIP_DEFLATED}, "is compressed"),
    "big-endian": (state_dict(x=tensor()), {"byteorder": b"big"}, "big-endian machine"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_anything_else_is_one_clear_line(tmp_path, what):
    pickled, options, message = REFUSED[what]
    with pytest.raises(ValueError, match=rf"x\.pth: .*{message}") as error:
        load_state_dict(write(tmp_path / "x.pth", pickled, **options))
    assert "\n" not in str(error.value)


def test_other_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no weights at .*none\.pth"):
        load_state_dict(tmp_path / "none.pth")
    (tmp_path / "x.ckpt").write_bytes(b"")
    with pytest.raises(
        ValueError, match=r"read from files that end in \.pth, \.pt, \.tar, \.safetensors, \.npz"
    ):
        load_state_dict(tmp_path / "x.ckpt")
    (tmp_path / "x.npz").write_bytes(b"")
    with pytest.raises(ValueError, match=r"x\.npz: no \.npz file of numbers: "):
        load_state_dict(tmp_path / "x.npz")
    (tmp_path / "old.pth").write_bytes(
        pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2)
    )
    with pytest.raises(ValueError, match=r"old\.pth: damaged pickle"):
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
    with pytest.raises(
        ImportError,
        match=r"x\.safetensors: needs safetensors; run pip install 'fedjax_ht\[weights\]'",
    ):
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
    with pytest.raises(
        ValueError,
        match=rf"x\.safetensors: 'a\.weight' is {kind}, which numpy does not have; save it",
    ):
        load_state_dict(path)


def stream(pickled, storages):
    """A file of torch before 1.6: a header, what was saved, the storages' names, and their
    numbers."""
    start = [
        0x1950A86A20F9469CFC6C,
        1001,
        {"protocol_version": 1001, "little_endian": True, "type_sizes": {}},
    ]
    numbers = [array.size.to_bytes(8, "little") + array.tobytes() for array in storages.values()]
    return b"".join(
        [*(pickle.dumps(x, 2) for x in start), pickled, pickle.dumps(list(storages), 2), *numbers]
    )


def test_files_of_old(tmp_path):
    path, values = tmp_path / "googlenet.pth.tar", np.arange(6, dtype=np.float32)
    pickled = state_dict(
        a=tensor(key="1", shape=(2, 3), strides=(3, 1)), b=tensor("LongStorage", key="0")
    )
    storages = {"0": np.array([7, 8]), "1": values}
    path.write_bytes(stream(pickled, storages))
    arrays = load_state_dict(path)
    np.testing.assert_array_equal(arrays["a"], values.reshape(2, 3))
    assert arrays["b"].tolist() == [7, 8] and arrays["b"].dtype == np.int64
    for damaged, message in (
        (stream(pickled, storages)[:-1], "a storage holds 5 numbers and says 6"),
        (stream(pickled, storages) + b"x", "1 bytes are left"),
        (stream(pickled, {"0": storages["0"]}), "it does not hold the storages that it names"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"tar: {message}"):
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
        assert {name: array.tolist() for name, array in arrays.items()} == {
            "fc.weight": [0, 1],
            "fc.bias": [0],
        }
    one = dictionary({"module.a": tensor(), "b": tensor()})  # no prefix of all names
    assert list(load_state_dict(write(tmp_path / "x.pth", b"\x80\x02" + one + b"."))) == [
        "module.a",
        "b",
    ]


def test_numpy_and_safetensors(tmp_path):
    arrays = {
        "params/base/a": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "n": np.array(3),
        "c": np.zeros((0, 2), "f4"),
    }
    np.savez(tmp_path / "x.npz", **arrays)
    save_safetensors(tmp_path / "x.safetensors", arrays)
    pytest.importorskip("safetensors")
    for name in ("x.npz", "x.safetensors"):
        read = load_state_dict(tmp_path / name)
        assert read.keys() == arrays.keys()
        for key, value in arrays.items():
            assert read[key].dtype == value.dtype
            np.testing.assert_array_equal(read[key], value)


def test_what_the_installed_torch_writes(tmp_path):
    torch = pytest.importorskip("torch")
    base = torch.arange(24.0).reshape(2, 3, 4)
    tensors = {
        "a": base,
        "b": base.permute(2, 0, 1),
        "c": base[:, 1],
        "d": torch.nn.Parameter(base[0]),
        "e": base.long(),
    }
    torch.save(tensors, tmp_path / "x.pth")
    arrays = load_state_dict(tmp_path / "x.pth")
    assert arrays.keys() == tensors.keys()
    for name, value in tensors.items():
        np.testing.assert_array_equal(arrays[name], value.detach().numpy())
    buffer = io.BytesIO()
    torch.save(tensors, buffer, _use_new_zipfile_serialization=False)
    (tmp_path / "old.pt").write_bytes(buffer.getvalue())
    old = load_state_dict(tmp_path / "old.pt")
    assert old.keys() == tensors.keys()
    for name, value in arrays.items():
        np.testing.assert_array_equal(old[name], value)
