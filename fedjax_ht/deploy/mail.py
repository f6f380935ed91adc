"""A client's end of the mailbox: takes a request of the server, and leaves its reply.

Needs the extra `flower`.
"""

import contextlib
from collections.abc import Iterator

import httpx
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    Message,
    Metadata,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.proto.recorddict_pb2 import RecordDict
from flwr.supernode.fleet_http_client import FleetHttpClient

from fedjax_ht.deploy.mailbox import ENDED, reply_id_of


def take_request(fleet: FleetHttpClient, node: Node, metadata: Metadata) -> bytes:
    """Fetches a message of the server."""
    run_id, name = metadata.run_id, metadata.message_id
    request = PullObjectRequest(node=node, run_id=run_id, object_id=name)
    content = fleet.PullObject(request).object_content
    fleet.ConfirmMessageReceived(
        ConfirmMessageReceivedRequest(node=node, run_id=run_id, message_object_id=name)
    )
    return content


def leave_reply(fleet: FleetHttpClient, node: Node, metadata: Metadata, reply: bytes) -> None:
    """Announces a reply to the message with this metadata, then sends it."""
    name = reply_id_of(metadata.message_id)
    announced = Metadata()
    # with the request's own times: this machine's clock decides nothing
    announced.CopyFrom(metadata)
    announced.message_id, announced.reply_to_message_id = name, metadata.message_id
    announced.src_node_id, announced.dst_node_id = node.node_id, SUPERLINK_NODE_ID
    response = fleet.PushMessages(
        PushMessagesRequest(
            node=node,
            messages_list=[Message(metadata=announced, content=RecordDict())],
            message_object_trees=[ObjectTree(object_id=name)],
        )
    )
    fleet.PushObject(
        PushObjectRequest(
            node=node,
            run_id=metadata.run_id,
            session_id=response.session_id,
            object_id=name,
            object_content=reply,
        )
    )


@contextlib.contextmanager
def ended_exchange_ignored() -> Iterator[None]:
    """Goes on after a call that came too late: the server waits for the reply no more."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        if error.response.status_code != ENDED:
            raise
