"""DepthFL (Kim et al., ICLR 2023): a client trains the first stages, with a classifier after each.

    client:  of depth d has stages and classifiers 1 .. d; descends on sum_i CE(z_i)
             + lambda_t / (d - 1) sum_i sum_{j != i} KL(z_j || z_i) - <w_k, s_k>
             + (alpha / 2) |w_k - w|^2, z_i being classifier i's logits, the teacher z_j a constant;
             then s_k <- s_k - alpha (w_k - w); uploads w_k
    server:  for each tensor, of m clients that have it: h <- h - (alpha m / N) (mean_k w_k - w);
             w <- mean_k w_k - h / alpha, uniform; N being all clients
    predict: the mean of the logits of the client's classifiers; by the second rule the deepest one
    up:      W_d + S_d: stages and classifiers 1 .. d, and running statistics
    down:    W_d + S_d: stages and classifiers 1 .. d, and running statistics
    fits:    models that are the first stages of one network, clients with unequal memory
    paper:   https://openreview.net/forum?id=pf8RIZTMU58

Settled here:
* A classifier is a linear layer on the features after a stage, averaged over pixels. In the paper a
  bottleneck of attention and separable convolutions precedes it, and the ResNet has a stem for
  small images. The library's models therefore differ from those behind the paper's numbers.
* lambda_t = exp(-5 (1 - min(t, ramp) / ramp)^2) in round t = 0, 1, ..., with ramp 300, as in the
  author's code: self-distillation has almost no weight in the first third of these rounds. Set a
  smaller `ramp` for shorter runs.
* The target of KL is softmax(z_j) + 1e-7, as in the author's code.
* s_k starts at 0 and is kept by absent clients; a client whose upload is lost keeps its new s_k. h
  moves with the participating clients, so a tensor that none of them has does not change. Running
  statistics are averaged without h.
* inclusive trains the deepest classifier alone, the form of InclusiveFL in that code. Earlier
  classifiers are sent and averaged unchanged.
* The author's recipe is SGD at 0.1, times 0.998 a round, weight decay 1e-3, batches of 50, five
  epochs, no clipping.
"""

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import flax.traverse_util
import jax
import jax.numpy as jnp
from jax import lax

from fedjax_ht.check.options import Count, Positive, SearchRange, checked
from fedjax_ht.core.batches import Batch
from fedjax_ht.core.bucket import Bucket, init_variables, model_form
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.inputs import zeros
from fedjax_ht.core.local_training import LocalTraining, Loss
from fedjax_ht.core.method import Method, Needs, Wire
from fedjax_ht.core.programs import influences
from fedjax_ht.core.reductions import weighted_sum
from fedjax_ht.core.stages import stage_features, stage_widths
from fedjax_ht.core.task import CLASSIFICATION
from fedjax_ht.core.trees import PyTree, zeros_of
from fedjax_ht.losses import masked_mean
from fedjax_ht.methods.shared.averaging import client_weights
from fedjax_ht.methods.shared.corrections import dynamic_pull, train_corrected
from fedjax_ht.methods.shared.supervised import train_client
from fedjax_ht.models.layers import Linear

Path = tuple[str, ...]


def flattened(tree: PyTree) -> dict[Path, Any]:
    """Returns the leaves of nested dicts by their paths."""
    leaves: dict = flax.traverse_util.flatten_dict(tree)
    return leaves


def deepest(federation: Federation) -> Bucket:
    """Returns the bucket with the most stages; ties go to the lowest client id."""
    buckets = sorted(federation.buckets, key=federation.members)
    return max(buckets, key=lambda bucket: len(stage_widths(bucket)))


def like(tree: PyTree, form: PyTree) -> PyTree:
    """Restricts nested dicts to the entries of another tree of dicts."""
    if not isinstance(form, Mapping):
        return tree
    return {name: like(tree[name], below) for name, below in form.items()}


def require_depths(federation: Federation) -> None:
    """Checks that all models are the first stages of the deepest one.

    Raises:
      ValueError: a model notes no stages, has layers after its last one, or differs from the
        deepest model's stages. One line.
    """
    for bucket in federation.buckets:
        if not stage_widths(bucket):
            raise ValueError(
                f"depthfl needs models in stages, but {bucket.name!r} has none; use a group such "
                "as resnet18_depths, or call fl.models.note_stage after each stage of your own"
            )
    whole = deepest(federation)
    shapes, read = extractor_shapes(whole), read_by_stage(whole)
    for bucket in federation.buckets:
        stage, here = len(stage_widths(bucket)), extractor_shapes(bucket)
        different = {path for path, shape in here.items() if shape != shapes.get(path)}
        different |= set(here) ^ read[stage - 1]
        if different:
            path = "/".join(min(different))
            raise ValueError(
                f"depthfl needs models that are the first stages of {whole.name!r}, but "
                f"{bucket.name!r} differs in base/{path} from its stages 1 to {stage}; use a "
                "group such as resnet18_depths"
            )


def extractor_shapes(bucket: Bucket) -> dict[Path, tuple[int, ...]]:
    """Returns the shapes of a feature extractor's parameters by their paths."""
    model = model_form(bucket)
    base = flattened(model["params"]["base"])
    return {path: leaf.shape for path, leaf in base.items()}


def read_by_stage(bucket: Bucket) -> list[set[Path]]:
    """Returns, for each stage, the paths of the extractor's parameters that its features read."""
    model = model_form(bucket)
    base = flattened(model["params"]["base"])
    x, mask = zeros(bucket.input_shape), jnp.ones(1, bool)

    def run(*leaves):
        params = {"base": flax.traverse_util.unflatten_dict(dict(zip(base, leaves)))}
        stats = zeros_of(model["stats"])
        return stage_features(bucket, params, stats, x, mask, train=False)[0]

    _, sources = influences(run, *base.values())
    paths = list(base)
    return [
        {paths[number] for number in of_stage if number in range(len(paths))}
        for of_stage in sources
    ]


def holders_mean(tree: PyTree, uploads: list[tuple[PyTree, jax.Array]]) -> tuple[PyTree, PyTree]:
    """Averages each tensor over the clients that have it; other tensors are unchanged.

    Args:
      tree: nested dicts of all current tensors.
      uploads: one pair per bucket, a part of the tree with a leading axis [P] and the clients'
        weights [P], 1 or 0; rows of weight 0 are never read.

    Returns:
      The means, and the number of clients behind each, float32 scalars.
    """
    means, counts = {}, {}
    flat = [(flattened(part), weights) for part, weights in uploads]
    for path, old in flattened(tree).items():
        total, count = jnp.zeros_like(old), jnp.float32(0)
        for part, weights in flat:
            if path in part:
                total, count = total + weighted_sum(part[path], weights), count + weights.sum()
        means[path] = jnp.where(count > 0, total / jnp.maximum(count, 1), old)
        counts[path] = count
    return flax.traverse_util.unflatten_dict(means), flax.traverse_util.unflatten_dict(counts)


TINY = 1e-7  # added to a teacher's probabilities


class Model(NamedTuple):
    """The parameters of a model, and the running statistics of its norms, {} without any.

    Attributes:
      params: {"base", "head"}; the head has a classifier for each stage, "1", "2", ...
      stats: running statistics.
    """

    params: PyTree
    stats: PyTree


class Server(NamedTuple):
    """The server's state.

    Attributes:
      model: w, the `Model` of the largest depth, of which the others are parts.
      drift: h, in the structure of the parameters; () without FedDyn's terms.
    """

    model: Model
    drift: PyTree


def init_depth(bucket: Bucket, key: jax.Array) -> PyTree:
    """Initialises a model with a classifier after each stage, as {"params", "stats"}."""
    variables = init_variables(bucket, key)
    classifier, head = Linear(bucket.num_classes), {}
    for i, width in enumerate(stage_widths(bucket), 1):
        drawn = classifier.init(jax.random.fold_in(key, i), jnp.zeros((1, width)))
        head[str(i)] = drawn["params"]
    params = {"base": variables["params"]["base"], "head": head}
    return {"params": params, "stats": variables["stats"]}


def stage_logits(
    bucket: Bucket, params: PyTree, stats: PyTree, batch: Batch, *, train: bool, key=None
) -> tuple[list[jax.Array], PyTree]:
    """Computes the logits [B, C] of each classifier, and the new running statistics."""
    rows, stats = stage_features(bucket, params, stats, batch.x, batch.mask, train=train, key=key)
    classifier, scores = Linear(bucket.num_classes), []
    for i, features in enumerate(rows, 1):
        scores.append(classifier.apply({"params": params["head"][str(i)]}, features))
    return scores, stats


def divergence(teacher: jax.Array, scores: jax.Array, mask: jax.Array) -> jax.Array:
    """Computes the mean over samples of KL(softmax(teacher) + 1e-7 || softmax(scores)).

    Args:
      teacher, scores: logits float [B, C]; the teacher is a constant.
      mask: bool [B], the samples that count.
    """
    target = jax.nn.softmax(teacher) + TINY
    return masked_mean(jnp.sum(target * (jnp.log(target) - jax.nn.log_softmax(scores)), -1), mask)


def ramp_up(round: jax.Array, ramp: int) -> jax.Array:
    """Computes lambda_t, the weight of self-distillation in a round, from e^-5 to 1."""
    missing = 1 - jnp.minimum(round, ramp) / ramp
    return jnp.exp(-5.0 * missing**2)


@checked
def depthfl(
    training: LocalTraining,
    *,
    alpha: Annotated[Positive, SearchRange(0.01, 1.0)] = 0.1,
    feddyn: bool = True,
    kd: bool = True,
    inclusive: bool = False,
    ramp: Count = 300,
) -> Method:
    """Makes DepthFL, described in the module's docstring.

    Args:
      training: local training.
      alpha: strength of FedDyn's terms.
      feddyn: False omits FedDyn's terms, so that the server takes plain means.
      kd: False omits self-distillation.
      inclusive: True trains the deepest classifier alone.
      ramp: rounds until self-distillation has its full weight.

    Returns:
      The method; its `check` rejects models that note no stages (`fl.models.note_stage`), and
      models that are not the first stages of one network.
    """

    def init_server(federation, key):
        model = init_depth(deepest(federation), key)
        drift = jax.tree.map(jnp.zeros_like, model["params"]) if feddyn else ()
        return Server(Model(**model), drift)

    def init_client(bucket, ctx):
        client = init_depth(bucket, ctx.key)
        slope = jax.tree.map(jnp.zeros_like, client["params"]) if feddyn else ()
        return client | {"slope": slope}

    def broadcast(federation, bucket, server, ctx):
        form = jax.eval_shape(lambda key: init_depth(bucket, key), ctx.key)
        return Model(
            like(server.model.params, form["params"]), like(server.model.stats, form["stats"])
        )

    def receive(bucket, client, downlink, data, ctx):
        return client | downlink._asdict()

    def client_update(bucket, client, downlink, data, ctx):
        apart = divergence if bucket.task == CLASSIFICATION else bucket.task.divergence
        anchor, slope = downlink.params, client["slope"]

        def loss(params, stats, batch: Batch, key) -> Loss:
            scores, stats = stage_logits(bucket, params, stats, batch, train=True, key=key)
            students = scores[-1:] if inclusive else scores
            value = sum(bucket.task.loss(z, batch.y, batch.mask) for z in students)
            if kd and len(scores) > 1:
                distances = [
                    apart(lax.stop_gradient(teacher), z, batch.mask)
                    for z in students
                    for teacher in scores
                    if teacher is not z
                ]
                value = value + ramp_up(ctx.round, ramp) * sum(distances) / (len(scores) - 1)
            return Loss(jnp.asarray(value), stats)

        pulled = dynamic_pull(alpha, anchor, slope)
        recipe = train_corrected(training, pulled) if feddyn else training
        _, result = train_client(recipe, loss, bucket, client, data, ctx.key)
        if feddyn:
            slope = jax.tree.map(lambda s, w, a: s - alpha * (w - a), slope, result.params, anchor)
        model = Model(result.params, result.stats)
        return model._asdict() | {"slope": slope}, model, {"loss": result.loss}

    def server_update(federation, server, received, ctx):
        uploads = []
        for bucket in sorted(federation.buckets, key=federation.members):
            uploads.append((received[bucket.name].uplink, client_weights(received[bucket.name])))
        params, shares = holders_mean(server.model.params, [(m.params, w) for m, w in uploads])
        stats, _ = holders_mean(server.model.stats, [(m.stats, w) for m, w in uploads])
        drift = server.drift
        if feddyn:
            num_clients = sum(map(federation.num_training, federation.buckets))

            def moved(h, m, mean, w):
                return h - alpha * m * (mean - w) / num_clients

            def stepped(m, mean, h):
                return jnp.where(m > 0, mean - h / alpha, mean)

            drift = jax.tree.map(moved, drift, shares, params, server.model.params)
            params = jax.tree.map(stepped, shares, params, drift)
        return Server(Model(params, stats), drift), {}

    def predict(bucket, client, downlink, x, mask):
        batch = Batch(x, jnp.zeros(mask.shape, jnp.int32), mask)
        scores, _ = stage_logits(bucket, client["params"], client["stats"], batch, train=False)
        return {"ensemble": sum(scores) / len(scores), "deepest": scores[-1]}

    return Method(
        name="depthfl",
        training=training,
        check=require_depths,
        init_server=init_server,
        init_client=init_client,
        broadcast=broadcast,
        receive=receive,
        client_update=client_update,
        server_update=server_update,
        predict=predict,
        rules=("ensemble", "deepest"),
        wire=Wire(server_reads="sums"),
        needs=Needs(classes=False),
    )
