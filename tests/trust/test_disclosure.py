"""Uploads disclose participation by shapes, by masks, or not at all."""

import pytest

from fedjax_ht.methods import METHODS
from fedjax_ht.trust.disclosure import exposure
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
