"""Private keys: files that only their owner may read. Needs the extra `flower`."""

from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key


def read_private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Reads a client's private key.

    Raises:
      ValueError, OSError: the file is none, or others may read it. One line.
    """
    check_private(path, "client")
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        problem = " ".join(str(error).split())
        raise ValueError(f"{path} is no private key without a passphrase: {problem}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{path} is no ECDSA key; ssh-keygen -t ecdsa -b 384 makes one")
    return key


def check_private(path: Path, side: str) -> None:
    """Refuses a private key that other users of the machine can read.

    Raises:
      ValueError: they can. One line.
    """
    if path.stat().st_mode & 0o077:
        raise ValueError(
            f"{path} can be read by others, who could answer as this {side}; chmod 600 {path}"
        )
