"""Answers of a round's participants, whatever carried the messages."""

from typing import NamedTuple

import numpy as np

from fedjax_ht.core.evaluation import Scores
from fedjax_ht.core.method import Received
from fedjax_ht.core.round import ClientResult
from fedjax_ht.core.wire import WireCost
from fedjax_ht.simulation.roster import Places


class Times(NamedTuple):
    """Times, simulated, of a bucket's participants, [P].

    Attributes:
      seconds: float64 [P], of a participant's round.
      late: bool [P], uploads that missed the deadline; False of a participant that sent nothing.
      cost: of the uploads, [P] each.
    """

    seconds: np.ndarray
    late: np.ndarray
    cost: WireCost


class Answers(NamedTuple):
    """Answers of a bucket's participants, of all trials.

    Attributes:
      places: of the participants in `received`, `result` and `times`.
      received: the uplinks [P], on the server's device.
      rows: int32 [trials, m], where each trial's participants stand in `received`, by ascending
        id, padded with PADDING.
      in_order: whether `received` as it is is what the server of the only trial gets.
      result: the participants' results [P], without the uplinks.
      score_places: of the participants in `scores`; in the order of `places`, padded otherwise.
      scores: {"test": Scores}, of the models as training left them.
      idle: float64 [2], see `roster.idle_lane_steps`.
      times: None where nothing of a round takes simulated time.
    """

    places: Places
    received: Received
    rows: np.ndarray
    in_order: bool
    result: ClientResult
    score_places: Places
    scores: dict[str, Scores]
    idle: np.ndarray
    times: Times | None = None
