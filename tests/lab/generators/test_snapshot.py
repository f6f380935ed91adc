"""Snapshots are read without torch, and nothing that they ask for is run."""

import functools
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from fedjax_ht.lab.generators import open_generator
from fedjax_ht.lab.generators.stylegan3_files import open_snapshot
from tests.lab.generators.small import refused
from tests.pickles import (
    Reduced,
    attacks,
    call,
    dictionary,
    network,
    plain,
    storage,
    tensor,
    write_snapshot,
)

REFERENCE = Path(__file__).parent / "reference"
ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)
NETWORK = network("Generator", {"z_dim": plain(4)}, arrays={"weight": tensor(ARRAY)})


def pickled(target: Path) -> dict[str, bytes]:
    """Opcodes that write `target` when loaded, or reach for what lets the next ones do so."""
    known = attacks(target)
    system = known["system"]
    state = (os.system, (f"touch {target}",), {}, None)
    return {name: plain(attack) for name, attack in known.items()} | {
        "system by protocol 4": pickle.dumps(system, 4)[11:-1],  # without its header and frame
        "items": plain(Reduced(list, (), None, iter([system]))),
        "dictionary items": plain(Reduced(dict, (), None, None, iter([(1, system)]))),
        "new object": b"czipfile\nZipFile\n" + plain((str(target), "w")) + b"\x81",
        "state": plain(Reduced(functools.partial, (os.system,), state)),
    }


@pytest.mark.parametrize("name", sorted({*pickled(Path("target"))} - {"new object", "state"}))
def test_the_attacks_are_real(tmp_path, name):
    pickle.loads(b"\x80\x02" + pickled(tmp_path / "written")[name] + b".")
    assert (tmp_path / "written").exists()


@pytest.mark.parametrize("name", pickled(Path("target")))
def test_nothing_runs_beside_a_network(tmp_path, name):
    path = write_snapshot(tmp_path / "x.pkl", D=pickled(tmp_path / "written")[name], G_ema=NETWORK)
    np.testing.assert_array_equal(open_snapshot(path).array("weight"), ARRAY)
    assert not (tmp_path / "written").exists()


@pytest.mark.parametrize("name", pickled(Path("target")))
@pytest.mark.parametrize(
    "place", ["file", "network", "module", "array", "storage", "attribute", "state", "class name"]
)
def test_nothing_runs_inside_a_network(tmp_path, name, place):
    target = tmp_path / "written"
    attack = pickled(target)[name]
    stored = tensor(ARRAY, storage(ARRAY.ravel()).replace(b"ctorch", attack + b"c"))
    altered = {
        "network": attack,
        "module": network("Generator", {}, {"mapping": attack}),
        "array": network("Generator", {}, arrays={"weight": attack}),
        "storage": network("Generator", {}, arrays={"weight": stored}),
        "attribute": network("Generator", {"z_dim": attack}),
        "state": call("torch_utils.persistence _reconstruct_persistent_obj", plain({}), attack),
        "class name": NETWORK.replace(plain("Generator"), attack),
    }
    path = write_snapshot(tmp_path / "x.pkl", G_ema=altered.get(place, attack))
    if place == "file":
        path.write_bytes(b"\x80\x02" + attack + b".")
    refused(r"x\.pkl: ", open_generator, path)
    assert not target.exists()


def test_source_of_a_network_is_not_run(tmp_path):
    source = f"open({str(tmp_path / 'written')!r}, 'w').close()"
    made = network("Generator", {}, arrays={"weight": tensor(ARRAY)}, source=source)
    path = write_snapshot(tmp_path / "x.pkl", G_ema=made)
    assert open_snapshot(path).array("weight").shape == (2, 3)
    assert not (tmp_path / "written").exists()


@pytest.mark.parametrize(
    "opcodes",
    [
        b"\x82\x01",  # an extension code
        plain("os.system") + b"Q",  # a persistent id
        b"cos\nsystem\n}" + plain("__init__") + b"cos\nsystem\nsb",  # state for a name itself
        b"c__main__\nx\n" + plain((1,)) + b"R" + plain((1,)) + b"R",  # a call of a call
    ],
)
def test_other_tricks_are_refused(tmp_path, opcodes):
    path = write_snapshot(tmp_path / "x.pkl", D=opcodes, G_ema=NETWORK)
    refused(r"x\.pkl: (damaged pickle: |unregistered extension)", open_snapshot, path)


def test_contents_of_a_network(tmp_path):
    dill = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n"
    dill += plain((0,)) + plain(b"b") + b"t"
    state = np.array([3.0, 4.0]).__reduce__()[2]
    attributes = {
        "half": plain(0.5),
        "scalar": plain(np.float64(2.5)),
        "size": plain(np.array([36, 24])),
        "dill": call("dill._dill _create_array", dill, plain(state), b"N"),
    }
    parameters = dictionary({"_parameters": dictionary({"weight": tensor(ARRAY)})})
    embedding = b"ctorch.nn.modules.sparse\nEmbedding\n)\x81" + parameters + b"b"
    inner = network("Inner", attributes, arrays={"weight": tensor(ARRAY.T), "none": b"N"})
    made = network("Outer", {}, {"inner": inner, "embed": embedding})
    path = write_snapshot(tmp_path / "x.pkl", G_ema=made)
    outer = open_snapshot(path)
    read = outer.module("inner")
    assert (outer.class_name, read.class_name, read.name) == ("Outer", "Inner", "G_ema.inner")
    assert read.number("half") == 0.5 and read.number("scalar") == 2.5
    assert read.attribute("size").tolist() == [36, 24] and read.attribute("dill").tolist() == [3, 4]
    np.testing.assert_array_equal(read.array("weight"), ARRAY.T)
    assert read.array("none") is None
    np.testing.assert_array_equal(outer.module("embed").array("weight"), ARRAY)
    assert outer.has_module("embed") and not outer.has_module("embed_proj")
    for missing in (read.module, read.array, read.attribute):
        refused(r"^G_ema\.inner, a Inner, has no [\w-]+ padding", missing, "padding")
    refused(r"G_ema\.inner\.size is .*; expected a number", read.number, "size")


PARTS = {"mapping": network("MappingNetwork", {})}
PARTS["synthesis"] = network("SynthesisNetwork", {}, {"b4": network("B", {})})
STYLEGAN2 = network("Generator", {"z_dim": plain(512)}, PARTS)
OF_2019 = b"\x80\x02cdnnlib.tflib.network\nNetwork\n)R."
REFUSED = {
    "a list": ({}, b"\x80\x02].", "holds a list; expected a dictionary with the network G_ema"),
    "StyleGAN of 2019": ({}, OF_2019, "holds a Network; expected a dictionary"),
    "no G_ema": ({"D": NETWORK}, None, "holds a dict; expected a dictionary with the network"),
    "a number": ({"G_ema": plain(3)}, None, "G_ema is a int; expected a torch module"),
    "another class": ({"G_ema": network("DhariwalUNet", {})}, None, "G_ema is a DhariwalUNet"),
    "StyleGAN2": ({"G_ema": STYLEGAN2}, None, "G_ema's synthesis, a SynthesisNetwork"),
    "half a network": ({"G_ema": NETWORK}, None, "G_ema, a Generator, has no sub-module"),
    "nothing": ({}, b"", "damaged pickle: EOFError"),
    "too deep": ({}, b"]" * 100_000 + b"a" * 99_999 + b".", "expected a dictionary|damaged pickle"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_anything_else_is_one_clear_line(tmp_path, what):
    networks, content, message = REFUSED[what]
    path = write_snapshot(tmp_path / "x.pkl", **networks)
    if content is not None:
        path.write_bytes(content)
    refused(rf"x\.pkl: .*({message})", open_generator, path)


@pytest.mark.parametrize("kept", [1000, 100_000, 431_320])
def test_truncated_snapshots(tmp_path, kept):
    (tmp_path / "x.pkl").write_bytes((REFERENCE / "stylegan3_t.pkl").read_bytes()[:kept])
    refused(r"x\.pkl: damaged pickle", open_generator, tmp_path / "x.pkl")


LEFT = "bytes are left for a storage of 6 numbers"
DAMAGE = {
    "of another length": (storage(ARRAY.ravel())[:-4], LEFT),
    "cut inside a number": (storage(ARRAY.ravel())[:-1], LEFT),
    "without its numbers": (storage(ARRAY.ravel()[:0]), "lies outside its storage"),
    "of a big-endian machine": (storage(ARRAY.ravel(), little=False), "big-endian machine"),
    "of an unknown kind": (storage(ARRAY.ravel(), "StringStorage"), "names torch.StringStorage"),
    "cut": (b"\x80", "damaged pickle"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_storages(tmp_path, what):
    stream, message = DAMAGE[what]
    damaged = network("Generator", {}, arrays={"weight": tensor(ARRAY, stream)})
    path = write_snapshot(tmp_path / "x.pkl", G_ema=damaged)
    refused(message, lambda: open_snapshot(path).array("weight"))


def test_no_torch_is_needed(monkeypatch):
    for name in ("torch", "dill", "dnnlib", "torch_utils"):
        monkeypatch.setitem(sys.modules, name, None)
    assert open_generator(REFERENCE / "styleganxl_t64.pkl").latent_dim == 64


def test_other_paths(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no generator at .*none\.pkl"):
        open_generator(tmp_path / "none.pkl")
    refused("a folder without unet and vae", open_generator, tmp_path)
    (tmp_path / "x.txt").write_text("")
    refused(r"expected a \.pkl snapshot, a \.npz, or", open_generator, tmp_path / "x.txt")
