"""Uploads disclose participation by shapes, by masks, or not at all."""

import jax.numpy as jnp
import pytest

from fedjax_ht.methods import METHODS
from fedjax_ht.trust.disclosure import check_samples, check_uploads, exposure
from fedjax_ht.trust.options import Privacy
from fedjax_ht.trust.privacy import private
from tests.federations import TRAINING, federation_for
from tests.trust.stub import FEDERATION, stub


@pytest.mark.parametrize(
    "name, visible",
    [("local", "nothing"), ("fedavg", "alike"), ("lg_fedavg", "apart"), ("fedral", "apart")],
)
def test_shapes_masks_and_kept_states_disclose_participation(name, visible):
    method, federation = METHODS[name](TRAINING), federation_for(name)
    assert exposure(method, federation) == visible
    assert exposure(private(method, Privacy("client")), federation) == visible


def test_uploads_of_other_shapes_or_with_masks_disclose_participation():
    methods = stub(), stub(masked=True), stub(sliced=True)
    forms = [exposure(method, FEDERATION) for method in methods]
    assert forms == ["alike", "apart", "apart"]


def test_numbers_of_16_bits_are_refused():
    """Noise of bfloat16 has 128 values."""
    method = stub(
        lambda client, data: jnp.ones(3, jnp.bfloat16),
        init_server=lambda federation, key: jnp.zeros(3, jnp.bfloat16),
        init_client=lambda bucket, ctx: jnp.zeros(3, jnp.bfloat16),
    )
    for unit, check in (
        ("client", lambda: check_uploads(method, FEDERATION, sums=True)),
        ("sample", lambda: check_samples(method, FEDERATION)),
    ):
        with pytest.raises(ValueError, match=f"is '{unit}', but .* bfloat16; noise needs float32"):
            check()
