"""FedBABU (Oh et al., ICLR 2022): extractors learn behind a random head; scores tune both.

    client:  base_i <- base, then local epochs of cross-entropy on the extractor, the head being
             that of the server's first model; uploads base_i
    server:  base <- mean of base_i over the uploads of one architecture; its head never changes
    predict: the averaged extractor and the first head, both of them tuned on the client's own
             samples where `scoring.adapt_epochs` is set
    up:      W - H: the extractor
    down:    W: all parameters
    fits:    one architecture or a few, and scores after fine-tuning
    paper:   https://arxiv.org/abs/2106.06042

Settled here:
* The mean weighs clients equally, as in the authors' code; PFLlib's weighs them by samples.
* Fine-tuning is no part of a round: `Scoring.adapt_epochs` sets its length for all methods of a
  run. It follows the recipe of local training; the authors take 5 epochs at a hundredth of the
  rate.
* The server sends the head with every model; its seed would be enough.
* The paper has one architecture; here every architecture has its own model. Batch statistics stay
  with each client, as in `fedavg`; the authors average them.
"""

from typing import Literal

from fedjax_ht.check.options import checked
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.methods.shared.architectures import averaging_method, mean_parts
from fedjax_ht.methods.shared.averaging import ModelUplink, Weighting, sent_samples
from fedjax_ht.methods.shared.supervised import train_model


@checked
def fedbabu(
    training: LocalTraining,
    tune: Literal["all", "base", "head"] = "all",
    weighting: Weighting = "uniform",
) -> Method:
    """Makes FedBABU, described in the module's docstring.

    Args:
      training: local training, of the extractor, and of the part `tune` before scoring.
      tune: the part that is fine-tuned, with `scoring.adapt_epochs`.
      weighting: weights of the mean: numbers of training samples, or equal weights.
    """
    tuned = None if tune == "all" else tune

    def client_update(bucket, client, downlink, data, ctx):
        part = "base" if ctx.adapt_epochs is None else tuned
        client, result = train_model(training, bucket, client, data, ctx, part=part)
        uplink = ModelUplink(client["params"]["base"], sent_samples(ctx, weighting))
        return client, uplink, {"loss": result.loss}

    def server_update(federation, server, received, ctx):
        bases = mean_parts(federation, [model["base"] for model in server], received)
        return [model | {"base": base} for model, base in zip(server, bases)], {}

    return averaging_method("fedbabu", training, client_update, server_update=server_update)
