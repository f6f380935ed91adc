"""Numbers that methods send in the setting of the papers' tables (CIFAR-100, 20 clients)."""

import pytest

from fedjax_ht.methods import METHODS
from tests import wire_table

S = wire_table.sum_of_classes()  # 512 numbers each: FedTGP's and FedKTL's "1.48M"
HEADS = 20 * wire_table.HEAD  # their Table 5: 1.03M
ROW = wire_table.WIDTH + 1
EVERY_ROW = wire_table.CLIENTS * wire_table.CLASSES * ROW
GENERATORS = 20 * 331_776

# method, options, numbers up and down in the first round and the second
TABLE = [
    ("fd", {}, (100 * S, 100 * S), (0, 20 * 100 * 100)),
    ("fedclassavg", {}, (HEADS, HEADS), (HEADS, HEADS)),
    ("fedgen", {"server_steps": 1}, (HEADS, HEADS), (HEADS, HEADS + GENERATORS)),
    ("fedgh", {}, (512 * S, 512 * S), (HEADS, HEADS)),
    ("fedproto", {}, (512 * S, 512 * S), (0, 20 * 100 * 512)),
    ("fedssa", {}, (S * ROW, S * ROW), (EVERY_ROW, S * ROW)),  # at first no server knows S_k
    ("fedssa", {"hide_classes": True}, (HEADS, HEADS), (HEADS, HEADS)),
    ("fedtgp", {"server_epochs": 1}, (512 * S, 512 * S), (0, 20 * 100 * 512)),
    ("lg_fedavg", {}, (HEADS, HEADS), (HEADS, HEADS)),
]
# numbers of samples or of classes beside them
METADATA = {("fedssa", False): S, ("fedssa", True): 0, ("lg_fedavg", False): wire_table.CLIENTS}


@pytest.mark.parametrize("name, options, up, down", TABLE)
def test_costs(name, options, up, down):
    reports = wire_table.reports(METHODS[name](wire_table.TRAINING, **options))
    assert tuple(r.uplink.payload_elements for r in reports) == up
    assert tuple(r.downlink.payload_elements for r in reports) == down
    key = name, "hide_classes" in options
    if key in METADATA:
        assert {r.uplink.metadata_elements for r in reports} == {METADATA[key]}


def test_the_tables_numbers():
    assert HEADS == 1_026_000 and HEADS + GENERATORS == 7_661_520
