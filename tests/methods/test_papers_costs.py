"""Numbers that methods send in the setting of the papers' tables (CIFAR-100, 20 clients)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.federation import make_federation
from fedjax_ht.core.wire import wire_elements
from fedjax_ht.methods import METHODS
from fedjax_ht.models import SplitModel
from fedjax_ht.models.cnn import ConvFeatures, ConvLayer, cnn4
from fedjax_ht.models.layers import Linear
from tests import tiny, wire_table

S = wire_table.sum_of_classes()  # 512 numbers each: FedTGP's and FedKTL's "1.48M"
HEADS = 20 * wire_table.HEAD  # their Table 5: 1.03M
ROW = wire_table.WIDTH + 1
EVERY_ROW = wire_table.CLIENTS * wire_table.CLASSES * ROW
GENERATORS = 20 * 331_776

# method, options, numbers up and down in the first round and the second
TABLE = [
    ("fedgen", {"server_steps": 1}, (HEADS, HEADS), (HEADS, HEADS + GENERATORS)),
    ("fedproto", {}, (512 * S, 512 * S), (0, 20 * 100 * 512)),
    ("fedssa", {}, (S * ROW, S * ROW), (EVERY_ROW, S * ROW)),  # at first no server knows S_k
    ("fedssa", {"hide_classes": True}, (HEADS, HEADS), (HEADS, HEADS)),
    ("lg_fedavg", {}, (HEADS, HEADS), (HEADS, HEADS)),
]
# numbers of samples or of classes beside them
METADATA = {("fedssa", False): S, ("fedssa", True): 0, ("lg_fedavg", False): wire_table.CLIENTS}


def case(row):
    """Three kinds of messages are enough: prototypes, heads, and rows of heads."""
    is_slow = row[0] not in ("fedproto", "lg_fedavg", "fedssa")
    return pytest.param(*row, marks=pytest.mark.slow if is_slow else ())


@pytest.mark.parametrize("name, options, up, down", list(map(case, TABLE)))
def test_costs(name, options, up, down):
    reports = wire_table.reports(METHODS[name](wire_table.TRAINING, **options))
    assert tuple(r.uplink.payload_elements for r in reports) == up
    assert tuple(r.downlink.payload_elements for r in reports) == down
    key = name, "hide_classes" in options
    if key in METADATA:
        assert {r.uplink.metadata_elements for r in reports} == {METADATA[key]}


def test_the_tables_numbers():
    assert HEADS == 1_026_000 and HEADS + GENERATORS == 7_661_520


@pytest.mark.parametrize("name", ["fml", "fedkd"])
def test_the_shared_model_of_the_cifar100_setting(name):
    """18.494 million floats each way (FedTGP's and FedKTL's Table 5, methods FML): 20 CNNs of
    924,708; so are FedKD's first downlinks, before it compresses. Heads are 512 wide."""
    wide = SplitModel(ConvFeatures((ConvLayer(64), ConvLayer(128)), (512,)), Linear(100))
    models = {"wide": wide, "cnn": cnn4(100)}
    federation = make_federation(models, (32, 32, 3), 100, num_clients=20)
    method, ctx = METHODS[name](tiny.TRAINING), tiny.context(0)
    data = tiny.client_data(np.arange(6), shape=(32, 32, 3))
    server = jax.eval_shape(lambda: method.init_server(federation, ctx.key))
    server = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), server)
    if name == "fedkd":
        server = server._replace(made=np.int32(-1))
    for bucket in federation.buckets:
        down = jax.jit(lambda bucket=bucket: method.broadcast(federation, bucket, server, ctx))()
        assert wire_elements(down).payload_elements == 924_708
        if name == "fedkd":
            continue

        def up(bucket=bucket, down=down):
            client = method.init_client(bucket, ctx)
            return method.client_update(bucket, client, down, data, ctx)[1]

        sent = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(up))
        assert wire_elements(sent).payload_elements == 924_708
