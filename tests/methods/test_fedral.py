import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.wire import Masked, Metadata, wire_elements
from fedjax_ht.deploy.messages import pack, unpack
from fedjax_ht.methods.fedral import BLOCKS as BY_SIZE
from fedjax_ht.methods.fedral import Uplink, block_mask, fedral, fewest_blocks
from tests import tiny
from tests.reference import fedral as reference
from tests.standard import served
from tests.tiny import BATCHES, LR, TRAINING

R = 6
FEDERATION = tiny.linear_federation(width=R)
BUCKET = FEDERATION.buckets[0]
BLOCKS, SAMPLES = [3, 1, 2], [5, 8, 2]  # of clients 0 to 2
ANGLES = np.random.default_rng(0).normal(size=(3, R, R)).astype(np.float32)
STALE = Masked(jnp.full((R, R), 77.0), jnp.ones((R, R), bool))


def serve(weighting: str, clients, samples=SAMPLES) -> Masked:
    """The server's matrix after uploads of these clients."""
    uplinks = {}
    for i in clients:
        mask = np.asarray(block_mask(R, BLOCKS[i]))
        count = Metadata(np.int32(samples[i])) if weighting == "samples" else ()
        uplinks[i] = Uplink(Masked(np.where(mask, ANGLES[i], np.nan), mask), count)
    received = tiny.receive(uplinks, samples=enumerate(samples))
    return served(METHODS[weighting], FEDERATION, STALE, received)[0]


METHODS = {name: fedral(TRAINING, weighting=name) for name in ("samples", "uniform")}
each_weighting = pytest.mark.parametrize("weighting", METHODS)


@each_weighting
def test_server_update_equals_the_reference(weighting):
    """A mean by samples counts zeros, a uniform mean is over the clients that sent an entry.
    Entries that nobody sends are zero, and are not sent on."""
    for clients in ([0, 1, 2], [0, 2]):
        server = serve(weighting, clients)
        angles, blocks = [ANGLES[i] for i in clients], [BLOCKS[i] for i in clients]
        if weighting == "samples":
            counts = [SAMPLES[i] for i in clients]
            want, sent = reference.aggregate(angles, [n / sum(counts) for n in counts], blocks)
        else:
            want, sent = reference.aggregate_uniform(angles, blocks)
        np.testing.assert_array_equal(server.mask, sent)
        np.testing.assert_allclose(server.values, want, rtol=1e-5, atol=1e-6)
    assert not sent.all()
    # Client 0 has three blocks and client 1 has one, so that only client 1 sends the corner.
    share = SAMPLES[1] / (SAMPLES[0] + SAMPLES[1]) if weighting == "samples" else 1
    corner = serve(weighting, [0, 1]).values[0, -1]
    np.testing.assert_allclose(corner, share * ANGLES[1][0, -1], rtol=1e-6)


@each_weighting
def test_clients_without_samples_say_nothing(weighting):
    tiny.check_equal(serve(weighting, [0, 2], [0, 0, 0]), STALE)
    server, mask = serve(weighting, [0, 1], [5, 0, 0]), block_mask(R, BLOCKS[0])
    np.testing.assert_array_equal(server.mask, mask)
    np.testing.assert_allclose(server.values, np.where(mask, ANGLES[0], 0), rtol=1e-6)


@pytest.mark.parametrize("angle_lr", [None, 0.03])
def test_client_update_equals_the_reference(angle_lr):
    method = fedral(TRAINING, blocks=(2, 3), angle_lr=angle_lr)
    client = method.init_client(BUCKET, tiny.context(1))
    sent = np.asarray(block_mask(R, 2))
    downlink = Masked(jnp.where(sent, ANGLES[0], jnp.nan), jnp.asarray(sent))

    def update(client, i):
        ctx = tiny.context(i)
        return tiny.play(method, client, downlink, ctx=ctx, bucket=BUCKET)[1:]

    # It starts from the matrix received, whatever it trained before.
    trained, uplink, metrics = update(client | {"angle": jnp.full((R, R), 9.0)}, 1)
    angle = np.where(sent, ANGLES[0], 0).astype(np.float64)
    params = tiny.flat_params(client["params"]) | {"angle": angle}
    want, loss = reference.train(params, BATCHES, LR, LR if angle_lr is None else angle_lr)
    tiny.check_model(trained["params"], want, atol=2e-6)
    np.testing.assert_allclose(trained["angle"], want["angle"], rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
    assert np.abs(want["angle"][~sent]).max() > 1e-4  # all entries are trained
    # Client 1 sends its three blocks, client 2 two again.
    np.testing.assert_array_equal(uplink.angle.mask, block_mask(R, 3))
    np.testing.assert_array_equal(uplink.angle.values, trained["angle"])
    np.testing.assert_array_equal(update(client, 2)[1].angle.mask, block_mask(R, 2))
    assert uplink.num_samples.value == 10


def test_blocks_are_on_the_diagonal():
    for blocks in (1, 2, 3, 6):
        want = [[reference.is_sent(i, j, R, blocks) for j in range(R)] for i in range(R)]
        np.testing.assert_array_equal(block_mask(R, blocks), want)
    assert block_mask(500, 100).sum() == 2500


@pytest.mark.parametrize("inference", ["own", "global"])
def test_prediction_is_by_either_matrix(inference):
    method = fedral(TRAINING, inference=inference)
    client = method.init_client(BUCKET, tiny.context(0)) | {"angle": jnp.asarray(ANGLES[1])}
    x = jnp.asarray(np.random.default_rng(2).normal(size=(5, 2, 2, 1)), jnp.float32)
    sent = block_mask(R, 3)
    downlink = Masked(jnp.where(sent, ANGLES[0], jnp.nan), sent)
    scores = method.predict(BUCKET, client, downlink, x, jnp.ones(5, bool))
    assert method.rules[0] == inference and set(scores) == set(method.rules) == {"own", "global"}
    params = tiny.flat_params(client["params"])
    for rule, angle in {"own": ANGLES[1], "global": np.where(sent, ANGLES[0], 0)}.items():
        want = reference.logits(params | {"angle": angle}, np.asarray(x, np.float64).reshape(5, -1))
        np.testing.assert_allclose(scores[rule], want, rtol=1e-5, atol=1e-5)


def test_the_first_matrix_is_sent_whole():
    for scale in (1.0, 3.0):
        method = fedral(TRAINING, init_scale=scale)
        server = method.init_server(tiny.linear_federation(width=100), jax.random.key(0))
        assert server.mask.all()
        # within scale / sqrt(r)
        assert 0.095 * scale < np.abs(server.values).max() <= 0.1 * scale


@pytest.mark.parametrize(("blocks", "kilobytes"), [(100, 9.77), (125, 7.81), (25, 39.06)])
def test_upload_sizes_of_table_4(blocks, kilobytes):
    """The fourth size, 400 numbers, is out of reach: 500 blocks of one entry are 500 numbers."""
    federation = tiny.linear_federation(2, 500, clients=1, buckets=1)
    bucket, data, ctx = federation.buckets[0], tiny.client_data([0, 1, 1]), tiny.context(0)
    size = kilobytes * 1024
    for options in ({"blocks": blocks}, {"byte_budget": size + 8}):
        method = fedral(TRAINING, **options)
        method.check(federation)
        downlink = method.init_server(federation, jax.random.key(0))
        client = method.init_client(bucket, ctx)
        _, uplink, _ = method.client_update(bucket, client, downlink, data, ctx)
        cost = wire_elements(uplink)
        assert int(cost.payload_bytes) == 4 * 500 * 500 // blocks == pytest.approx(size, abs=8)
        # the number of samples, and no index of an entry
        assert int(cost.metadata_bytes) == 4
        assert sum(array.nbytes for array in pack(uplink).values()) == int(cost.bytes)
        back = unpack(uplink, pack(uplink), "the uplink")
        np.testing.assert_array_equal(back.angle.mask, block_mask(500, blocks))


@pytest.mark.parametrize(
    ("options", "indexed"),
    [
        ({"blocks": 3}, False),
        ({"blocks": (6, 2)}, False),  # a block of 6 lies in one of 2
        ({"blocks": (2, 3)}, True),
        ({"byte_budget": (1000.0, 48.0)}, False),
    ],
    ids=str,
)
def test_the_matrix_comes_down_without_indices_where_its_size_tells_the_blocks(options, indexed):
    method = fedral(TRAINING, **options)
    for mask in (np.ones((R, R), bool), *(block_mask(R, m) for m in (6, 2, 3))):
        server = Masked(jnp.asarray(ANGLES[0]), jnp.asarray(mask))
        downlink = method.broadcast(FEDERATION, BUCKET, server, None)
        cost = wire_elements(downlink)
        assert int(cost.payload_elements) == mask.sum()
        assert int(cost.metadata_elements) == indexed * mask.sum()
        back = unpack(downlink, pack(downlink), "the downlink")
        np.testing.assert_array_equal(back.mask, mask)


def test_a_size_that_no_blocks_have_is_refused():
    form = jax.eval_shape(lambda: STALE._replace(pattern=BY_SIZE))
    for number in (1, 5, 37):
        with pytest.raises(ValueError, match=rf"rows of float32 \({number},\); it must be"):
            unpack(form, {"000.rows": np.zeros(number, np.float32)}, "the uplink")
    nothing = unpack(form, {"000.rows": np.zeros(0, np.float32)}, "the uplink")
    assert not nothing.mask.any()


def test_fewest_blocks_that_fit():
    expected = [1, 1, 2, 3, 6, 6]
    assert [fewest_blocks(budget, 6) for budget in (1000, 144, 143, 48, 47, 24)] == expected
    message = r"byte_budget is 1600; it must be at least 2000, the bytes of the smallest upload"
    with pytest.raises(ValueError, match=message):
        fewest_blocks(1600, 500)
