"""DepthFL against NumPy: a client's steps, the server's means, and models that are refused."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.federation import make_federation
from fedjax_ht.core.stages import stage_widths
from fedjax_ht.methods.depthfl import Model, Server, depthfl, init_depth, like, ramp_up
from fedjax_ht.models import SplitModel, lora, mlp, note_stage
from fedjax_ht.models.convnets import ResNet
from fedjax_ht.models.layers import Linear
from fedjax_ht.models.sliced import ConvNet, sliced_model
from tests import tiny
from tests.federations import Staged
from tests.reference import depthfl as reference
from tests.standard import served
from tests.tiny import LR
from tests.tiny import SHORT_BATCHES as BATCHES
from tests.tiny import SHORT_DATA as DATA
from tests.tiny import SHORT_TRAINING as TRAINING

C, SHAPE, WIDTHS, N = 4, (2, 2, 1), (3, 5), 4


def federation(*widths, shape=SHAPE, clients=N):
    """Clients take networks with stages of these widths in turn."""
    modules = {f"depth{len(w)}": SplitModel(Staged(w), Linear(C)) for w in widths}
    return make_federation(modules, shape, C, num_clients=clients)


BOTH = federation(WIDTHS[:1], WIDTHS)
SHALLOW, DEEP = BOTH.buckets
FORMS = [init_depth(bucket, jax.random.key(0))["params"] for bucket in BOTH.buckets]


def flat(params) -> reference.Model:
    """A model's parameters as the reference names them."""
    named = {}
    for i in params["head"]:
        layer, classifier = params["base"][f"fc{i}"], params["head"][i]
        named |= {f"k{i}": layer["kernel"], f"b{i}": layer["bias"]}
        named |= {f"hk{i}": classifier["kernel"], f"hb{i}": classifier["bias"]}
    return {name: np.asarray(value, np.float64) for name, value in named.items()}


@functools.cache
def model(seed: int):
    """Random parameters of the deep model."""
    return init_depth(DEEP, jax.random.key(seed))["params"]


def check(params, expected) -> None:
    tiny.check_model(flat(params), expected, rtol=1e-4, atol=2e-6)


def updated(method, bucket, seed: int, round: int = 0):
    """A client's update from the parameters of `model(0)`, with s_k those of another model."""
    form = FORMS[BOTH.buckets.index(bucket)]
    received, slope = like(model(0), form), like(model(seed), form)
    if method.init_client(bucket, tiny.context(0))["slope"] == ():
        slope = ()
    client = {"params": model(9), "stats": {}, "slope": slope}
    ctx = tiny.context(0, round=round)
    return tiny.play(method, client, Model(received, {}), data=DATA, ctx=ctx, bucket=bucket)[1:]


@pytest.mark.parametrize(
    ("depth", "options"),
    [
        (2, {}),
        (2, {"feddyn": False, "inclusive": True}),
        (1, {"kd": False}),
        pytest.param(2, {"kd": False}, marks=pytest.mark.slow),
        pytest.param(2, {"inclusive": True}, marks=pytest.mark.slow),
    ],
)
def test_a_client_descends_on_all_terms(depth, options):
    method, round = depthfl(TRAINING, alpha=0.3, ramp=4, **options), 3
    trained, uplink, _ = updated(method, (SHALLOW, DEEP)[depth - 1], 5, round)
    form = trained["params"]
    weight = float(np.exp(-5 * (1 / 4) ** 2)) * options.get("kd", True)
    alpha = 0.3 if options.get("feddyn", True) else None
    w, s = flat(like(model(0), form)), flat(like(model(5), form))
    inclusive = options.get("inclusive", False)
    params, slope = reference.client(
        w, s, BATCHES, LR, depth, weight=weight, alpha=alpha, inclusive=inclusive
    )
    check(trained["params"], params)
    check(uplink.params, params)
    if alpha is not None:
        check(trained["slope"], slope)
    if inclusive and alpha is None:  # the first classifier is neither trained nor moved
        tiny.check_equal(trained["params"]["head"]["1"], model(0)["head"]["1"])


def test_self_distillation_grows_over_the_first_rounds():
    weights = [float(ramp_up(jnp.int32(t), 300)) for t in (0, 150, 300, 1000)]
    np.testing.assert_allclose(weights, [np.exp(-5), np.exp(-1.25), 1, 1], rtol=1e-6)


@pytest.mark.parametrize("feddyn", [True, False])
def test_each_tensor_is_averaged_over_its_holders(feddyn):
    """Clients 0 and 2 have one stage, 1 and 3 two; 3 is lost, 4 is padding."""
    method = depthfl(TRAINING, alpha=0.3, feddyn=feddyn)
    uplinks = {i: Model(like(model(10 + i), FORMS[i % 2]), {}) for i in range(4)}
    order = {SHALLOW.name: [2, 4, 0], DEEP.name: [4, 1, 3]}
    server = Server(Model(model(0), {}), model(7) if feddyn else ())
    new, _ = served(method, BOTH, server, tiny.receive(uplinks, order, arrived=(0, 1, 2)))
    alpha, uploads = 0.3 if feddyn else None, [flat(uplinks[i].params) for i in range(3)]
    params, h = reference.server(flat(model(0)), flat(model(7)), uploads, N, alpha)
    check(new.model.params, params)
    if feddyn:
        check(new.drift, h)


def test_a_stage_that_nobody_has_stays():
    method, start = depthfl(TRAINING), Server(Model(model(0), {}), model(7))
    uplinks = {i: Model(like(model(3), form), {}) for i, form in enumerate(FORMS)}
    received = tiny.receive(uplinks, {SHALLOW.name: [0], DEEP.name: [1]}, arrived=[0])
    new, _ = served(method, BOTH, start, received)
    for before, after in ((start.model.params, new.model.params), (start.drift, new.drift)):
        for part, layer in (("base", "fc2"), ("head", "2")):
            tiny.check_equal(before[part][layer], after[part][layer])
        assert np.any(before["base"]["fc1"]["kernel"] != after["base"]["fc1"]["kernel"])


def test_the_ensemble_predicts_by_the_mean_of_logits():
    client = {"params": model(0), "stats": {}}
    x = DATA.preprocess(DATA.inputs)
    scores = depthfl(TRAINING).predict(DEEP, client, (), x, jnp.ones(len(x), bool))
    each = reference.logits(flat(model(0)), np.asarray(x, np.float64).reshape(len(x), -1), 2)
    np.testing.assert_allclose(scores["ensemble"], sum(each) / 2, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(scores["deepest"], each[1], rtol=1e-4, atol=1e-6)


def test_models_that_are_no_first_stages_are_refused():
    check_depths = depthfl(TRAINING).check
    check_depths(BOTH)
    for modules, message in (
        ({"mlp": mlp(C, (3,))}, r"^depthfl needs models in stages, but 'mlp' has none; use .*$"),
        ({"lora": lora(mlp(C, (3,)), 1)}, "but 'lora' has none"),
        (
            {f"depth{len(w)}": SplitModel(Staged(w), Linear(C)) for w in ((4,), (3, 5))},
            r"^depthfl needs .* of 'depth2', but 'depth1' differs in base/fc1/bias from its .*$",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            check_depths(make_federation(modules, SHAPE, C, num_clients=2))
    # ResNet-10's names are among ResNet-18's, and it lacks the second block of each stage
    blocks = {
        f"{sum(s)}": SplitModel(ResNet(s, width=2, norm="none"), Linear(C), stateful=True)
        for s in ((1, 1), (2, 2))
    }
    with pytest.raises(ValueError, match=r"'4' differs in base/layer1_1/conv1/kernel"):
        check_depths(make_federation(blocks, (32, 32, 1), C, num_clients=2))


def test_stages_of_the_librarys_models():
    convs = {f"{d}": sliced_model(ConvNet((4, 6)[:d], norm="batch"), C) for d in (1, 2)}
    networks = make_federation(convs, (16, 16, 1), C, num_clients=2)
    assert [stage_widths(bucket) for bucket in networks.buckets] == [[4], [4, 6]]
    depthfl(TRAINING).check(networks)


def test_stages_of_several_modules_have_no_order():
    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Dense(4)(x)
            note_stage(self, x)
            return x

    class Blocks(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = Block(name="second")(x.reshape(len(x), -1))
            return Block(name="first")(x)

    networks = make_federation({"m": SplitModel(Blocks(), nn.Dense(C))}, SHAPE, C, num_clients=1)
    with pytest.raises(ValueError, match="notes stages in base/first, base/second; call"):
        depthfl(TRAINING).check(networks)
