"""The reader of pickles gives arrays, and runs nothing that a pickle asks for."""

import functools
import io
import pickle
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from fedjax_ht.lab.safe.safe_pickle import load_npy, load_pickle
from tests.pickles import Reduced, attacks


def _npy(value: object) -> io.BytesIO:
    file = io.BytesIO()
    np.save(file, value, allow_pickle=True)
    file.seek(0)
    return file


VALUES = {
    "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
    "fortran order": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "big endian": np.arange(3, dtype=">i4"),
    "bool": np.array([True, False]),
    "scalar": np.float32(3.5),
    "nested": {"x": [np.ones((2, 1)), (1, None)], "y": b"\xff\x01", "z": "text"},
    "integers": [*range(-3, 300), *range(60_000, 70_000, 3), 1 << 31, -(1 << 40), 1 << 70],
    "numbers and texts": [7, "a", 1, 2, 0.5, 300],
    "texts": np.array([([1, 2, 3 << 10], 3), ([1 << 20, 0, 0], 1)], dtype=object),
    "objects": np.array(["a", None, {"b": 1}], dtype=object),
}


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize("name", VALUES)
def test_values_survive(name, protocol):
    content = pickle.dumps(VALUES[name], protocol=protocol)
    spellings = [content]
    # later protocols store the length of a name, which spelling it otherwise would falsify
    if protocol < 4:
        spellings.append(content.replace(b"numpy._core.", b"numpy.core."))  # as numpy 1 does
    for spelling in spellings:
        loaded = load_pickle(io.BytesIO(spelling))
        assert repr(loaded) == repr(VALUES[name])
        assert getattr(loaded, "dtype", None) == getattr(VALUES[name], "dtype", None)


def test_an_npy_holds_a_dict_or_numbers_without_a_pickle():
    loaded = load_npy(_npy({"x": np.ones((2, 1, 3, 3), np.float32), "y": np.array([0, 1])}))
    assert loaded["x"].dtype == np.float32 and loaded["x"].shape == (2, 1, 3, 3)
    assert loaded["y"].tolist() == [0, 1]
    np.testing.assert_array_equal(load_npy(_npy(np.arange(4.0))), np.arange(4.0))
    with pytest.raises(ValueError):
        load_npy(io.BytesIO(b"something else"))


def test_shared_values_are_built_once():
    value = [1]
    for _ in range(20):
        value = [value, value]
    loaded = load_pickle(io.BytesIO(pickle.dumps(value)))
    assert loaded[0] is loaded[1]


def forbidden(target: Path) -> dict[str, Reduced]:
    """Attacks, and what would let the next opcode be one."""
    return attacks(target) | {
        "check_output": Reduced(subprocess.check_output, (["touch", str(target)],)),
        "getattr": Reduced(getattr, ("text", "upper")),
        "partial": Reduced(functools.partial, (print,)),
        "load": Reduced(np.load, (str(target), None, True)),
    }


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("name", forbidden(Path("target")))
def test_nothing_runs(tmp_path, name, protocol):
    target = tmp_path / "written"
    content = pickle.dumps({"x": forbidden(target)[name]}, protocol=protocol)
    with pytest.raises(ValueError, match=rf"^the pickle names [\w.]+\.{name}; only numpy arrays"):
        load_pickle(io.BytesIO(content))
    assert not target.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x04\x8c\x05numpy\x8c\x0edtype.__init__\x93.",  # a dotted name below an allowed one
        b"cnumpy.core.multiarray\nfromstring\n.",
        b"cnumpy.testing._private.utils\nrunstring\n.",
        b"\x82\x01.",  # an extension code
        b"(S'os.system'\np0\nQ.",  # a persistent id
    ],
)
def test_other_ways_to_a_name_are_refused(content):
    with pytest.raises(ValueError):
        load_pickle(io.BytesIO(content))


def test_forged_object_dtype_does_not_turn_bytes_into_pointers():
    honest = pickle.dumps(np.array([None], dtype=object), protocol=2)
    assert honest.count(b"K?t") == 1  # the dtype's flags, 63: an object array's content is a list
    forged = re.sub(rb"(?s)\]q.Na", b"U\x08AAAAAAAA", honest.replace(b"K?t", b"K\x00t"))
    assert forged.count(b"AAAAAAAA") == 1
    with pytest.raises(ValueError, match="not a list"):
        load_pickle(io.BytesIO(forged))


def test_encode_is_only_latin1():
    content = b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R."
    with pytest.raises(ValueError, match="encode"):
        load_pickle(io.BytesIO(content))


def test_altering_an_allowed_name_does_not_last():
    # setattr(ndarray, "__init__", 1)
    build = b"\x80\x02cnumpy\nndarray\nN}X\x08\x00\x00\x00__init__K\x01s\x86b."
    with pytest.raises(ValueError):
        load_pickle(io.BytesIO(build))
    np.testing.assert_array_equal(load_pickle(io.BytesIO(pickle.dumps(np.arange(3)))), np.arange(3))


@pytest.mark.parametrize(
    "content", [b"", b"\x80\x04", b"no pickle", pickle.dumps(np.ones(100))[:-20]]
)
def test_damaged_pickles_are_value_errors(content):
    with pytest.raises(ValueError):
        load_pickle(io.BytesIO(content))


@pytest.mark.parametrize("content", [b"]2a", b"]" * 100_000 + b"a" * 99_999], ids=["own", "deep"])
def test_lists_in_lists_without_end_are_a_value_error(content):
    with pytest.raises(ValueError, match="damaged pickle: RecursionError"):
        load_pickle(io.BytesIO(content + b"."))
