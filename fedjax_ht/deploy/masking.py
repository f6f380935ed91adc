"""A client's half of a secure sum, and the stages of both halves as messages.

Flower's half masks the answer of this process. Its keys and shares are in Flower's `Context`, which
stays on the client's machine between the four messages of a sum. Flower's half obeys any server,
even one that leaves everything unmasked, so each stage is checked first. Needs the extra `flower`.
"""

import importlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, Metadata, RecordDict
from flwr.app.message_type import MessageType
from flwr.common import Code, FitRes, Parameters, Status, bytes_to_ndarray, ndarray_to_bytes
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.secure_aggregation.secaggplus_constants import (
    RECORD_KEY_CONFIGS,
    RECORD_KEY_STATE,
    Key,
    Stage,
)
from flwr.compat.common.recorddict_compat import fitres_to_recorddict

from fedjax_ht.deploy.messages import Envelope, printable
from fedjax_ht.deploy.secure_sums import (
    MAX_RANGE,
    MIN_CLIENTS,
    MIN_RANGE,
    MODULUS,
    STEPS,
    threshold,
    with_mask_stream,
)

STAGE = "stage"
"""Header entry that holds the values of a stage of SecAgg+, see `with_stage`."""
STAGE_SECONDS = 3600.0
"""Lifetime of a message, without which Flower's half does not reply."""
# import_module, since the package hides this module by a function of the same name
_CLIENT_MODULE = importlib.import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")
_CLIENT_HALF = with_mask_stream(
    _CLIENT_MODULE.secaggplus_mod,
    _collect_masked_vectors=with_mask_stream(_CLIENT_MODULE._collect_masked_vectors),
)


def with_stage(envelope: Envelope, configs: Mapping[str, Any]) -> Envelope:
    """Adds a stage's values to a message: byte strings as arrays, all others to its header.

    Args:
      envelope: any message without a stage.
      configs: values of Flower's half: numbers, strings, byte strings, and lists of one of these
        kinds.
    """
    values, strings, arrays = {}, {}, dict(envelope.arrays)
    for name, value in configs.items():
        parts = value if isinstance(value, list) else [value]
        if not any(isinstance(part, bytes) for part in parts):
            values[name] = value
            continue
        strings[name] = len(parts) if isinstance(value, list) else None
        for i, part in enumerate(parts):
            # vectors as arrays, so that NumPy parses no bytes of another side
            is_vector = name == Key.MASKED_PARAMETERS
            array = bytes_to_ndarray(part) if is_vector else np.frombuffer(part, np.uint8)
            arrays[f"{STAGE}/{name}/{i}"] = array
    stage = {"values": values, "strings": strings}
    return Envelope(envelope.header | {STAGE: stage}, arrays)


def without_stage(envelope: Envelope) -> tuple[Envelope, ConfigRecord]:
    """Separates a message from a stage's values, the inverse of `with_stage`.

    Raises:
      ValueError: the other side sent no such values. One line.
    """
    header, arrays = dict(envelope.header), dict(envelope.arrays)
    try:
        stage = header.pop(STAGE)
        configs = dict(stage["values"])
        for name, count in stage["strings"].items():
            strings = []
            for i in range(1 if count is None else count):
                array = arrays.pop(f"{STAGE}/{name}/{i}")
                is_vector = name == Key.MASKED_PARAMETERS
                if is_vector and (array.ndim != 1 or array.dtype != np.int64):
                    raise TypeError(f"{array.dtype} {list(array.shape)} in place of a vector")
                strings.append(ndarray_to_bytes(array) if is_vector else array.tobytes())
            configs[name] = strings[0] if count is None else strings
        # Flower rejects values of other types
        return Envelope(header, arrays), ConfigRecord(configs)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"not a stage of a sum: {printable(repr(error))}") from None


def masked_reply(
    request: Envelope, context: Context, answer: Callable[[Envelope], Envelope]
) -> Envelope:
    """Replies to a stage of SecAgg+ as a client.

    Args:
      request: the server's message, with a stage.
      context: Flower's context, with the client's keys and shares.
      answer: given the request without the stage, makes the reply whose vector leaves masked.

    Raises:
      ValueError: the sum would not hide this client, or the client has nothing to add. One line.
    """
    plain, configs = without_stage(request)
    check_stage(configs, context.node_id)
    headers: list[dict[str, Any]] = []

    def train(message: Message, context: Context) -> Message:
        kept: Any = context.state.config_records[RECORD_KEY_STATE]
        limit = float(kept[Key.CLIPPING_RANGE])
        reply = answer(plain)
        header = reply.header
        if "error" in header or not header["finite"]:
            raise ValueError(header.get("error", "its result is not finite"))
        (vector,) = reply.arrays.values()
        vector = vector.astype(np.float64)
        num_cut = int(np.count_nonzero(np.abs(vector) > limit))
        if num_cut:
            warning = f"{num_cut} entries are beyond --sum_range={limit:g} and were clipped"
            header = header | {"warning": warning}
        headers.append(header)
        return Message(fit_result([ndarray_to_bytes(vector)]), reply_to=message)

    message = _stage_message(configs, context)
    reply = _CLIENT_HALF(message, context, train)
    # only this part of what Flower's half returns leaves, and never an unmasked array
    header = headers[0] if headers else {}
    return with_stage(Envelope(header, {}), reply.content.config_records[RECORD_KEY_CONFIGS])


def fit_result(arrays: list[bytes]) -> RecordDict:
    """Returns a result of training, as Flower's halves read it."""
    result = FitRes(Status(Code.OK, ""), Parameters(arrays, "numpy.ndarray"), 1, {})
    return fitres_to_recorddict(result, keep_input=False)


def _stage_message(configs: ConfigRecord, context: Context) -> Message:
    """Returns a stage in the form that Flower's client half takes."""
    metadata = Metadata(
        run_id=context.run_id,
        message_id="",
        src_node_id=SUPERLINK_NODE_ID,
        dst_node_id=context.node_id,
        reply_to_message_id="",
        group_id="",
        created_at=time.time(),
        ttl=STAGE_SECONDS,
        message_type=MessageType.TRAIN,
    )
    content = RecordDict({RECORD_KEY_CONFIGS: configs})
    # Flower declares no argument `metadata`
    return Message(content, metadata=metadata)  # pyright: ignore[reportCallIssue]


def check_stage(config: Mapping[str, Any], node: int) -> None:
    """Rejects a stage by which the server would learn more than a sum of `MIN_CLIENTS` clients.

    Args:
      config: values of the server's message.
      node: id of this client's node.

    Raises:
      ValueError: it would. One line.
    """
    stage, problem = config[Key.STAGE], ""
    if stage == Stage.SETUP:
        problem = _setup_problem(config)
    elif stage == Stage.SHARE_KEYS:
        problem = _size_problem({int(name) for name in config.keys() - {Key.STAGE}} | {node})
    elif stage == Stage.COLLECT_MASKED_VECTORS:
        problem = _size_problem({*config[Key.SOURCE_LIST], node})
    elif stage == Stage.UNMASK:
        active, dead = set(config[Key.ACTIVE_NODE_ID_LIST]), set(config[Key.DEAD_NODE_ID_LIST])
        # the server may learn the seed of an active client's mask, or the key of a dead one: with
        # both it has the vector
        problem = "both secrets of one client" if active & dead else _size_problem(active)
    if problem:
        raise ValueError(f"the server asks for a sum that would not hide a client: {problem}")


def _size_problem(nodes: set[int]) -> str:
    return f"a sum of {len(nodes)}" if len(nodes) < MIN_CLIENTS else ""


def _setup_problem(config: Mapping[str, Any]) -> str:
    expected = {Key.TARGET_RANGE: STEPS, Key.MOD_RANGE: MODULUS, Key.MAX_WEIGHT: 1.0}
    for name, value in expected.items():
        if config[name] != value:
            return f"{name} is {config[name]}, not {value}"
    limit = config[Key.CLIPPING_RANGE]
    # numbers beyond the range are clipped: a small one sums signs, a large one zeros
    if not (isinstance(limit, float) and MIN_RANGE <= limit <= MAX_RANGE):
        return f"{Key.CLIPPING_RANGE} is {limit}, not from {MIN_RANGE:g} to {MAX_RANGE:g}"
    num_clients, num_shares = config[Key.SAMPLE_NUMBER], config[Key.SHARE_NUMBER]
    required = config[Key.THRESHOLD]
    if num_shares != num_clients or required < threshold(num_clients):
        return f"{required} of {num_shares} shares of {num_clients} clients remove a mask"
    return ""
