"""APFL (Deng et al., 2020): a client predicts by a learned mixture of its own and FedAvg's model.

    client:  w_i <- w; on each batch w_i descends on CE(w_i), the personal v_i and the share alpha_i
             on CE(alpha_i v_i + (1 - alpha_i) w_i), alpha_i clipped to [0, 1]; uploads w_i
    server:  w <- sum_i n_i w_i / sum_i n_i over the uploads of one architecture
    predict: alpha_i v_i + (1 - alpha_i) w, with w as received
    up:      W: all parameters
    down:    W: all parameters
    fits:    one architecture or a few, clients of which some differ much and some little; training
             costs twice FedAvg's
    paper:   https://arxiv.org/abs/2003.13461

Settled here:
* The client trains and keeps v_i, and computes the mixture for each batch and score. The authors'
  code (MLOPTPSU/FedTorch) and FL-bench mix logits instead of parameters, and FL-bench leaves
  gradients of the first backward pass in the second. PFLlib stores the mixture as v_i after every
  round, so that mixtures accumulate, and trains v_i on a separate loss.
* v_i starts as the first w that the client receives; alpha_i starts at `alpha`, 0.5. PFLlib's 1.0
  is a model without a share of w.
* alpha_i takes a step with every batch, as in the paper's equation. alpha_every="round" takes only
  the step of a round's first batch, as in the authors' code, which also adds 0.02 alpha_i to the
  gradient. alpha_every="never" keeps `alpha`. The clients' optimiser trains it, including any
  weight decay.
* The paper has one architecture; here every architecture has its own mean, weighted by samples.
  Batch statistics of w_i and of the mixture stay with each client, as in `fedavg`.
"""

from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import optax

from fedjax_ht.check.options import SearchRange, Share, checked
from fedjax_ht.core.bucket import head_scores, own_features
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method, View
from fedjax_ht.core.trees import PyTree
from fedjax_ht.methods.shared.architectures import averaging_method
from fedjax_ht.methods.shared.averaging import ModelUplink, Weighting, sent_samples
from fedjax_ht.methods.shared.corrections import in_unit_interval
from fedjax_ht.methods.shared.personal import init_both, receive_both, training_both


def mixture(share: jax.Array, personal: PyTree, shared: PyTree) -> PyTree:
    """Mixes parameters: share personal + (1 - share) shared."""
    return jax.tree.map(lambda v, w: share * v + (1 - share) * w, personal, shared)


@checked
def apfl(
    training: LocalTraining,
    *,
    alpha: Annotated[Share, SearchRange(0.0, 1.0, log=False)] = 0.5,
    alpha_every: Literal["step", "round", "never"] = "step",
    weighting: Weighting = "samples",
) -> Method:
    """Makes APFL, described in the module's docstring.

    Args:
      training: local training, of both models and of the share.
      alpha: initial share of a client's own model.
      alpha_every: the steps at which a client learns its share: all, the first of a round as in the
        authors' code, or none.
      weighting: weights of the mean: numbers of training samples, or equal weights.
    """
    optimizer = training.optimizer
    # Its state is new in every round, whose first step is therefore step 0.
    first_step = optax.conditionally_mask(optimizer, lambda step, **_: step == 0)
    of_share = {
        "step": in_unit_interval(optimizer),
        "round": in_unit_interval(first_step),
        "never": optax.set_to_zero(),
    }
    optimizers = {"own": optimizer, "shared": optimizer, "beside": of_share[alpha_every]}

    def personal(params):
        return mixture(params["beside"], params["own"], params["shared"])

    train_both = training_both(training, optimizers, personal)

    def init_client(bucket, ctx):
        return init_both(bucket, ctx) | {"share": jnp.asarray(alpha, jnp.float32)}

    def client_update(bucket, client, downlink, data, ctx):
        client, share, result = train_both(bucket, client, data, ctx, client["share"])
        uplink = ModelUplink(client["shared"]["params"], sent_samples(ctx, weighting))
        return client | {"share": share}, uplink, {"loss": result.loss, "share": share}

    def mixed(client):
        params = mixture(client["share"], client["params"], client["shared"]["params"])
        return client | {"params": params}

    def predict(bucket, client, downlink, x, mask):
        return {"head": head_scores(bucket, mixed(client), x, mask)}

    def mixed_features(bucket, client, x, mask):
        return own_features(bucket, mixed(client), x, mask)

    return averaging_method(
        "apfl",
        training,
        client_update,
        init_client=init_client,
        receive=receive_both,
        predict=predict,
        view=View(features=mixed_features),
    )
