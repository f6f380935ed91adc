"""pFedMoE (Yi et al., 2024): a client's gate mixes a shared and an own extractor, sample by sample.

    client:  g_i <- g; with f_i and h_i the own extractor and head, and w = softmax(a_i(x)) in R^2,
             g_i, f_i, h_i and the gate a_i together descend on CE(h_i(w_1 g_i(x) + w_2 f_i(x)));
             uploads g_i
    server:  g <- sum_i n_i g_i / sum_i n_i, of the uploads
    predict: h_i(w_1 g(x) + w_2 f_i(x)), with the server's newest g and the client's own gate
    up:      A - H: the auxiliary model's extractor
    down:    A - H: the auxiliary model's extractor
    fits:    any models of one feature width, beside a small one; the gate's first layer is as wide
             as a sample is large
    paper:   https://arxiv.org/abs/2402.01350

Settled here:
* The norm and width of the paper's gate were not available. Here the gate is that of RigFL's code:
  the flattened input, a linear layer of `gate_width`, a layer norm, a sigmoid and a linear layer to
  2. It stays with the client.
* For tokens, the gate's input is the mean embedding of all tokens except 0, by the table of the
  client's own extractor.
* f_i with h_i, g_i and a_i each have their own optimiser, which restarts in each round; `gate_rate`
  is the gate's rate as a multiple of the others'. A bound in the optimizer clips each of the three
  separately.
* n_i is the number of training samples. Batch statistics of g_i and f_i stay with the client.
"""

import functools
from typing import Annotated

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from fedjax_ht.check.options import Count, Positive, SearchRange, checked
from fedjax_ht.core.bucket import Bucket, logits
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.inputs import described, zeros
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method, Needs, View, Wire
from fedjax_ht.core.trees import PyTree
from fedjax_ht.methods.shared import small_part
from fedjax_ht.methods.shared.averaging import ModelUplink, average_uploads, sent_samples
from fedjax_ht.methods.shared.mutual import receive_shared, take_shared
from fedjax_ht.methods.shared.small_part import Mixer, Rows, mixed_features, train_mixed
from fedjax_ht.models.layers import Linear


class Gate(nn.Module):
    """The weights of both extractors: float [B, D] -> float [B, 2], of sum 1 in each row."""

    width: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = nn.LayerNorm(epsilon=1e-5, use_fast_variance=False)(Linear(self.width)(x))
        return nn.softmax(Linear(2)(nn.sigmoid(hidden)))


def embedding_table(params: PyTree) -> jax.Array | None:
    """Returns an extractor's only array named "embedding", [vocabulary, width]; None otherwise."""
    tables = []
    for path, leaf in jax.tree.leaves_with_path(params):
        if jax.tree_util.keystr(path[-1:], simple=True) == "embedding":
            tables.append(leaf)
    return tables[0] if len(tables) == 1 else None


def gate_input(params: PyTree, x: PyTree) -> jax.Array | None:
    """Makes the input of a client's gate.

    Args:
      params: parameters of the client's own model.
      x: the model's input.

    Returns:
      float [B, D]: floats flattened and joined, or the mean embedding of token ids; None if x is
      neither.
    """
    leaves = jax.tree.leaves(x)
    if all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves):
        return jnp.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)
    table = embedding_table(params["base"])
    if table is None or len(leaves) > 1 or leaves[0].ndim != 2:
        return None
    (tokens,) = leaves
    real = (tokens != 0)[..., None]  # 0 is padding, as in the models of texts
    return jnp.where(real, table[tokens], 0).sum(1) / jnp.maximum(real.sum(1), 1)


def require_gate_input(federation: Federation) -> None:
    """Raises a ValueError unless a gate can read the models' input."""

    def trace(bucket: Bucket, key: jax.Array) -> jax.Array | None:
        variables = bucket.module.init(key, zeros(bucket.input_shape))
        return gate_input(variables["params"], zeros(bucket.input_shape))

    for bucket in federation.buckets:
        if jax.eval_shape(functools.partial(trace, bucket), jax.random.key(0)) is None:
            raise ValueError(
                "pfedmoe's gate needs floats, or token ids [L] and a model with one embedding; "
                f"model {bucket.name!r} takes {described(bucket.input_shape)}"
            )


def mixer_of(gate_width: int) -> Mixer:
    """Makes the mixer with a gate of this width."""

    def mix(bucket: Bucket, params: PyTree, rows: Rows, x: PyTree) -> jax.Array:
        gate = {"params": params["gate"]}
        weights: PyTree = Gate(gate_width).apply(gate, gate_input(params["own"], x))
        return weights[:, :1] * rows.shared + weights[:, 1:] * rows.private

    return Mixer("gate", mix)


@checked
def pfedmoe(
    training: LocalTraining,
    gate_width: Count = 32,
    gate_rate: Annotated[Positive, SearchRange(0.1, 10.0)] = 1.0,
) -> Method:
    """Makes pFedMoE, described in the module's docstring.

    Args:
      training: local training, of all parts together.
      gate_width: width of the gate's hidden layer.
      gate_rate: learning rate of the gate, as a multiple of the optimizer's own.
    """
    mixer, optimizer = mixer_of(gate_width), training.optimizer
    optimizers = {
        "own": optimizer,
        "shared": optimizer,
        "gate": optax.chain(optimizer, optax.scale(gate_rate)),
    }

    def check(federation):
        small_part.require_shared_width("pfedmoe")(federation)
        require_gate_input(federation)

    def init_client(bucket, ctx):
        client = small_part.init_client(bucket, ctx)
        x = gate_input(client["params"], zeros(bucket.input_shape))
        gate = Gate(gate_width).init(jax.random.fold_in(ctx.key, 2), x)["params"]
        return client | {"gate": gate}

    def client_update(bucket, client, downlink, data, ctx):
        def loss(params, mixed, batch):
            return bucket.task.loss(logits(bucket, params["own"], mixed), batch.y, batch.mask)

        client, result = train_mixed(
            training, mixer, bucket, client, data=data, ctx=ctx, loss=loss, optimizers=optimizers
        )
        uplink = ModelUplink(client["shared"]["params"], sent_samples(ctx, "samples"))
        return client, uplink, {"loss": result.loss}

    def compared(bucket, client, x, mask):
        return mixed_features(mixer, bucket, client, x, mask)

    def predict(bucket, client, downlink, x, mask):
        # With the server's extractor, even if clients are scored as training left them.
        client = take_shared(client, params=downlink)
        return {"head": logits(bucket, client["params"], compared(bucket, client, x, mask))}

    return Method(
        name="pfedmoe",
        training=training,
        needs=Needs(classes=False),
        check=check,
        init_server=small_part.init_extractor,
        init_client=init_client,
        receive=receive_shared,
        client_update=client_update,
        server_update=average_uploads,
        predict=predict,
        view=View(features=compared),
        wire=Wire(server_reads="sums"),
    )
