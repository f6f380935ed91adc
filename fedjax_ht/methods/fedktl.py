"""FedKTL (Zhang et al., CVPR 2024): a pre-trained generator's images carry knowledge to clients.

    client:  z = h(f(x)), cos_c = z . v_c / |z|, V = (v_c) a fixed ETF; per batch
             L = ArcFace(cos, y) + mu * mean ||h'(f(I_c)) - Qbar_c||^2 over a mini-batch of the C
             pairs (I_c, Qbar_c), h' being linear, the same at the start of every client's round,
             and thrown away after it (`shared.pairs`); uploads P_c = mean of z, for its classes
    server:  trains F, E_S epochs: L_MMD(F(P), valid latents) + lambda * L_MSE(F(P), class means of
             F(P)); Qbar_c = mean of F(P_c), I_c = G_s(Qbar_c); sends the pairs
             (`shared.pair_server`)
    predict: the class of the largest cosine
    up:      C_i k, k = C by default: class means of outputs
    down:    C' (P + L), C' the classes uploaded so far: per class an image and its latent
    paper:   https://arxiv.org/abs/2403.15760

Settled here:
* Latents are as the generator has them, on both sides and on the wire. lambda, mu, fixed kernels
  and F's steps then depend on the scale of w; latents="spread" takes that out (`shared.units`).
* F's batch norm uses the statistics of the current prototypes, also when it makes Qbar. Running
  statistics would lag behind by many standard deviations.
* F's range is the ball about W's mean that holds a thousand valid latents: latents outside are
  moved to its surface. The paper has no such bound (bounded=False): far away all kernels vanish,
  there is no gradient back, and Adam continues.
* The paper names no widths of the RBF kernels. They follow the median distance of valid latents
  (`bandwidths`).
* variant="released" is the authors' loop as it runs: features are made unit vectors before and
  after averaging; L_MSE is against a trainable table, over the batch, so that classes of many
  clients weigh more; that table starts from a normal distribution, is kept from round to round, and
  is the Qbar that is sent. Their code tries to set it to class means of F(P) before and after
  training, but through views whose data it replaces, so the table does not change. A batch of a
  single prototype is left out; kernels have widths 10, 15, 20 and 50; nothing bounds F; the
  server's gradients are clipped, too. Images are shrunk without antialiasing. From the first upload
  on there is a pair for every class, also for one that no client has uploaded. Clients take the
  pairs in shuffled passes, like epochs.
* Clients' gradients, of the model and of h', are each clipped at norm 100 in both variants. The
  paper does not mention this, but its numbers come from code that clips. Without it, ArcFace's
  first steps (|z| is small, gradients above 1,000) blow up the features of some clients, and the
  regression then diverges.
* A step takes a mini-batch of pairs, as released: an unbiased estimate of the paper's sum over all
  (all_pairs=True). L_MSE is a mean over the H numbers of a latent.
* A pair exists from a class's first upload on.
* V and the initial h' come from fixed seeds, which all know. They are not sent and not counted.
* dim, the paper's K, is at least C, as V has C orthonormal columns; the paper also allows C - 1.
* With dim = C, h is the model's own head, of any form; with another K, a linear layer replaces it.
* The arccos is clamped.
* Images are fitted to the clients' on the server, with antialiasing, and are their luminance for
  clients with grey images.
"""

import functools
import math
import pkgutil
from pathlib import Path
from typing import Annotated, Literal

import jax

from fedjax_ht.check.options import Count, NonNegative, Positive, SearchRange, Within, checked
from fedjax_ht.core.batches import class_means, sum_by_class
from fedjax_ht.core.bucket import init_variables
from fedjax_ht.core.inputs import image_shape
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method, Needs, Pretrained, View
from fedjax_ht.core.wire import Masked
from fedjax_ht.losses.features import BANDWIDTHS
from fedjax_ht.methods.shared import pair_server, pairs, prototypes
from fedjax_ht.methods.shared.units import Latents, in_units
from fedjax_ht.methods.shared.variants import Forms, Variant, settled
from fedjax_ht.models.generator import Generator

FORMS: Forms = {
    "paper": {"bandwidths": ("median",), "bounded": True, "antialias": True},
    "released": {"bandwidths": BANDWIDTHS, "bounded": False, "antialias": False},
}


@checked
def fedktl(
    training: LocalTraining,
    generator: str | Path | Generator = "fashion_mnist_32",
    *,
    variant: Variant = "paper",
    latents: Latents = "raw",
    mu: Annotated[NonNegative, SearchRange(1.0, 100.0)] = 50.0,
    mse_weight: NonNegative = 1.0,
    mmd_weight: NonNegative = 1.0,
    dim: Count | None = None,
    server_epochs: Count = 100,
    server_lr: Annotated[Positive, SearchRange(0.001, 0.1)] = 0.01,
    server_batch_size: Count = 100,
    bandwidths: pair_server.Median | pair_server.Widths | None = None,
    bounded: bool | None = None,
    scale: Positive = 64.0,
    margin: Annotated[float, Within(0, math.pi)] = 0.5,
    clip_norm: NonNegative = 100.0,
    all_pairs: bool = False,
    antialias: bool | None = None,
    classifier: Literal["etf", "head"] = "etf",
    transfer: pairs.Transfer = "pairs",
    source: pair_server.Source = "prototypes",
) -> Method:
    """Makes FedKTL, described in the module's docstring.

    Options that are None take the variant's value (see `FORMS`), except `dim`.

    Args:
      training: the recipe of local training.
      generator: a `generators.Generator`, or an argument of `generators.open_generator`: a name,
        "module:function", a path.
      variant: form of the method, the paper's or the released code's; see the module's docstring
        for their differences.
      latents: "raw", as the generator has them, or in units of their "spread", see
        `shared.units`.
      mu: weight of the regression on pairs; 0 is ablation "-L_M" of Table 7.
      mse_weight: lambda; 0 is ablation "-L_MSE".
      mmd_weight: weight of L_MMD; 0 is ablation "-L_MMD".
      dim: dimensions K of the ETF; None takes the number of classes.
      server_epochs, server_lr, server_batch_size: number of epochs E_S, learning rate eta_S and
        batch size B_S of the alignment.
      bandwidths: bandwidths of the MMD's kernels, or ("median",), see `shared.pair_server`.
      bounded: True if F's range is the ball that holds the valid latents.
      scale, margin: scale s and margin m of ArcFace, an angle in radians; 1 and 0 are Table 17's
        variant.
      clip_norm: norm at which the clients' gradients are clipped; 0 does not clip.
      all_pairs: True takes all C pairs at every step instead of as many as the local batch has
        samples.
      antialias: antialiasing when images are shrunk to the clients' size.
      classifier: "head" is ablation "-ETF": the model's own head and cross-entropy, prototypes of
        its features.
      transfer: "images" is ablation "-Qbar": no regression; the images join the local samples, with
        their classes.
      source: "labels" is ablation "+CS": no upload and no alignment; C random classes of a
        conditional generator. "valid" and "noise" are controls with fixed pairs, see
        `shared.pair_server`.

    Returns:
      The method; its `check` rejects inputs other than images, models whose heads cannot have the
      ETF's dimensions, and generators that do not fit `source`.

    Example:
      >>> def latents(weights, key, n):
      ...     return jax.random.normal(key, (n, 12))
      >>> def images(weights, w):  # 2x2 pixels, from black to white
      ...     return jax.nn.sigmoid(w.reshape(-1, 2, 2, 3))
      >>> generator = fl.generators.Generator(fl.generators.Card("toy"), 12, latents, images)
      >>> method = fl.fedktl(fl.LocalTraining(optax.sgd(0.1)), generator, server_epochs=5)
      >>> method.rules
      ('etf',)
    """
    # The method may be made where a program is traced (`Method.vary`); the generator's units are
    # measured now, as constants.
    with jax.ensure_compile_time_eval():
        if isinstance(generator, Generator):
            opened = generator
        else:  # a file, which the laboratory reads
            opened = pkgutil.resolve_name("fedjax_ht.lab.generators:open_generator")(generator)
        generator = in_units(opened, latents)
    open_options = {"bandwidths": bandwidths, "bounded": bounded, "antialias": antialias}
    form = settled(variant, open_options, FORMS)
    released = variant == "released"
    angles = pairs.Classifier(etf=classifier == "etf", dim=dim, scale=scale, margin=margin)
    training = pairs.clip_each(training, clip_norm)
    train_on_pairs = pairs.pair_training(
        training,
        angles,
        mu=mu,
        transfer=transfer,
        all_pairs=all_pairs,
        in_passes=released,
        latent_dim=generator.latent_dim,
    )
    alignment = pair_server.Alignment(
        epochs=server_epochs,
        batch_size=server_batch_size,
        learning_rate=server_lr,
        mmd_weight=mmd_weight,
        mse_weight=mse_weight,
        variant=variant,
        source=source,
        **form,
    )

    def check(federation) -> None:
        for bucket in federation.buckets:
            image_shape(bucket.input_shape, "FedKTL")
        pairs.check_dimensions(angles, federation)
        classes = federation.num_classes
        if source == "labels" and (generator.conditional is None or generator.num_labels < classes):
            raise ValueError(
                f"generator {generator.card.name!r} knows {generator.num_labels} classes; "
                f"source='labels' needs a conditional one with at least {classes}"
            )

    def init_client(bucket, ctx):
        return init_variables(pairs.bucket_of(angles, bucket), ctx.key)

    def init_server(federation, key):
        width = pairs.dimensions(angles, federation)
        return pair_server.init_pairs(generator, alignment, federation, width=width, key=key)

    def broadcast(federation, bucket, server, ctx):
        vectors = Masked(server.centroids, server.available) if transfer == "pairs" else ()
        return pairs.Pairs(Masked(2 * server.images - 1, server.available), vectors)

    def client_update(bucket, client, downlink, data, ctx):
        bucket = pairs.bucket_of(angles, bucket)
        client, result = train_on_pairs(bucket, client, downlink, data, ctx)
        return client, uplink(bucket, client, data), {"loss": result.loss}

    def uplink(bucket, client, data):
        if source != "prototypes":
            return ()

        def extract(x, mask):
            outputs = outputs_of(bucket, client, x, mask)
            return prototypes.unit(outputs) if released else outputs

        sums = sum_by_class(extract, data, bucket.num_classes)
        means = class_means(sums)
        if released:
            means = prototypes.unit(means)
        return prototypes.Uplink(Masked(means, sums.counts > 0), ())

    def outputs_of(bucket, client, x, mask):
        return pairs.represent(
            angles, bucket, client["params"], stats=client["stats"], x=x, mask=mask
        ).outputs

    def compared(bucket, client, x, mask):
        return outputs_of(pairs.bucket_of(angles, bucket), client, x, mask)

    def predict(bucket, client, downlink, x, mask):
        bucket, params = pairs.bucket_of(angles, bucket), client["params"]
        representation = pairs.represent(
            angles, bucket, params, stats=client["stats"], x=x, mask=mask
        )
        return {classifier: pairs.scores(angles, bucket, params, representation)}

    def pictures(federation, server):
        return {"sent to the clients": server.images}

    return Method(
        name="fedktl",
        training=training,
        check=check,
        init_server=init_server,
        init_client=init_client,
        broadcast=broadcast,
        client_update=client_update,
        server_update=pair_server.pair_update(generator, alignment),
        predict=predict,
        rules=(classifier,),
        view=View(
            features=compared,
            pictures=pictures,
            warn=functools.partial(pair_server.warn, bounded=form["bounded"]),
        ),
        needs=Needs(
            pretrained=Pretrained(generator.variables, generator.card.trained_on, generator.host)
        ),
    )
