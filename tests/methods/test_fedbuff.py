import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.methods.fedbuff import REMEMBERED, fedbuff
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.profile import Profile
from fedjax_ht.simulation.serving import server_round
from fedjax_ht.simulation.simulation import make_simulation
from tests import tiny
from tests.federations import NUM_CLIENTS, TRAINING, federation_data, play, to_host
from tests.federations import uniform_federation as one_architecture
from tests.reference import fedbuff as reference

FEDERATION = tiny.ONE_BUCKET
METHOD = fedbuff(tiny.TRAINING, buffer=3, server_rate=0.5)
# (client, round in which it was sent) of the uploads of each round, beside one that was lost
ROUNDS = [[(0, 0), (1, 0), (2, 0), (3, 0)], [(2, 0)], [(0, 2), (1, 0), (3, 1), (4, 0)]]


def change(client: int, round: int, like):
    """Returns a change of a model."""
    rng = np.random.default_rng((client, round))
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), like)


def flat(params) -> np.ndarray:
    return np.concatenate([np.ravel(x).astype(np.float64) for x in jax.tree.leaves(params)])


def test_server_update_equals_the_reference():
    server = METHOD.init_server(FEDERATION, jax.random.key(0))
    like = server[0].params
    step = jax.jit(server_round(METHOD, FEDERATION))
    models, ages = [flat(like)], []
    for number, uploads in enumerate(ROUNDS):
        sent_in = dict(uploads)
        uplinks = {i: change(i, sent, like) for i, sent in uploads}
        received = tiny.receive(uplinks, [[9, *sent_in]], {4: 0})["linear0"]
        rounds = jnp.array([number, *sent_in.values()], jnp.int32)
        received = received._replace(info=received.info._replace(sent_round=rounds))
        server, result = step(server, {"linear0": received}, jax.random.key(1), jnp.int32(number))
        models.append(flat(server[0].params))
        ages.append(int(result.metrics["staleness"]))
    # client 4 has no samples
    sent = [[(sent, flat(change(i, sent, like))) for i, sent in row if i < 4] for row in ROUNDS]
    expected, _ = reference.serve(models[0], sent, size=3, rate=0.5)
    np.testing.assert_allclose(models, expected, rtol=1e-5, atol=1e-6)
    assert ages == [1, 1, 2]


def test_steps_are_remembered_for_long_enough():
    assert REMEMBERED >= 100


def test_late_uploads_are_older():
    """The server has taken steps since a slow client was sent its model."""
    federation = one_architecture()
    speed = np.full(NUM_CLIENTS, 1e9)
    speed[0] = 400.0  # its upload of 724 bytes takes more than a tick
    profile = Profile(up=speed, deadline=1.0, late="arrives")
    simulation = make_simulation(
        fedbuff(TRAINING, buffer=2),
        federation,
        federation_data(federation),
        SimulationOptions(devices_profile=profile),
    )
    state, staleness = to_host(simulation.init()), []
    for ids in ([0, 1, 2], [4, 5], [1, 2]):
        state, report = play(simulation, state, ids)
        staleness.append((report.late, report.arrived_late, report.server_metrics["staleness"]))
    assert staleness[0][0] == (0,) and staleness[0][2] == 0
    arrivals = [ages for _, arrived, ages in staleness if arrived]
    assert arrivals and arrivals[0] >= 1
