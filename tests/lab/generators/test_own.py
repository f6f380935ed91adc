"""A user's own generator by "module:function": the page's example, and what goes wrong."""

import sys

import jax
import numpy as np
import optax
import pytest

import fedjax_ht as fl
from fedjax_ht.lab.config.entries import parse_entry
from fedjax_ht.lab.generators import open_generator
from fedjax_ht.lab.runs.plan import plan
from tests.docs.test_examples import blocks
from tests.runs import config_of


def state_dict():
    """Returns the weights of a DCGAN 16 -> 8 -> 6 -> 3 channels under torch's names."""
    rng, arrays = np.random.default_rng(0), {}
    for at, inputs, outputs in ((0, 16, 8), (3, 8, 6), (6, 6, 3)):
        arrays[f"main.{at}.weight"] = 0.3 * rng.standard_normal((inputs, outputs, 4, 4))
        if outputs > 3:
            for leaf in ("weight", "bias", "running_mean", "running_var"):
                arrays[f"main.{at + 1}.{leaf}"] = rng.uniform(0.5, 1.5, outputs)
            arrays[f"main.{at + 1}.num_batches_tracked"] = np.array(7)
    return {name: np.float32(array) if array.ndim else array for name, array in arrays.items()}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The page's example in the current folder, its weights as .npz."""
    monkeypatch.chdir(tmp_path)
    np.savez("dcgan.npz", **state_dict())
    example = blocks("generators.md")[0].replace("dcgan.pth", "dcgan.npz")
    (tmp_path / "my_gan.py").write_text(example)
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(tmp_path) in str(getattr(module, "__file__", "")):
            del sys.modules[name]


def transposed(x, kernel, stride, padding):
    """torch's ConvTranspose2d by its definition; x [n, h, w, in], kernel [in, out, k, k]."""
    k, side = kernel.shape[-1], x.shape[1]
    wide = (side - 1) * stride + k
    out = np.zeros((len(x), wide, wide, kernel.shape[1]))
    for i in range(side):
        for j in range(side):
            rows, columns = (slice(at * stride, at * stride + k) for at in (i, j))
            out[:, rows, columns] += np.einsum("nc,cohw->nhwo", x[:, i, j], kernel)
    return out[:, padding : wide - padding, padding : wide - padding]


def expected_images(w):
    arrays, x = state_dict(), w[:, None, None, :].astype(np.float64)
    for at, stride, padding in ((0, 1, 0), (3, 2, 1), (6, 2, 1)):
        x = transposed(x, arrays[f"main.{at}.weight"], stride, padding)
        if at < 6:
            leaves = ("weight", "bias", "running_mean", "running_var")
            weight, bias, mean, var = (arrays[f"main.{at + 1}.{leaf}"] for leaf in leaves)
            x = np.maximum((x - mean) / np.sqrt(var + 1e-5) * weight + bias, 0)
    return (np.tanh(x) + 1) / 2


def test_the_example_of_the_page(folder):
    generator = open_generator("my_gan:generator")
    assert generator.latent_dim == 16 and generator.card.trained_on == ("svhn",)
    w = np.asarray(generator.sample_w(generator.variables, jax.random.key(0), 3))
    images = np.asarray(jax.jit(generator.synthesize)(generator.variables, w))
    assert images.shape == (3, 16, 16, 3) and images.std() > 0.05
    np.testing.assert_allclose(images, expected_images(w), atol=1e-5)
    assert str(folder) not in sys.path


def test_a_config_takes_it(folder, tiny_config):
    config = config_of(tiny_config)
    config.entries = ()
    config.method = fl.method_config("fedktl", generator="my_gan:generator", server_epochs=1)
    needs = plan(config).runs["fedktl"].method.needs
    assert needs.pretrained.trained_on == ("svhn",)
    entry = parse_entry("fedktl:generator=my_gan:generator:mu=2")
    assert entry.options["generator"] == "my_gan:generator" and entry.options["mu"] == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_gan:make", r"no module no_such_gan in /\S+ or installed"),
        ("wrong_gan:maker", r"\S*wrong_gan\.py has no function maker; did you mean 'make'\? .*"),
        ("wrong_gan:make", r"dict; it must return a fedjax_ht\.lab\.generators\.Generator"),
    ],
)
def test_wrong_generators_are_one_line(folder, name, message):
    (folder / "wrong_gan.py").write_text("def make(): return {}")
    with pytest.raises(ValueError, match=rf"^generator '{name}'(:| raises| returns) {message}$"):
        fl.fedktl(fl.LocalTraining(optax.sgd(0.1)), generator=name)


def test_a_file_with_a_colon_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a:b").write_text("")
    with pytest.raises(ValueError, match=r"expected a \.pkl snapshot"):
        open_generator("a:b")
