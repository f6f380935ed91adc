"""pFedAFM (Yi et al., 2024): own and shared features are mixed by learned weights.

    client:  g_i <- g, which stays fixed while f_i and h_i, the own extractor and head, and alpha_i
             in [0, 1]^K descend on CE(h_i(alpha_i f_i(x) + (1 - alpha_i) g(x))), entry by entry;
             then g_i descends on CE(h_i(g_i(x))), h_i being fixed; uploads g_i
    server:  g <- sum_i n_i g_i / sum_i n_i, of the uploads
    predict: h_i(alpha_i f_i(x) + (1 - alpha_i) g(x)), g as received
    up:      A - H: the auxiliary model's extractor
    down:    A - H: the auxiliary model's extractor
    fits:    any models of one feature width, beside a small one; clients of few classes
    paper:   https://arxiv.org/abs/2404.17847

Settled here:
* alpha_i starts at 1, where g has no part until gradients change it. Clients keep it between
  rounds. It is clipped to [0, 1] at every step, and the clients' optimiser trains it, including any
  weight decay, as released. `alpha_rate` is its rate as a multiple of theirs; the authors have 0.01
  for both.
* In the authors' code all uploads of a round are the weights of the round's last client. Alpha, and
  the momentum of both, also pass from client to client. Here uploads and alpha_i are each client's
  own, and optimisers restart in each round.
* The authors count a client's validation and test samples in n_i; here it is those of training.
* The authors clip the gradients of (f_i, h_i), and of g_i, at norm 50 each, and not that of alpha;
  a bound in the optimizer applies separately to each of the three. They train by SGD with momentum
  0.9 and weight decay 1e-3.
* They score a client after the first step, with the g of that training:
  `SimulationOptions(scoring=Scoring("trained"))`. "received" uses the server's newest.
* Their networks have no batch norms. Here these normalise by the batch in both steps. Running
  statistics are those of the first step and stay with the client.
"""

from typing import Annotated

import jax
import jax.numpy as jnp
import optax

from fedjax_ht.check.options import Positive, SearchRange, checked
from fedjax_ht.core.batches import Batch
from fedjax_ht.core.bucket import logits
from fedjax_ht.core.local_training import LocalTraining, Loss, train
from fedjax_ht.core.method import Method, Needs, View, Wire
from fedjax_ht.methods.shared import small_part
from fedjax_ht.methods.shared.averaging import ModelUplink, average_uploads, sent_samples
from fedjax_ht.methods.shared.corrections import in_unit_interval
from fedjax_ht.methods.shared.mutual import receive_shared
from fedjax_ht.methods.shared.small_part import Mixer, mixed_features, train_mixed
from fedjax_ht.methods.shared.supervised import batch_features


def mix(bucket, params, rows, x):
    """Mixes features entry by entry, with weight alpha on the client's own; a `Mixer.mix`."""
    alpha = params["alpha"]
    return alpha * rows.private + (1 - alpha) * rows.shared


MIXER = Mixer("alpha", mix)


@checked
def pfedafm(
    training: LocalTraining,
    alpha_rate: Annotated[Positive, SearchRange(0.1, 10.0)] = 1.0,
) -> Method:
    """Makes pFedAFM, described in the module's docstring.

    Args:
      training: local training, of the own model and then of the shared extractor.
      alpha_rate: learning rate of alpha, as a multiple of the optimizer's own.
    """
    optimizer = training.optimizer
    optimizers = {
        "own": optimizer,
        "alpha": in_unit_interval(optax.chain(optimizer, optax.scale(alpha_rate))),
    }

    def init_client(bucket, ctx):
        return small_part.init_client(bucket, ctx) | {"alpha": jnp.ones(bucket.feature_dim)}

    def train_shared(bucket, client, data, key):
        """Returns the shared extractor, trained through the client's head."""
        beside = bucket.auxiliary

        def loss(params, stats, batch: Batch, key) -> Loss:
            rows, stats = batch_features(beside, params, stats, batch, key)
            scores = logits(bucket, client["params"], rows)
            return Loss(bucket.task.loss(scores, batch.y, batch.mask), stats)

        params, stats = client["shared"]["params"], client["shared"]["stats"]
        result = train(training, loss, params, stats, data, key=key)
        return result.params

    def client_update(bucket, client, downlink, data, ctx):
        def loss(params, mixed, batch):
            return bucket.task.loss(logits(bucket, params["own"], mixed), batch.y, batch.mask)

        client, result = train_mixed(
            training, MIXER, bucket, client, data=data, ctx=ctx, loss=loss, optimizers=optimizers
        )
        shared = train_shared(bucket, client, data, jax.random.fold_in(ctx.key, 1))
        # The client keeps g as received, for scoring.
        uplink = ModelUplink(shared, sent_samples(ctx, "samples"))
        return client, uplink, {"loss": result.loss, "alpha": client["alpha"].mean()}

    def compared(bucket, client, x, mask):
        return mixed_features(MIXER, bucket, client, x, mask)

    def predict(bucket, client, downlink, x, mask):
        return {"head": logits(bucket, client["params"], compared(bucket, client, x, mask))}

    return Method(
        name="pfedafm",
        training=training,
        needs=Needs(classes=False),
        check=small_part.require_shared_width("pfedafm"),
        init_server=small_part.init_extractor,
        init_client=init_client,
        receive=receive_shared,
        client_update=client_update,
        server_update=average_uploads,
        predict=predict,
        view=View(features=compared),
        wire=Wire(server_reads="sums"),
    )
