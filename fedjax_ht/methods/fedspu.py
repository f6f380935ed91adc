"""FedSPU (Niu et al., AAAI 2025): a personal model, of which a round trains random channels.

    client:  of rate R is sent ceil(R K) of a layer's K channels, drawn anew in each round; writes
             them into its personal v_i and trains them by cross-entropy on all of v_i, whose other
             channels take part but stay; uploads them
    server:  averages each entry by samples over the clients that hold it; the rest stays
    predict: v_i
    up:      W_R: the trained channels, and the whole head of their features
    down:    W_R: random channels, drawn for each client and round
    fits:    clients with unequal bandwidth that differ much; memory and arithmetic are those of the
             whole network
    paper:   https://arxiv.org/abs/2403.11464

Settled here:
* A parameter is trained if the channels that it reads and those that it writes are both drawn. In
  the authors' code the first dense layer compares columns with channels, so that 98 % of what is
  sent of it stays as it is.
* The mean is by samples; the authors' counts batches. Each client draws the channels of a shortcut
  together, as `feddropout` does. Their early stop is not here.
* v_i starts with weights of its own, and changes in the client's rounds alone: it is scored as it
  was trained last.
* Norms use the statistics of the batch.
"""

import functools

import jax
import jax.numpy as jnp

from fedjax_ht.check.options import checked
from fedjax_ht.core.bucket import head_scores, init_variables, own_features
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method, View, keep_state
from fedjax_ht.core.trees import PyTree
from fedjax_ht.core.wire import FIRST_ROWS, Masked, Metadata
from fedjax_ht.methods.fjord import at_width, require_rate
from fedjax_ht.methods.shared.averaging import Weighting, sent_samples
from fedjax_ht.methods.shared.heads import rows_of
from fedjax_ht.methods.shared.partial_training import Uplink, partial_training, slice_plan
from fedjax_ht.methods.shared.slicing import extract, spread
from fedjax_ht.methods.shared.supervised import train_model
from fedjax_ht.models.sliced import parameter_axes


@checked
def fedspu(training: LocalTraining, *, weighting: Weighting = "samples") -> Method:
    """Makes FedSPU, described in the module's docstring.

    Args:
      training: local training.
      weighting: weights of the mean: numbers of training samples, or equal weights.
    """

    def init_client(bucket, ctx):
        return init_variables(at_width(bucket, 1.0), ctx.key)

    def client_update(bucket, client, downlink, data, ctx):
        whole, own = at_width(bucket, 1.0), client["params"]
        widths = whole.module.base.channels().widths
        plan = slice_plan(whole, bucket.width, "random", ctx=ctx, client_id=ctx.info.id)
        axes = parameter_axes(whole.module, own)
        sent = spread(downlink, axes, plan, widths)
        drawn = spread(jax.tree.map(jnp.ones_like, downlink), axes, plan, widths)

        def put(values: PyTree) -> PyTree:
            return jax.tree.map(lambda v, old, at: jnp.where(at > 0, v, old), values, own, drawn)

        client, result = train_model(training, whole, client, data, ctx, trained=put(sent), put=put)
        part = extract(client["params"], axes, plan)
        counted = jnp.ones(bucket.num_classes, bool)
        uplink = Uplink(
            base=part["base"],
            head=Masked(rows_of(part["head"], bias="first"), counted, FIRST_ROWS),
            classes=Metadata(counted),
            num_samples=sent_samples(ctx, weighting),
        )
        return client, uplink, {"loss": result.loss}

    def predict(bucket, client, downlink, x, mask):
        return {"head": head_scores(at_width(bucket, 1.0), client, x, mask)}

    def features(bucket, client, x, mask):
        return own_features(at_width(bucket, 1.0), client, x, mask)

    server = partial_training("fedspu", "random", training, weighting=weighting, label_split=False)
    return server._replace(
        check=functools.partial(require_rate, "fedspu"),
        init_client=init_client,
        receive=keep_state,
        client_update=client_update,
        predict=predict,
        view=View(features=features),
    )
