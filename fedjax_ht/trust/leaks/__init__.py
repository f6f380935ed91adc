"""What can be learned about clients from what they send: `inversion` of uploads, and `membership`
in training sets."""
