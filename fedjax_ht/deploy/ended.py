"""How a side of a deployment ends by itself, before its last round."""


class Ended(Exception):
    """Nobody takes part any more, or the server refuses this client. One line. The same command
    goes on later."""
