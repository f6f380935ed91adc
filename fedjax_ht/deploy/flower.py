"""Flower's records, grid and messages: how a deployment's messages cross the wire. Needs the extra
`flower`."""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.app.message_type import MessageType
from flwr.common.constant import ErrorCode
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS

from fedjax_ht.deploy.envelope import Envelope, from_bytes, numbers_in, to_bytes
from fedjax_ht.deploy.headers import LONGEST, is_count, parsed, printable
from fedjax_ht.deploy.secagg import sum_of
from fedjax_ht.deploy.secagg_client import masked

# of a head -> of a Flower message
KINDS = {"hello": "query", "train": "train", "evaluate": "evaluate"}
POLL_SECONDS = 1.0
SHARE = 1 << 12
"""Bytes that a client of a secure sum sends for each other, at most: keys and shares."""

Groups = Mapping[str, Sequence[int]]  # a name -> clients whose uplinks are summed together


def to_records(envelope: Envelope) -> RecordDict:
    """An envelope as Flower records: "message", an array each leaf, and "head", JSON."""
    arrays = {
        name: Array(str(x.dtype), tuple(x.shape), "numpy.ndarray", to_bytes(x))
        for name, x in envelope.arrays.items()
    }
    head = ConfigRecord({"json": json.dumps(envelope.head)})
    return RecordDict({"message": ArrayRecord(arrays), "head": head})


def from_records(records: RecordDict, most: int | None = None) -> Envelope:
    """The envelope that `to_records` wrote.

    Args:
      records: of a message.
      most: bytes of all arrays together, at most; None for as many as there are.

    Raises:
      ValueError: it is none, or longer. One line.
    """
    try:
        text, arrays = (
            records.config_records["head"]["json"],
            dict(records.array_records["message"]),
        )
        size = sum(len(x.data) for x in arrays.values())
        if most is not None and size > most:
            raise ValueError(f"it has {size} bytes of arrays, and {most} are due at most")
        return Envelope(
            parsed(text), {name: from_bytes(x.data, x.dtype) for name, x in arrays.items()}
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no message of this library: {printable(repr(error))}") from None


def overhead(envelope: Envelope) -> int:
    """Bytes of an envelope's records beyond the numbers in its message: names, shapes, headers and
    the head."""
    records = to_records(envelope)
    arrays = sum(len(x.data) + len(x.deflate()) for x in records.array_records["message"].values())
    return arrays + len(records.config_records["head"].deflate()) - numbers_in(envelope)


def grid_nodes(
    grid: Any, patience: float, timeout: float, tell: Callable[[str], None], limit: float = 8.0
) -> tuple[Callable, Callable, Callable]:
    """`Transport.meet`, `Transport.exchange` and `Transport.add` over Flower's nodes.

    Args:
      grid: a `link.Link`, or what is like one.
      patience: seconds to wait for clients that are not there yet.
      timeout: seconds that the clients have for an answer.
      tell: takes a line for whoever watches.
      limit: of the numbers in a sum, see `secagg.sum_of`.
    """
    heads: dict[int, dict[str, Any]] = {}  # node -> what its client said
    refused: set[int] = set()

    def meet(hello: Envelope, wanted: int) -> dict[int, dict[str, Any]]:
        end = time.monotonic() + patience
        while True:
            nodes = set(grid.get_node_ids())
            refused.intersection_update(nodes)
            for node in heads.keys() - nodes:
                tell(f"client {heads.pop(node)['client']} is gone")
            new = nodes - heads.keys() - refused
            asked = {
                node: {"owner": grid.owners[node]} if node in grid.owners else {} for node in new
            }
            letters = {
                node: hello._replace(head=hello.head | owner) for node, owner in asked.items()
            }
            for node, reply in post(letters, {}).items():
                greet(node, reply)
            if len(heads) >= wanted or time.monotonic() > end:
                return {head["client"]: head for head in heads.values()}
            time.sleep(POLL_SECONDS)

    def greet(node: int, reply: Envelope | str) -> None:
        if isinstance(reply, str):  # it may be better off the next time
            tell(f"node {node} does not answer: {reply}")
            return
        if why := reply.head.get("error") or stranger(node, reply.head.get("client")):
            tell(
                f"node {node} (client {printable(str(reply.head.get('client')))}) is left out: "
                f"{why}"
            )
            refused.add(node)
        else:
            heads[node] = reply.head

    def stranger(node: int, client: Any) -> str:
        """Why a node cannot be the client that it says it is; "" where it can."""
        if not is_count(client):
            return "it does not say which client it is"
        if grid.owners.get(node, client) != client:
            return f"its key is that of client {grid.owners[node]}"
        taken = any(head["client"] == client for head in heads.values())
        return f"client {client} is there already" if taken else ""

    def exchange(letters: dict[int, Envelope], most: Mapping[int, int]) -> dict[int, Envelope]:
        nodes = {head["client"]: node for node, head in heads.items()}
        reached = {nodes[client]: letter for client, letter in letters.items() if client in nodes}
        replies = post(
            reached, {nodes[client]: size for client, size in most.items() if client in nodes}
        )
        read = {
            node: Envelope({"error": r}, {}) if isinstance(r, str) else r
            for node, r in replies.items()
        }
        return {heads[node]["client"]: reply for node, reply in read.items()}

    def add(
        letters: dict[int, Envelope], groups: Groups, most: Mapping[int, int]
    ) -> tuple[dict[int, Envelope], dict[str, np.ndarray | str]]:
        nodes, answers, totals = {head["client"]: node for node, head in heads.items()}, {}, {}
        for name, clients in groups.items():
            reached = {
                nodes[client]: to_records(letters[client]) for client in clients if client in nodes
            }
            shares = SHARE * len(clients)
            grid.expect(
                {
                    nodes[client]: LONGEST + most[client] + shares
                    for client in clients
                    if client in nodes
                }
            )
            outcome = sum_of(grid, reached, limit, timeout)
            answered = outcome.heads | {node: {"error": why} for node, why in outcome.lost.items()}
            answers |= {
                heads[node]["client"]: Envelope(head, {}) for node, head in answered.items()
            }
            totals[name] = outcome.total
        return answers, totals

    def post(letters: dict[int, Envelope], most: Mapping[int, int]) -> dict[int, Envelope | str]:
        """What nodes answer; in words, where Flower says why one does not, or it answers
        nonsense."""
        if not letters:
            return {}
        grid.expect({node: LONGEST + most.get(node, 0) for node in letters})
        kinds = {node: KINDS[letter.head["kind"]] for node, letter in letters.items()}
        messages = {
            node: Message(
                to_records(letter), dst_node_id=node, message_type=kinds[node], ttl=timeout
            )
            for node, letter in letters.items()
        }
        replies = list(grid.send_and_receive([*messages.values()], timeout=timeout))
        asked = {message.metadata.message_id: node for node, message in messages.items()}
        nodes = {asked[reply.metadata.reply_to_message_id]: reply for reply in replies}
        return {node: _opened(reply, most.get(node, 0)) for node, reply in nodes.items()}

    return meet, exchange, add


def _opened(reply: Message, most: int) -> Envelope | str:
    if reply.has_error():
        return printable(reply.error.reason or f"error {reply.error.code}")
    try:
        return from_records(reply.content, most)
    except ValueError as error:
        return printable(str(error))


def responder(answer: Callable[[Envelope], Envelope]) -> Callable[[Message, Context], Message]:
    """Flower's messages answered by `answer`, which takes and gives envelopes.

    Whether an uplink leaves masked is said here, on the client's side, whatever the server writes
    into the header.
    """

    def reply_of(message: Message, hidden: bool) -> Envelope:
        envelope = from_records(message.content)
        return answer(envelope._replace(head=envelope.head | {"masked": hidden}))

    def respond(message: Message, context: Context) -> Message:
        try:
            of_a_sum = RECORD_KEY_CONFIGS in message.content.config_records
            if of_a_sum and message.metadata.message_type == MessageType.TRAIN:
                return masked(message, context, lambda message: reply_of(message, hidden=True))
            return Message(to_records(reply_of(message, hidden=False)), reply_to=message)
        except Exception as error:  # whatever it is, the client stays there for the next message
            is_ours = isinstance(error, ValueError | OSError)
            why = printable(str(error)) if is_ours else type(error).__name__
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, why), reply_to=message)

    return respond


def log_to(path: Path) -> None:
    """Sends what Flower has to say to a file instead of the terminal."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    for name in ("flwr", "uvicorn", "httpx"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.WARNING)
