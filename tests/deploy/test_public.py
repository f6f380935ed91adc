"""The public set of a deployment: every side's own copy, compared by checksums."""

import numpy as np
import pytest

from fedjax_ht.core.inputs import Standardised
from fedjax_ht.data.dataset import ClientIndices, Dataset
from fedjax_ht.deploy.client import make_client
from fedjax_ht.deploy.plan import description, difference, make_plan
from fedjax_ht.deploy.samples import PUBLIC_FILE, client_dataset, read_samples, write_split
from fedjax_ht.lab.readers import load_dataset
from tests.deploy.sites import small_config

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (30, 28, 28), np.uint8)
NAMES = tuple("abcdefghij")
PUBLIC = np.array([1, 2, 5, 7, 11, 13, 17, 19, 23])
WHOLE = Dataset("mine", IMAGES, np.arange(30) % 10, NAMES, public=PUBLIC)
OWN = ClientIndices(np.array([0, 3]), np.zeros(0, int), np.array([4, 6]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("split")
    write_split(folder, WHOLE, (OWN,))
    return folder


def config_with(public: str, method: str = "fedmd"):
    config = small_config(method)
    config.dataset.public = public
    return config


def test_public_samples_are_written_beside_the_clients(folder):
    assert sorted(path.name for path in folder.iterdir()) == ["client_0.npz", PUBLIC_FILE]
    read = load_dataset(f"npz:{folder / PUBLIC_FILE}", "")
    np.testing.assert_array_equal(read.inputs[..., 0], IMAGES[WHOLE.public])
    np.testing.assert_array_equal(read.labels, WHOLE.labels[WHOLE.public])
    assert client_dataset(WHOLE, OWN)[0].public is None


def test_copies_are_compared_by_what_they_hold_and_not_by_name(folder, tmp_path):
    copy, other = tmp_path / "copy.npz", tmp_path / "other.npz"
    copy.write_bytes((folder / PUBLIC_FILE).read_bytes())
    arrays = dict(np.load(copy))
    np.savez(other, **arrays | {"images": arrays["images"] ^ 1})
    here, same, changed = (
        description(make_plan(config_with(f"npz:{path}")))
        for path in (folder / PUBLIC_FILE, copy, other)
    )
    assert difference(here, same) == ""
    assert difference(here, changed).startswith("has another config: dataset.public '")


@pytest.mark.parametrize(
    ("public", "method", "message"),
    [
        ("hold_out:0.1", "fedmd", "a share of all samples, .* npz:public.npz written by fedjax-ht"),
        ("hold_out:0.1", "local", "local reads no public set; leave it empty"),
        ("npz:nowhere.npz", "dsfl", "nowhere.npz"),
    ],
    ids=["share", "unread", "missing"],
)
def test_what_no_side_can_have_is_refused(public, method, message):
    with pytest.raises((ValueError, OSError), match=message):
        make_plan(config_with(public, method))


def test_a_client_refuses_a_public_set_with_samples_of_its_own(folder, tmp_path):
    plan = make_plan(config_with(f"npz:{folder / PUBLIC_FILE}"))
    indices = OWN._replace(test=np.array([4, 5]))  # sample 5 is public
    dataset, parts = client_dataset(WHOLE, indices)
    with pytest.raises(ValueError, match=r"of which 1 samples are also in mine, where clients may"):
        make_client(plan, 0, dataset, parts, tmp_path)


def test_a_client_refuses_a_public_set_that_a_round_would_exhaust(folder, tmp_path):
    config = config_with(f"npz:{folder / PUBLIC_FILE}")
    config.method.options.public_per_round = 10
    dataset, parts = client_dataset(WHOLE, OWN)
    with pytest.raises(ValueError, match="fedmd uses 10 public samples a round, but the public"):
        make_client(make_plan(config), 0, dataset, parts, tmp_path)


def test_a_client_refuses_a_public_set_that_is_scaled_unlike_its_samples(tmp_path):
    inputs = RNG.normal(5, 2, (30, 4)).astype(np.float32)
    np.savez(tmp_path / "raw.npz", inputs=inputs, labels=np.arange(30) % 10)
    rule = Standardised(inputs.mean(0), inputs.std(0))
    own = Dataset("mine", inputs + 1, np.arange(30) % 10, NAMES, public=PUBLIC, preprocess=rule)
    write_split(tmp_path, own, (OWN,))
    dataset, indices = read_samples(f"npz:{tmp_path / 'client_0.npz'}", "")
    plan = make_plan(config_with(f"npz:{tmp_path / 'raw.npz'}", "dsfl"))
    with pytest.raises(
        ValueError, match=r"which is scaled unlike npz:.*; name the public.npz that"
    ):
        make_client(plan, 0, dataset, indices, tmp_path)
    plan = make_plan(config_with(f"npz:{tmp_path / PUBLIC_FILE}", "dsfl"))
    assert make_client(plan, 0, dataset, indices, tmp_path).client_id == 0
