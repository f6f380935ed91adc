"""Options of the scores that an evaluation computes."""

import dataclasses
from typing import Literal

from fedjax_ht.core.annotations import OptionalCount
from fedjax_ht.core.bounds import check_fields

ScoredState = Literal["received", "trained", "both"]
NormStatistics = Literal["batch", "training"]
"""Statistics that "static_batch" norms of the server's model use in its evaluation: those of the
samples of a pass, or those of all clients' training samples (`core.statistics`)."""


@dataclasses.dataclass(frozen=True)
class Scoring:
    """The state of clients that an evaluation scores, and the samples of its forward passes.

    It is also the section `scoring` of a config.

    Attributes:
      state: State of a client that is scored: after it took the newest downlink ("received"), as
        its training left it ("trained"), or "both": the second in columns of its own
        (trained_accuracy and others).
      batch_size: Samples of a forward pass; 0: as the device likes, or 64 where norms of a model go
        by the batch they see.
      train: Accuracy on training samples, too (train_accuracy).
      auc: The area under the ROC curve, too, of evaluations on test sets (auc).
      global_statistics: Statistics of static_batch norms of a model on the server: of the pass, or
        of all training samples.

    Raises:
      ValueError: a field is out of its bounds. One line.
    """

    state: ScoredState = "received"
    batch_size: OptionalCount = None
    train: bool = False
    auc: bool = False
    global_statistics: NormStatistics = "batch"

    def __post_init__(self):
        check_fields(self, "scoring.")
