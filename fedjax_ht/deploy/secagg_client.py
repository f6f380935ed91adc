"""A client's half of a secure sum: Flower's SecAgg+ around what the client's own process answers.

Its keys and shares are Flower's `Context`, which stays on the client's machine between the four
messages of a sum. What the server asks for is looked at first: Flower's half does what it is told,
even where that leaves nothing masked.
"""

import importlib
import json
from collections.abc import Callable

import numpy as np
from flwr.app import ConfigRecord, Context, Message
from flwr.common import Code, FitRes, Parameters, Status
from flwr.common.secure_aggregation.secaggplus_constants import (
    RECORD_KEY_CONFIGS,
    RECORD_KEY_STATE,
    Key,
    Stage,
)
from flwr.compat.common.recorddict_compat import fitres_to_recorddict

from fedjax_ht.deploy.envelope import Envelope, to_bytes
from fedjax_ht.deploy.masks import FEWEST, MODULUS, NARROWEST, STEPS, WIDEST, threshold, with_stream

# Its package hides this module by a function of the same name.
_FLOWERS = importlib.import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")
_ANSWER = with_stream(
    _FLOWERS.secaggplus_mod, _collect_masked_vectors=with_stream(_FLOWERS._collect_masked_vectors)
)


def masked(message: Message, context: Context, answer: Callable[[Message], Envelope]) -> Message:
    """The reply to a message of SecAgg+; what `answer` makes of the one that asks for the uplink
    leaves masked.

    Raises:
      ValueError: the sum would not hide this client, or it has nothing for it. One line.
    """
    check_asked(message.content.config_records[RECORD_KEY_CONFIGS], message.metadata.dst_node_id)

    def told(message: Message, context: Context) -> Message:
        limit = float(context.state.config_records[RECORD_KEY_STATE][Key.CLIPPING_RANGE])
        reply = answer(message)
        if "error" in reply.head or not reply.head["finite"]:
            raise ValueError(reply.head.get("error", "its result is not finite"))
        (vector,) = (x.astype(np.float64) for x in reply.arrays.values())
        head, cut = reply.head, int(np.count_nonzero(np.abs(vector) > limit))
        if cut:
            head = head | {
                "warning": f"{cut} entries are beyond --sum_range={limit:g} and were cut"
            }
        result = Parameters([to_bytes(vector)], "numpy.ndarray")
        said = FitRes(Status(Code.OK, ""), result, 1, {"json": json.dumps(head)})
        return Message(fitres_to_recorddict(said, keep_input=False), reply_to=message)

    reply = _ANSWER(message, context, told)
    if any(len(arrays) for arrays in reply.content.array_records.values()):
        raise ValueError("Flower has left arrays in the open; nothing is sent")
    return reply


def check_asked(asked: ConfigRecord, node: int) -> None:
    """Refuses a stage of SecAgg+ after which the server would know more than a sum of `FEWEST`
    clients.

    Raises:
      ValueError: it would. One line.
    """
    stage, wrong = asked[Key.STAGE], ""
    if stage == Stage.SETUP:
        fixed = {Key.TARGET_RANGE: STEPS, Key.MOD_RANGE: MODULUS, Key.MAX_WEIGHT: 1.0}
        clients, shares, enough = (
            asked[name] for name in (Key.SAMPLE_NUMBER, Key.SHARE_NUMBER, Key.THRESHOLD)
        )
        other = [
            f"{name} is {asked[name]}, not {value}"
            for name, value in fixed.items()
            if asked[name] != value
        ]
        limit = asked[Key.CLIPPING_RANGE]
        # beyond, a sum is signs or nothing
        if not (isinstance(limit, float) and NARROWEST <= limit <= WIDEST):
            other.append(f"{Key.CLIPPING_RANGE} is {limit}, not from {NARROWEST:g} to {WIDEST:g}")
        if other or shares != clients or enough < threshold(clients):
            wrong = (
                other[0]
                if other
                else f"{enough} of {shares} shares of {clients} clients take off a mask"
            )
    elif stage in (Stage.SHARE_KEYS, Stage.COLLECT_MASKED_VECTORS):
        named = asked.keys() - {Key.STAGE} if stage == Stage.SHARE_KEYS else asked[Key.SOURCE_LIST]
        size = len({int(name) for name in named} | {node})
        wrong = f"a sum of {size}" if size < FEWEST else ""
    elif stage == Stage.UNMASK:
        active, dead = (
            set(asked[name]) for name in (Key.ACTIVE_NODE_ID_LIST, Key.DEAD_NODE_ID_LIST)
        )
        wrong = f"a sum of {len(active)}" if len(active) < FEWEST else ""
        wrong = "both secrets of one client" if active & dead else wrong
    if wrong:
        raise ValueError(f"the server asks for what would not hide a client: {wrong}")
