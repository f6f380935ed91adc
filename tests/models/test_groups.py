"""The papers' model groups: which architectures, which heads, which options."""

import functools

import jax
import jax.numpy as jnp
import pytest

from fedjax_ht.core.bucket import init_variables
from fedjax_ht.core.federation import make_federation, require_equal_heads
from fedjax_ht.models import mlp, model_group
from fedjax_ht.models.split import htc4_heads, vit_head
from tests.federations import count_parameters

HTFE8 = ["cnn", "googlenet", "mobilenet_v2", *(f"resnet{n}" for n in (18, 34, 50, 101, 152))]
SIZE, TOKENS = (32, 32, 3), jax.ShapeDtypeStruct((200,), jnp.int32)


@pytest.mark.parametrize(
    ("group", "names"),
    {
        "htfe2": ["cnn", "resnet18"],
        "htfe3": ["resnet10", "resnet18", "resnet34"],
        "htfe4": ["cnn", "googlenet", "mobilenet_v2", "resnet18"],
        "htfe5": ["googlenet", "mobilenet_v2", "resnet18", "resnet34", "resnet50"],
        "htfe8": HTFE8,
        "htfe9": [f"resnet{depth}" for depth in (4, 6, 8, 10, 18, 34, 50, 101, 152)],
        "htm10": [*HTFE8, "vit_b16", "vit_b32"],
        "fedral5": [f"resnet{depth}" for depth in (18, 34, 50, 101, 152)],
        "res34_htc4": [f"resnet34_head{head}" for head in (1, 2, 3, 4)],
        "htfe8_htc4": [f"{name}_head{i % 4 + 1}" for i, name in enumerate(HTFE8)],
    }.items(),
)
def test_published_groups_in_the_order_of_the_clients(group, names):
    assert list(model_group(group, 10, SIZE)) == names


@pytest.mark.parametrize("size, parameters", [(SIZE, 2_621_558), ((28, 28, 1), 122_400)])
def test_cnn1_alone_is_the_first_of_the_five(size, parameters):
    """FedSSA's Table 1; the number of parameters is that of FedSSA's and FedRAL's tables."""
    group = model_group("fedssa_cnn1", 10, size)
    assert group == {"cnn1": model_group("cnn5", 10, size)["cnn1"]}
    (bucket,) = make_federation(group, size, 10, num_clients=2).buckets
    assert sum(count_parameters(bucket).values()) == parameters


def test_fedrals_eleven_architectures():
    names = {*model_group("htfe9", 100, SIZE), "cnn", "vit_b16"}
    assert set(model_group("fedral11", 100, SIZE)) == names


def test_the_feature_width_reaches_every_architecture():
    modules = model_group("fedral11", 10, SIZE, feature_dim=96) | model_group(
        "htfe5", 10, SIZE, feature_dim=96
    )
    widths = {
        name: getattr(module.base, "feature_dim", None)
        for name, module in modules.items()
        if name != "cnn"
    }
    assert set(widths.values()) == {96} and len(widths) == 12


def test_htc4_deals_architectures_and_heads_separately():
    for i, (module, plain) in enumerate(
        zip(model_group("htfe8_htc4", 10, SIZE).values(), model_group("htfe8", 10, SIZE).values())
    ):
        assert module.base == plain.base and module.stateful == plain.stateful
        assert module.head == htc4_heads(10)[i % 4]


def test_output_relu_reaches_every_head():
    for released in (False, True):
        modules = model_group("htfe8_htc4", 10, SIZE, output_relu=released)
        assert {module.head.output_relu for module in modules.values()} == {released}


def test_norm_reaches_every_model_that_normalises():
    modules = model_group("htfe4", 10, SIZE, norm="group")
    norms = [getattr(module.base, "norm", None) for module in modules.values()]
    assert norms == [None, "group", "group", "group"]
    federation = make_federation(
        model_group("resnet4", 10, SIZE, norm="group"), SIZE, 10, num_clients=1
    )
    init = functools.partial(init_variables, federation.buckets[0])
    assert jax.eval_shape(init, jax.random.key(0))["stats"] == {}


REFUSED = [
    ("htfe7", SIZE, {}, "unknown model group 'htfe7'; the groups are cnn4, cnn5"),
    ("htfe2", (15, 32, 3), {}, "'htfe2' needs images of at least 16x16 pixels, got (15, 32)"),
    ("googlenet", (14, 32, 3), {}, "'googlenet' needs images of at least 15x15 pixels"),
    ("htfe8", (15, 15, 3), {}, "'htfe8' needs images of at least 16x16 pixels"),
    ("conv4", (8, 8, 1), {}, "'conv4' needs images of at least 16x16 pixels"),
    ("conv4", SIZE, {"feature_dim": 64}, "feature_dim is 64, but the features of conv4 are its"),
    ("vit_small", SIZE, {"norm": "group"}, "norm is 'group', but model group 'vit_small'"),
    ("htfe8", SIZE, {"output_relu": True}, "output_relu is for the groups res34_htc4, htfe8_htc4"),
    # samples of another kind than the models'
    ("htfe_sen5", (64, 9), {}, "'htfe_sen5' needs windows of at least 78 steps; a sample is"),
    ("htfe_sen2", (28, 28, 1), {}, "needs windows of at least 51 steps; a sample is (28, 28, 1)"),
    ("htfe_sen2", (200,), {}, "needs windows, float [T, signals] or [T, units, signals]; a sample"),
    ("htfe_sen2", TOKENS, {}, "a sample is int32 (200,)"),
    ("htfe_sen2", {"a": (128, 9), "b": (3,)}, {}, "a sample is ((128, 9), (3,))"),
    ("htfe2", (128, 9), {}, "needs images, float [H, W, 1 or 3]; a sample is (128, 9); use"),
    ("htm10", (256, 3, 9), {}, "a sample is (256, 3, 9); use 'mlp2'"),
    ("cnn4", (4,), {}, "needs images, float [H, W, 1 or 3]; a sample is (4,); use 'mlp2'"),
    ("cnn4", TOKENS, {}, "a sample is int32 (200,); use 'htfe_txt2' or another group for texts"),
    ("cnn5", [128, 9], {}, "a sample is (128, 9); use 'htfe_sen2' or 'mlp2'"),
    ("mlp2", TOKENS, {}, "'mlp2' needs one float array; a sample is int32 (200,); use"),
    ("htfe_txt4", SIZE, {}, "'htfe_txt4' needs tokens, int [L]; a sample is (32, 32, 3)"),
    ("lstm", (128, 9), {"vocabulary": 5}, "'lstm' needs tokens, int [L]; a sample is (128, 9)"),
    ("lstm", TOKENS, {}, "'lstm' needs vocabulary, the number of token ids"),
    ("htfe_txt6", TOKENS, {"vocabulary": 5, "feature_dim": 12}, "feature_dim is 12; it must be"),
    ("htfe_txt4", TOKENS, {"vocabulary": 5, "norm": "group"}, "norm is 'group', but model group"),
]


@pytest.mark.parametrize(("group", "shape", "options", "message"), REFUSED, ids=str)
def test_arguments_that_do_not_fit_are_refused(group, shape, options, message):
    with pytest.raises(ValueError) as error:
        model_group(group, 10, shape, **options)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_the_smallest_images_of_googlenet():
    module = model_group("googlenet", 10, (15, 15, 3))["googlenet"]
    federation = make_federation({"googlenet": module}, (15, 15, 3), 10, num_clients=1)
    jax.eval_shape(lambda key: init_variables(federation.buckets[0], key), jax.random.key(0))


def test_require_equal_heads():
    def federation(**modules):
        return make_federation(modules, (2, 2, 1), 3, num_clients=len(modules))

    require_equal_heads(federation(a=mlp(3, (8, 4)), b=mlp(3, (5, 4))))
    narrow, wide = mlp(3, (8, 4)), mlp(3, (8, 6))
    with pytest.raises(ValueError) as error:
        require_equal_heads(federation(a=narrow, b=narrow, c=wide))
    assert str(error.value) == (
        "all models must have the same head, but that of 'a' is "
        "{'bias': (3,), 'kernel': (4, 3)} and that of 'c' "
        "is {'bias': (3,), 'kernel': (6, 3)}; choose a group with equal heads"
    )
    deep = narrow.clone(head=vit_head(3, 4))
    with pytest.raises(ValueError, match=r"but that of 'a' is .* and that of 'b' is \{'fc1/bias'"):
        require_equal_heads(federation(a=narrow, b=deep))
