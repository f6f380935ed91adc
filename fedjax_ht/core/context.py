"""Arguments of a method's functions besides states and messages: contexts and received uplinks."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Bool, Float, Int, Key

from fedjax_ht.core.federation import Federation
from fedjax_ht.core.keys import Purpose, client_key, round_key
from fedjax_ht.core.samples import Data
from fedjax_ht.core.trees import Array, HostArray, HostNumber, PyTree

Metrics = dict[str, Float[Array, ""]]  # by name


class ClientInfo(NamedTuple):
    """A client's id, number of training samples and rounds; every field is traced.

    Attributes:
      id: int32 scalar, the client's id in the whole federation.
      num_samples: int32 scalar, its number of training samples.
      last_round: int32 scalar, the last round in which the server reached it; -1 if it never did.
      sent_round: int32 scalar, the round whose downlink its upload answers, in server_update; None
        elsewhere.
    """

    id: Int[HostNumber, "*clients"]
    num_samples: Int[HostNumber, "*clients"]
    last_round: Int[HostNumber, "*clients"]
    sent_round: Int[HostNumber, "*clients"] | None = None


class Context(NamedTuple):
    """Context of a call of one of a method's functions.

    Attributes:
      key: random key, already folded from (seed, round, client id).
      round: int32 scalar, from 0.
      info: the client's id and counts; None on the server.
      pretrained: `Pretrained.variables`, for server_update; () elsewhere.
      shared_key: a key folded from (seed, round) alone, the same for the server and all clients.
        With this key and a client's id, server_update can repeat a draw of broadcast. None for
        init_client.
      data: data for server_update, if the method needs any, else None. The split "public" is the
        public set (`Needs.public_samples`), and the split "train" all clients' training samples
        (`Needs.clients_data`).
      federation: the federation, for an init_client whose state depends on messages, see
        `message_forms.uplink_form`; None elsewhere.
      adapt_epochs: int32 scalar in a client_update that only tunes a client before scoring, see
        `Scoring.adapt_epochs`; None in rounds.
    """

    key: Key[Array, ""]
    round: Int[Array, ""]
    info: ClientInfo | None
    pretrained: PyTree = ()
    shared_key: Key[Array, ""] | None = None
    data: Data | None = None
    federation: Federation | None = None
    adapt_epochs: Int[Array, ""] | int | None = None

    def of_newcomer(self) -> "Context":
        """Returns the context of a client that is reached for the first time."""
        assert self.info is not None  # the context is a client's
        return self._replace(info=self.info._replace(last_round=jnp.int32(-1)))


class Turn(NamedTuple):
    """A client in a round, from which the keys and contexts of its calls follow.

    Attributes:
      root: key of the run.
      round: int32 scalar, from 0.
      info: the client's id and counts.
    """

    root: Key[Array, ""]
    round: Int[Array, ""]
    info: ClientInfo

    def key(self, purpose: Purpose) -> Key[Array, ""]:
        """Returns the client's key for one purpose."""
        return client_key(self.root, purpose, self.round, self.info.id)

    def context(self, purpose: Purpose) -> Context:
        """Makes the context of a call."""
        shared = round_key(self.root, Purpose.SHARED, self.round)
        return Context(self.key(purpose), self.round, self.info, shared_key=shared)


class Received(NamedTuple):
    """A bucket's uplinks at the server, stacked by ascending client id, padding last.

    Attributes:
      uplink: the method's uplink with a leading axis [P] over the participants.
      info: ClientInfo with a leading axis [P].
      arrived: bool [P], False for padding, drop-outs and non-finite uplinks. These rows may be NaN
        and must not be read.
    """

    uplink: PyTree
    info: ClientInfo
    arrived: Bool[HostArray, " P"]

    @property
    def sent_round(self) -> Int[HostNumber, " P"] | None:
        """The round whose downlink each uplink answers, int32 [P]; earlier for late uploads."""
        return self.info.sent_round
