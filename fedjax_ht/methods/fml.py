"""FML (Shen et al., 2020): a private model and a copy of a global "meme" model teach each other.

    client:  g_i <- g; on the same batches, o = m_i(x) and q = g_i(x),
             L_m = alpha CE(o, y) + (1 - alpha) KL(softmax q || softmax o)
             L_g = beta CE(q, y) + (1 - beta) KL(softmax o || softmax q);  uploads g_i
    server:  g <- uniform mean of the g_i
    predict: m_i, the private model
    up:      A: the auxiliary model
    down:    A: the auxiliary model
    paper:   https://arxiv.org/abs/2006.16765

Settled here:
* The teacher's side is a constant and KL is the mean over samples, as in the authors' code;
  variant="released" is HtFLlib, for classes only: KL divided by their number too, and each model
  descends on L_m + L_g.
* The mean is uniform, as in the paper and all code, over the clients that have samples.
* In the authors' repository the calls that send and merge g are commented out; here they are
  active.
* g is any model, by default the smallest of the group (`make_federation`). Its batch statistics
  stay with the client.
* HtFLlib clips the gradient of each model at norm 10; set it in the optimizer, which runs
  separately for each model.
"""

from typing import Annotated

from fedjax_ht.check.options import SearchRange, Share, checked
from fedjax_ht.core.bucket import init_variables
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method, Needs, Wire
from fedjax_ht.methods.shared import mutual
from fedjax_ht.methods.shared.variants import Variant


@checked
def fml(
    training: LocalTraining,
    *,
    alpha: Annotated[Share, SearchRange(0.0, 1.0, log=False)] = 0.5,
    beta: Annotated[Share, SearchRange(0.0, 1.0, log=False)] = 0.5,
    variant: Variant = "paper",
) -> Method:
    """Makes FML, described in the module's docstring.

    Args:
      training: the recipe of local training, of both models.
      alpha, beta: weight of the labels in the private and in the meme model's loss; the other
        model's prediction has the rest.
      variant: form of the method, the paper's or the released code's; see the module's docstring
        for their differences.
    """
    released = variant == "released"

    def losses(task, private, shared, batch, extra):
        scale = 1 / private.logits.shape[-1] if released else 1.0

        def loss_of(model, teacher, share):
            labels = task.loss(model.logits, batch.y, batch.mask)
            divergence = task.divergence(teacher.logits, model.logits, batch.mask)
            return share * labels + (1 - share) * scale * divergence

        return loss_of(private, shared, alpha), loss_of(shared, private, beta)

    train_pair = mutual.pair_training(training, losses, joint=released)

    def init_server(federation, key):
        return init_variables(federation.shared, key)["params"]

    def client_update(bucket, client, downlink, data, ctx):
        client, _, result = train_pair(bucket, client, data, ctx)
        return client, client["shared"]["params"], {"loss": result.loss}

    return Method(
        name="fml",
        training=training,
        init_server=init_server,
        init_client=mutual.init_pair,
        receive=mutual.receive_shared,
        client_update=client_update,
        server_update=mutual.average_copies,
        wire=Wire(server_reads="sums"),
        needs=Needs(classes=released),
    )
