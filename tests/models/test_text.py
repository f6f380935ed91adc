"""Text models: torch's numbers where it is installed, padding, initial weights, dropout."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.bucket import features, init_variables, logits
from fedjax_ht.core.federation import make_federation
from fedjax_ht.models import model_group, text_model, text_transformer
from fedjax_ht.models.stacking import stack_blocks, unstack_blocks
from fedjax_ht.models.text import last_token, positions
from fedjax_ht.ops import recurrent
from tests.federations import count_parameters

LENGTH, VOCABULARY, WIDTH, CLASSES, RATE = 23, 30, 8, 3, 0.1
TOKENS = jax.ShapeDtypeStruct((LENGTH,), jnp.int32)
MODELS = {
    name: text_model(name, CLASSES, VOCABULARY, WIDTH)
    for name in ("fasttext", "text_logistic", "lstm", "gru", "bilstm")
}
MODELS["transformer"] = text_transformer(CLASSES, VOCABULARY, WIDTH, heads=2, layers=2)
every_model = pytest.mark.parametrize("name", MODELS)


def bucket_of(name):
    return make_federation({name: MODELS[name]}, TOKENS, CLASSES, num_clients=1).buckets[0]


def texts(count=6, seed=0):
    """Token ids of texts of several lengths, one of them full and one of a single token."""
    rng = np.random.default_rng(seed)
    lengths = np.r_[LENGTH, 1, rng.integers(2, LENGTH, count - 2)]
    tokens = rng.integers(1, VOCABULARY, (count, LENGTH))
    return np.where(np.arange(LENGTH) < lengths[:, None], tokens, 0).astype(np.int32)


@functools.cache
def variables_of(name):
    return jax.jit(lambda key: init_variables(bucket_of(name), key))(jax.random.key(0))


@functools.partial(jax.jit, static_argnames=("name", "train"))
def run(name, variables, tokens, train=False, key=None):
    mask = jnp.ones(len(tokens), bool)
    return features(bucket_of(name), variables["params"], {}, tokens, mask, train=train, key=key)[0]


@functools.partial(jax.jit, static_argnames="name")
def value_and_gradient(name, params, tokens):
    """Returns the sum of the features' squares, and the gradient of the sum of the features."""

    def total(params):
        hidden = run(name, {"params": params}, tokens)
        return hidden.sum(), (hidden**2).sum()

    (_, squares), gradient = jax.value_and_grad(total, has_aux=True)(params)
    return squares, gradient


@every_model
def test_forward_and_one_step_beside_torch(name, precision):
    torch = pytest.importorskip("torch")
    from benchmarks.text_torch import text_base
    from tests.models.torch_text import text_weights

    torch.manual_seed(0)
    dtype, size = getattr(torch, precision), (VOCABULARY, WIDTH, 2, 2)
    base, head = text_base(name, *size).to(dtype), torch.nn.Linear(WIDTH, CLASSES).to(dtype)
    bucket, x, y = bucket_of(name), texts(), np.arange(6) % CLASSES
    like = jax.eval_shape(lambda key: init_variables(bucket, key), jax.random.key(0))["params"]

    def weights():
        linear = {
            "kernel": head.weight.detach().numpy().T.copy(),
            "bias": head.bias.detach().numpy().copy(),
        }
        return stack_blocks({"base": text_weights(name, base), "head": linear}, like)

    before = weights()
    representations = base(torch.from_numpy(x).long())
    optimiser = torch.optim.SGD([*base.parameters(), *head.parameters()], RATE)
    loss = torch.nn.functional.cross_entropy(head(representations), torch.from_numpy(y))
    loss.backward()
    optimiser.step()

    def own_loss(params):
        hidden, _ = features(bucket, params, {}, x, jnp.ones(len(x), bool), train=True)
        return -jax.nn.log_softmax(logits(bucket, params, hidden))[
            np.arange(len(y)), y
        ].mean(), hidden

    (value, hidden), gradients = jax.jit(jax.value_and_grad(own_loss, has_aux=True))(before)
    close = 1e-12 if precision == "float64" else 2e-6
    np.testing.assert_allclose(hidden, representations.detach().numpy(), atol=close * 10)
    assert hidden.dtype == precision and value == pytest.approx(loss.item(), rel=close * 10)
    after = jax.tree.map(lambda p, g: p - RATE * g, before, gradients)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=close), after, weights())
    moved = jax.tree.map(
        lambda a, b: np.abs(a - b).max() > 0, unstack_blocks(after), unstack_blocks(before)
    )
    assert all(jax.tree.leaves(moved))


@every_model
def test_padding_changes_nothing(name):
    """Neither how much of it there is, nor what its embedding is; and no gradient comes to that."""
    variables = variables_of(name)
    tokens = texts()[1:]
    expected = run(name, variables, tokens)
    short = tokens[:, : int(last_token(tokens).max()) + 1]
    assert short.shape[1] < LENGTH
    np.testing.assert_allclose(run(name, variables, short), expected, atol=1e-6)

    def table(path):
        return "embedding" in jax.tree_util.keystr(path)

    def other_padding(path, x):
        return np.concatenate([np.full_like(x[:1], 9.0), x[1:]]) if table(path) else x

    moved = jax.tree.map_with_path(other_padding, jax.device_get(variables["params"]))
    np.testing.assert_array_equal(run(name, {"params": moved}, tokens), expected)
    _, gradients = jax.device_get(value_and_gradient(name, variables["params"], tokens))
    (gradient,) = [g for path, g in jax.tree.leaves_with_path(gradients) if table(path)]
    used = np.unique(tokens[tokens > 0])
    if name != "transformer":  # whose sum of a normalised vector is always the same
        assert np.abs(gradient[used]).max(1).all()
    assert not np.delete(gradient, used, axis=0).any()


@pytest.mark.parametrize("name", ["lstm", "gru", "bilstm"])
def test_a_text_of_any_length_beside_a_chunk_is_read_to_its_end(name):
    """Chunks behind the longest text are skipped: its last token may be the first of one."""
    chunk = recurrent.CHUNK
    longest, lengths = 2 * chunk + 5, [1, chunk - 1, chunk, chunk + 1, 2 * chunk, 2 * chunk + 1]
    tokens = np.random.default_rng(0).integers(1, VOCABULARY, (1 + len(lengths), longest))
    for text, length in zip(tokens[1:], lengths):
        text[length:] = 0
    variables = variables_of(name)
    together = run(name, variables, tokens)
    assert np.abs(together).max(1).all()
    for row, length in enumerate(lengths, 1):
        alone = run(name, variables, tokens[row : row + 1])
        np.testing.assert_allclose(alone[0], together[row], atol=1e-6, err_msg=str(length))


@every_model
def test_an_empty_text_is_finite(name):
    empty = np.zeros((5, LENGTH), np.int32)  # as many as in the test above: one program for both
    value, gradients = jax.device_get(value_and_gradient(name, variables_of(name)["params"], empty))
    assert np.isfinite(value) and all(np.isfinite(g).all() for g in jax.tree.leaves(gradients))


def test_the_last_token():
    tokens = np.array([[1, 0, 2, 0], [0, 0, 0, 0], [3, 3, 3, 3], [5, 0, 0, 0]])
    np.testing.assert_array_equal(last_token(tokens), [2, 0, 3, 0])


def test_published_sizes():
    """HtFLlib's models at 512 features and its vocabulary."""
    vocabulary, width = 98_635, 512
    table = vocabulary * width
    linear = width * width + width
    layer = 4 * (2 * width * width + 2 * width)
    sizes = {
        "fasttext": table + linear,
        "text_logistic": table,
        "lstm": table + 2 * layer,
        "gru": table + 2 * layer * 3 // 4,
        "bilstm": table + 2 * layer + 2 * width * width + width,
        "transformer_8_2": table + width + 2 * (4 * linear + 2 * linear + 4 * width),
    }
    shape = jax.ShapeDtypeStruct((200,), jnp.int32)
    modules = model_group("htfe_txt6", 4, shape, vocabulary=vocabulary)
    names = ["fasttext", "lstm", "bilstm", "transformer_8_2", "text_logistic", "gru"]
    assert list(modules) == names
    federation = make_federation(modules, shape, 4, num_clients=6)
    for bucket in federation.buckets:
        assert count_parameters(bucket) == {"base": sizes[bucket.name], "head": 4 * width + 4}, (
            bucket.name
        )


def weight_bound(name: str, path: str) -> float:
    """Returns the bound of the uniform distribution that torch draws these weights from."""
    if "in_proj" in path:
        return (6 / (4 * 64)) ** 0.5
    fan_in = 128 if path.startswith("base/fc1") and name == "bilstm" else 64
    return fan_in**-0.5


@every_model
def test_initial_weights_are_torchs(name):
    """Embeddings normal, a transformer's uniform within 0.1; all else within 1/sqrt(fan_in)."""
    big = (
        text_transformer(CLASSES, 2000, 64, 4, 2)
        if name == "transformer"
        else text_model(name, CLASSES, 2000, 64)
    )
    params = jax.jit(big.init)(jax.random.key(1), jnp.ones((1, LENGTH), jnp.int32))["params"]
    flat = {
        jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(x)
        for path, x in jax.tree.leaves_with_path(params)
    }
    (table,) = [x for path, x in flat.items() if "embedding" in path]
    assert not table[0].any()
    if name == "transformer":
        assert np.abs(table).max() <= 0.1
        assert table[1:].std() == pytest.approx(0.1 / 3**0.5, rel=0.02)
    else:
        assert table[1:].std() == pytest.approx(1, rel=0.02) and abs(table.mean()) < 0.02
    zero = {path for path in flat if path.endswith(("in_proj/bias", "out_proj/bias"))}
    assert not any(flat[path].any() for path in zero)
    for path in set(flat) - zero:
        if re.search("embedding|norm|^base/class_token$", path):
            continue
        x, bound = flat[path], weight_bound(name, path)
        assert np.abs(x).max() <= bound and x.std() == pytest.approx(bound / 3**0.5, rel=0.3), path


@pytest.mark.parametrize("name", ["gru", "transformer"])
def test_dropout_needs_a_key_and_training(name):
    variables, tokens = variables_of(name), texts()
    plain = run(name, variables, tokens)
    keys = jax.random.split(jax.random.key(1), 300)
    np.testing.assert_array_equal(run(name, variables, tokens, train=True), plain)
    np.testing.assert_array_equal(run(name, variables, tokens, key=keys[0]), plain)
    dropped = np.asarray(
        jax.jit(jax.vmap(lambda key: run(name, variables, tokens, train=True, key=key)))(keys)
    )
    assert not np.array_equal(dropped[0], dropped[1])
    if name == "gru":  # whose states are zero for no other reason
        np.testing.assert_allclose((dropped == 0).mean(0)[np.asarray(plain) != 0], 0.2, atol=0.12)


def test_positions():
    encoding = positions(5, 6)
    for t in range(5):
        for i in range(3):
            angle = t / 10000 ** (2 * i / 6)
            expected = [np.sin(angle), np.cos(angle)]
            np.testing.assert_allclose(encoding[t, 2 * i : 2 * i + 2], expected)
    assert positions(3, 5).shape == (3, 5)


def test_groups():
    def heads(group):
        modules = model_group(group, 4, TOKENS, 16, vocabulary=9)
        return [(module.base.heads, module.base.layers) for module in modules.values()]

    assert heads("htfe_txt5_1") == [(8, n) for n in (1, 2, 4, 8, 16)]
    assert heads("htfe_txt5_2") == [(n, 4) for n in (1, 2, 4, 8, 16)]
    assert heads("htfe_txt5_3") == [(n, n) for n in (1, 2, 4, 8, 16)]
    assert list(model_group("htfe_txt2", 4, TOKENS, vocabulary=9)) == ["fasttext", "text_logistic"]
    four = model_group("htfe_txt4", 4, TOKENS, vocabulary=9)
    assert list(four) == ["fasttext", "text_logistic", "lstm", "bilstm"]
    modules = model_group("htfe_txt6", 4, TOKENS, 16, vocabulary=9)
    assert make_federation(modules, TOKENS, 4, num_clients=6).feature_dim == 16


def test_an_unknown_model_is_named():
    with pytest.raises(ValueError, match="unknown text model 'rnn'; there are fasttext"):
        text_model("rnn", 2, 3)
