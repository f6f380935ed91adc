"""Federations whose clients are on machines of their own, by Flower; see docs/deploy.md.

command                 what the commands split, server and client do
plan                    the config, method and models that both sides have
server, rounds          the server, and how its rounds ask clients
client, answers         a client: its samples and programs, its answers and states
messages                messages as arrays and headers, and what of them is trusted
secure_sums, secagg     sums of uplinks alone: which, and the protocol
noise                   differential privacy: who adds noise, and what it has cost
flower                  messages by Flower
link, gate              the server's end of the wire, and who is let in
node                    a client's end of the wire
"""
