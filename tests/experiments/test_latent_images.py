"""Images of valid latents, random vectors and prototypes: what is drawn, measured and refused."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.latent_images import (
    ALIKE,
    NORMAL,
    VALID,
    drawn_vectors,
    images_of,
    picture,
    rows_of,
    table_of,
    vectors_of_run,
)
from fedjax_ht.core.method import Needs, Pretrained, View
from fedjax_ht.core.wire import Masked
from fedjax_ht.lab.generators import Card, Generator, open_generator
from fedjax_ht.lab.runs.evaluate import load_run
from fedjax_ht.methods.shared.pair_server import Server
from tests.experiments.folders import read_csv

WIDTH = 12


def toy(width=WIDTH, host=False):
    """A generator whose latents lie about 3, and whose images are a pixel a number."""

    def sample_w(_, key, n):
        return 3 + 0.1 * jax.random.normal(key, (n, width))

    def synthesize(_, w):
        return jax.nn.sigmoid(jnp.broadcast_to(w.mean(-1)[:, None, None, None], (len(w), 4, 4, 3)))

    return Generator(Card("toy"), width, sample_w, synthesize, host=host)


def run_with(server, prototypes=None, unit=1.0, generator="natural_32"):
    """A run with this server's state, as far as `vectors_of_run` reads it."""
    weights = SimpleNamespace(unit=unit)
    method = SimpleNamespace(
        view=View(prototypes=prototypes), needs=Needs(pretrained=Pretrained(variables=weights))
    )
    entry = SimpleNamespace(options={"generator": generator})
    run = SimpleNamespace(label="one", method=method, entry=entry)
    return SimpleNamespace(run=run, state=SimpleNamespace(server=server))


def test_random_vectors_lie_as_far_out_as_they_are_named_after():
    generator = toy()
    kinds = drawn_vectors(generator, 5, seed=0)
    assert list(kinds) == [VALID, ALIKE, NORMAL]
    images = images_of(generator, kinds)
    rows = rows_of(generator, kinds, images)
    reaches = {kind: [row.reach for row in rows if row.kind == kind] for kind in kinds}
    assert max(reaches[VALID] + reaches[ALIKE]) < 1.2 < 10 < min(reaches[NORMAL])
    assert [row[:2] for row in table_of(rows, images).rows] == [[kind, "5"] for kind in kinds]
    again = drawn_vectors(generator, 5, seed=0)
    other = drawn_vectors(generator, 5, seed=1)
    assert all((again[kind].values == kinds[kind].values).all() for kind in kinds)
    assert not any((other[kind].values == kinds[kind].values).any() for kind in kinds)


@pytest.mark.parametrize("host", [False, True])
def test_classes_without_a_prototype_are_white_and_in_no_table(host):
    generator = toy(host=host)
    values = jnp.full((3, WIDTH), 3.0).at[1].set(jnp.nan)
    present = jnp.array([True, False, True])
    run = run_with({"p": values}, lambda server: Masked(server["p"], present))
    kinds = vectors_of_run(run, generator)
    (kind,) = kinds
    assert kind == "prototypes of one, taken for latents"
    images = images_of(generator, kinds)
    assert (images[kind][1] == 1).all() and (images[kind][0] < 1).all()
    assert [row.number for row in rows_of(generator, kinds, images)] == [0, 2]
    figure = picture(images)
    shown = [axes for axes in figure.axes if axes.images]
    assert len(shown) == 3 and figure.subfigs[0].get_suptitle() == kind


def test_what_fedktl_sends_is_shown_in_the_generators_units():
    generator = open_generator("natural_32")
    latents = jnp.ones((2, generator.latent_dim))
    server = Server({}, latents, jnp.zeros((2, 4, 4, 3)), jnp.array([True, True]))
    (sent,) = vectors_of_run(run_with(server, unit=0.5), generator).values()
    np.testing.assert_array_equal(sent.values, 0.5 * latents)
    with pytest.raises(ValueError, match=r"one makes latents of .*, and --generator is toy; give"):
        vectors_of_run(run_with(server), toy())


def test_methods_without_prototypes_have_no_vectors_and_a_wrong_length_is_refused():
    assert vectors_of_run(run_with({}), toy()) == {}
    run = run_with({"p": jnp.zeros((3, 5))}, lambda server: Masked(server["p"], jnp.ones(3, bool)))
    with pytest.raises(ValueError, match=r"have 5 numbers, .* toy 12; .*model.feature_dim=12"):
        vectors_of_run(run, toy())


@pytest.mark.slow
def test_prototypes_of_a_run(run_module, played, tmp_path):
    loaded = load_run(played, "fedproto")
    (kind,) = vectors_of_run(loaded, toy(loaded.run.federation.feature_dim)).values()
    assert kind.present.all() and np.asarray(kind.values).std(0).any()

    files = f"--csv={tmp_path / 'a.csv'}", f"--picture={tmp_path / 'a.png'}"
    refused = run_module("latent_images", f"--workdir={played}", *files)
    assert refused.returncode == 2 and "--config.model.feature_dim=512" in refused.stderr
    done = run_module("latent_images", "--count=2", *files)
    assert done.returncode == 0 and "| valid latents | 2 |" in done.stdout, done.stderr
    assert len(read_csv(tmp_path / "a.csv")) == 6
