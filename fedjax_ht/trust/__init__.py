"""Attacks on federated training, defences against them, and privacy: what hides a client, and what
it costs."""
