"""Flower's records, grid and client app: how a deployment's messages cross the wire. Needs the extra `flower`."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS
from flwr.serverapp import Grid

from fedjax_ht.deploy.envelope import Envelope, from_bytes, numbers_in, to_bytes
from fedjax_ht.deploy.heads import is_count
from fedjax_ht.deploy.pipe import ask
from fedjax_ht.deploy.secagg import sum_of
from fedjax_ht.deploy.secagg_client import masked

KINDS = {"hello": "query", "train": "train", "evaluate": "evaluate"}  # of a head -> of a Flower message
POLL_SECONDS = 1.0

Groups = Mapping[str, Sequence[int]]  # a name -> clients whose uplinks are summed together


def to_records(envelope: Envelope) -> RecordDict:
    """An envelope as Flower records: "message", an array each leaf, and "head", JSON."""
    arrays = {
        name: Array(str(x.dtype), tuple(x.shape), "numpy.ndarray", to_bytes(x)) for name, x in envelope.arrays.items()
    }
    head = ConfigRecord({"json": json.dumps(envelope.head)})
    return RecordDict({"message": ArrayRecord(arrays), "head": head})


def from_records(records: RecordDict) -> Envelope:
    """The envelope that `to_records` wrote.

    Raises:
      ValueError: it is none. One line.
    """
    try:
        head = json.loads(records.config_records["head"]["json"])
        arrays = {name: from_bytes(x.data, x.dtype) for name, x in records.array_records["message"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no message of this library: {error!r}") from None
    if not isinstance(head, dict):
        raise ValueError(f"no message of this library: its head is {type(head).__name__}")
    return Envelope(head, arrays)


def overhead(envelope: Envelope) -> int:
    """Bytes of an envelope's records beyond the numbers in its message: names, shapes, headers and the head."""
    records = to_records(envelope)
    arrays = sum(len(x.data) + len(x.deflate()) for x in records.array_records["message"].values())
    return arrays + len(records.config_records["head"].deflate()) - numbers_in(envelope)


def grid_nodes(
    grid: Grid, patience: float, timeout: float, tell: Callable[[str], None], limit: float = 8.0
) -> tuple[Callable, Callable, Callable]:
    """`Transport.meet`, `Transport.exchange` and `Transport.add` over Flower's grid.

    Args:
      grid: Flower's.
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
            for node, reply in post({node: hello for node in new}).items():
                greet(node, reply)
            if len(heads) >= wanted or time.monotonic() > end:
                return {head["client"]: head for head in heads.values()}
            time.sleep(POLL_SECONDS)

    def greet(node: int, reply: Envelope | str) -> None:
        if isinstance(reply, str):  # it may be better off the next time
            tell(f"node {node} does not answer: {reply}")
            return
        client = reply.head.get("client")
        twice = any(head["client"] == client for head in heads.values()) and f"client {client} is there already"
        nobody = not is_count(client) and "it does not say which client it is"
        if words := reply.head.get("error") or nobody or twice:
            tell(f"node {node} (client {client}) is left out: {words}")
            refused.add(node)
        else:
            heads[node] = reply.head

    def exchange(letters: dict[int, Envelope]) -> dict[int, Envelope]:
        nodes = {head["client"]: node for node, head in heads.items()}
        replies = post({nodes[client]: letter for client, letter in letters.items() if client in nodes})
        said = {node: Envelope({"error": r}, {}) if isinstance(r, str) else r for node, r in replies.items()}
        return {heads[node]["client"]: reply for node, reply in said.items()}

    def add(letters: dict[int, Envelope], groups: Groups) -> tuple[dict[int, Envelope], dict[str, np.ndarray | str]]:
        nodes, answers, totals = {head["client"]: node for node, head in heads.items()}, {}, {}
        for name, clients in groups.items():
            there = {nodes[client]: to_records(letters[client]) for client in clients if client in nodes}
            found = sum_of(grid, there, limit, timeout)
            said = found.heads | {node: {"error": why} for node, why in found.lost.items()}
            answers |= {heads[node]["client"]: Envelope(head, {}) for node, head in said.items()}
            totals[name] = found.total
        return answers, totals

    def post(letters: dict[int, Envelope]) -> dict[int, Envelope | str]:
        """What nodes answer; in words, where Flower says why one does not, or it answers nonsense."""
        kinds = {node: KINDS[letter.head["kind"]] for node, letter in letters.items()}
        messages = {
            node: Message(to_records(letter), dst_node_id=node, message_type=kinds[node], ttl=timeout)
            for node, letter in letters.items()
        }
        replies = list(grid.send_and_receive([*messages.values()], timeout=timeout)) if messages else []
        asked = {message.metadata.message_id: node for node, message in messages.items()}
        return {asked[reply.metadata.reply_to_message_id]: _opened(reply) for reply in replies}

    return meet, exchange, add


def _opened(reply: Message) -> Envelope | str:
    if reply.has_error():
        return " ".join((reply.error.reason or f"error {reply.error.code}").split())
    try:
        return from_records(reply.content)
    except ValueError as error:
        return str(error)


def client_app() -> ClientApp:
    """A Flower app that hands every message to the client's own process, see `pipe`, by the node's "socket"."""
    app = ClientApp()

    def answer(message: Message, context: Context, hidden: bool) -> Envelope:
        envelope = from_records(message.content)
        asked = envelope._replace(head=envelope.head | {"masked": hidden})  # whatever the server says of it
        return ask(Path(str(context.node_config["socket"])), asked)

    def hand_on(message: Message, context: Context) -> Message:
        return Message(to_records(answer(message, context, hidden=False)), reply_to=message)

    def train(message: Message, context: Context) -> Message:
        if RECORD_KEY_CONFIGS not in message.content.config_records:
            return hand_on(message, context)
        return masked(message, context, lambda message: answer(message, context, hidden=True))

    app.query()(hand_on)
    app.train()(train)
    app.evaluate()(hand_on)
    return app
