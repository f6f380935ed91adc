"""AFL (He et al., CVPR 2025): a ridge regression on frozen features, from one upload a client.

    client:  G_i = X_i^T X_i and Q_i = X_i^T Y_i of its features X_i and one-hot labels Y_i, in
             evaluation mode, without training
    server:  W = (sum_i G_i + rho I)^-1 sum_i Q_i
    predict: the class of the largest x^T W
    up:      K (K + 1) / 2 + K C, once: the upper triangle of G_i, and Q_i
    down:    W + S: the frozen extractor with its running statistics, and the head
    fits:    a frozen extractor, pre-trained at best, or a few with a head each; one round with all
             clients, whatever their split
    paper:   https://arxiv.org/abs/2405.16240

Settled here:
* Clients of the paper send W_i = (G_i + gamma I)^-1 Q_i and C_i = G_i + gamma I, and the server
  merges them one by one: W <- (C + C_i)^-1 (C W + C_i W_i), C <- C + C_i. Since C W is the sum of
  the Q_i so far, the recursion is the one solve above with rho = m gamma for m clients.
* rho is a share of the mean eigenvalue tr(sum G_i)/K, so that the head does not depend on m.
  scale="clients" is the paper's m gamma, m counting the clients heard. The paper then takes m gamma
  out again; without rho a system in float32 fails where features are dead or collinear.
* The head has no bias, as in the paper. Here the bias rules out classes that nobody has, whose
  score 0 would be above others, unless noise on sums hides which these are.
* Each architecture has a head of its own, see `shared.one_shot`. The extractor is the one of
  `model.weights`, or random. The server sends it, and its bytes count; the paper's clients have it.
"""

from typing import Annotated, Literal

import jax.numpy as jnp

from fedjax_ht.check.options import Positive, SearchRange, checked
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.methods.shared.one_shot import Total, linear_head, moments, one_shot, solve


@checked
def afl(
    training: LocalTraining,
    *,
    ridge: Annotated[Positive, SearchRange(1e-5, 1.0)] = 1e-3,
    scale: Literal["trace", "clients"] = "trace",
) -> Method:
    """Makes AFL, described in the module's docstring.

    Args:
      training: the recipe of local training; no client trains by it.
      ridge: rho in units of `scale`; gamma in the paper, 1 in its script.
      scale: the mean eigenvalue tr(sum G_i)/K, or the number of clients heard, as in the paper.

    Returns:
      The method; its `check` rejects heads that are not one linear layer.
    """

    def head_of(total: Total):
        share = ridge
        if scale == "clients":
            mean = jnp.maximum(jnp.trace(total.second), 1e-30) / len(total.second)
            share = total.clients * ridge / mean
        kernel = solve(total.second, total.by_class.T, share)
        # Only a class without samples has features that sum to 0.
        return linear_head(kernel, 0.0, jnp.any(total.by_class != 0, 1))

    return one_shot("afl", training, moments(head_of, counted=False))
