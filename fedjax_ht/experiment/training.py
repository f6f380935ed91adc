"""Builds the clients' local training from `config.training`."""

import optax

from fedjax_ht.configs.sections import TrainingConfig
from fedjax_ht.configs.typed import shared_fields
from fedjax_ht.core.annotations import Count, Part
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.specs import read_spec
from fedjax_ht.data.augment import compose

SCHEDULES = {"constant": (), "cosine": (Count,), "step": (Count, Part)}
SCHEDULE_RULE = (
    "it must be constant, cosine/ROUNDS, or step/ROUNDS/FACTOR with a factor of at most 1, such as "
    "step/100/0.1"
)


def local_training(training: TrainingConfig) -> LocalTraining:
    """Returns the recipe by which every client trains.

    Numbers of `training` may be traced where no branch depends on them, see `core.method.varied`.
    """
    fields = shared_fields(training, LocalTraining) | {
        "optimizer": optimizer(training),
        "augmentation": compose(training.augmentation),
        "schedule": schedule(training.schedule),
    }
    return LocalTraining(**fields)


def optimizer(training: TrainingConfig) -> optax.GradientTransformation:
    """Returns clipping, weight decay and SGD or Adam, in this order."""
    steps = []
    if training.clip_norm:
        steps.append(optax.clip_by_global_norm(training.clip_norm))
    if training.weight_decay:
        steps.append(optax.add_decayed_weights(training.weight_decay))
    if training.optimizer == "sgd":
        # optax keeps no trace for None; for 0.0 it would keep one of the parameters' size
        steps.append(optax.sgd(training.learning_rate, momentum=training.momentum or None))
    else:
        steps.append(optax.adam(training.learning_rate, b1=training.beta1))
    return optax.chain(*steps)


def schedule(text: str) -> optax.Schedule | None:
    """Returns the factor of the learning rate by round, None for a constant one.

    The text names its rounds, and does not take the run's, so that a run may go on for more.

    Raises:
      ValueError: `text` is no schedule. One line.
    """
    kind, numbers = read_spec("training.schedule", text, SCHEDULES, SCHEDULE_RULE)
    if kind == "constant":
        return None
    if kind == "cosine":
        return optax.cosine_decay_schedule(1.0, int(numbers[0]))
    rounds, factor = numbers
    return optax.exponential_decay(1.0, int(rounds), float(factor), staircase=True)
