"""Keys: files of private and public keys are read, or refused in one line."""

import pytest

pytest.importorskip("flwr")
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from fedjax_ht.deploy.gate import read_public_keys
from fedjax_ht.deploy.keys import read_private_key


@pytest.fixture(scope="module")
def keys():
    """Returns {client id: private key}."""
    return {client: ec.generate_private_key(ec.SECP384R1()) for client in range(4)}


def test_keys_are_read_by_client_or_refused_in_one_line(tmp_path, keys):
    def write(name, key, kind=form.PublicFormat.OpenSSH):
        (tmp_path / name).write_bytes(key.public_key().public_bytes(form.Encoding.OpenSSH, kind))

    with pytest.raises(ValueError, match="has no keys"):
        read_public_keys(tmp_path)
    write("site3.pub", keys[3])
    write("client12.pub", keys[1])
    read = read_public_keys(tmp_path)
    assert read == {i: public_key_to_bytes(keys[k].public_key()) for i, k in ((3, 3), (12, 1))}
    write("other_3.pub", keys[0])
    with pytest.raises(ValueError, match="client 3 has two keys"):
        read_public_keys(tmp_path)
    (tmp_path / "other_3.pub").unlink()
    write("client4.pub", keys[3])
    with pytest.raises(ValueError, match="or two clients have this one"):
        read_public_keys(tmp_path)
    (tmp_path / "client4.pub").write_text("ssh-rsa nonsense")
    with pytest.raises(ValueError, match=r"client4.pub is no public key of ssh-keygen: "):
        read_public_keys(tmp_path)
    (tmp_path / "client4.pub").rename(tmp_path / "hospital.pub")
    with pytest.raises(
        ValueError, match=r"hospital.pub: its name must end with the id of the client"
    ):
        read_public_keys(tmp_path)


def test_a_private_key_that_others_can_read_is_refused(tmp_path, keys):
    path = tmp_path / "client0"
    path.write_bytes(
        keys[0].private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
    )
    path.chmod(0o640)
    with pytest.raises(
        ValueError, match="can be read by others, who could answer as this client; chmod 600"
    ):
        read_private_key(path)
    path.chmod(0o600)
    assert read_private_key(path).private_numbers() == keys[0].private_numbers()
    path.write_text("nonsense")
    with pytest.raises(ValueError, match="is no private key without a passphrase"):
        read_private_key(path)
