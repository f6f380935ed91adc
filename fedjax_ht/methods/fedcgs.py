"""FedCGS (Guan et al., AAAI 2025): a Gaussian classifier on frozen features, from one upload.

    client:  sums of its features by class, S_i^c, their numbers N_i^c, and B_i = sum x x^T, in
             evaluation mode, without training
    server:  from the sums over clients, mu_c = S_c / N_c, mu = sum_c S_c / N and
             Sigma = (B - N mu mu^T) / (N - 1)
    predict: the class of the largest mu_c^T Sigma^-1 (x - mu_c / 2) + log(N_c / N)
    up:      C K + C + K (K + 1) / 2, once: the class sums and counts, and the upper triangle of B_i
    down:    W + S: the frozen extractor with its running statistics, and the head
    fits:    a frozen extractor, pre-trained at best, or a few with a head each; one round with all
             clients, whatever their split
    paper:   https://arxiv.org/abs/2503.06962

Settled here:
* Sigma is the covariance of all samples, as in the authors' code. covariance="within" takes
  (B - sum_c N_c mu_c mu_c^T) / (N - C) instead, which is linear discriminant analysis, as GH-OFL's
  LDA (Turazza et al., ICLR 2026) has it; C counts the classes that have samples. Its head trained
  on draws from Gaussians of this Sigma tends to LDA with equal priors, and is not here.
* Sigma gets a share of tr(Sigma)/K on its diagonal. Without it, as in the code, Sigma is singular
  if a feature is dead or N <= K. With a single sample, or within classes of one sample each, Sigma
  is the identity.
* The server solves for mu_c - mu instead of mu_c. This changes all scores of a sample by the same
  number, and so no prediction.
* A class that nobody has is ruled out; in the code its row is NaN, which wins.
* The sum of all features is not sent, since it is that of the class sums.
* The second round, in which clients train their own models towards the class means, is not here.
* Each architecture has a head of its own, with the N_c of all, see `shared.one_shot`. The extractor
  is the one of `model.weights`, or random. The server sends it, and its bytes count; the paper's
  clients have it.
"""

from typing import Annotated, Literal

import jax.numpy as jnp

from fedjax_ht.check.options import Positive, SearchRange, checked
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.methods.shared.one_shot import Total, linear_head, moments, one_shot, solve


@checked
def fedcgs(
    training: LocalTraining,
    *,
    covariance: Literal["total", "within"] = "total",
    shrinkage: Annotated[Positive, SearchRange(1e-5, 1.0)] = 1e-3,
) -> Method:
    """Makes FedCGS, described in the module's docstring.

    Args:
      training: the recipe of local training; no client trains by it.
      covariance: Sigma, of all samples, or within classes.
      shrinkage: the addition to the diagonal of Sigma, as a share of tr(Sigma)/K.

    Returns:
      The method; its `check` rejects heads that are not one linear layer.
    """

    def head_of(total: Total):
        # Noise on sums may leave a count between 0 and 1.
        present, counts = total.counts > 0.5, jnp.maximum(total.counts, 1)
        sums = jnp.where(present[:, None], total.by_class, 0)
        means, number = sums / counts[:, None], jnp.sum(counts, where=present)
        whole = sums.sum(0)
        overall = whole / jnp.maximum(number, 1)
        if covariance == "within":
            scatter = total.second - jnp.matmul(sums.T, means, precision="highest")
            freedom = number - present.sum()
        else:
            scatter = total.second - jnp.outer(whole, whole) / jnp.maximum(number, 1)
            freedom = number - 1
        # Without two samples to compare, Sigma is rounding; the identity takes the nearest mean.
        spread = scatter / jnp.maximum(freedom, 1)
        # What the means share adds the same to every class's score, and would cost float32 the
        # digits of the differences.
        apart = jnp.where(present[:, None], means - overall, 0)
        kernel = solve(jnp.where(freedom > 0, spread, jnp.eye(len(spread))), apart.T, shrinkage)
        everywhere = jnp.maximum(total.all_counts, 1)
        prior = jnp.log(everywhere / jnp.sum(everywhere, where=total.all_counts > 0.5))
        bias = prior - jnp.sum(kernel * (overall + apart / 2).T, 0)
        return linear_head(kernel, bias, present)

    return one_shot("fedcgs", training, moments(head_of, counted=True))
