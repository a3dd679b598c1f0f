"""What people are told, by messages: what is news, how a message leaves, and who keeps to the rate and tries again.

The rule of this package: a receiver that does not answer keeps nobody waiting but the thread that tells it, and no
message decides anything.
"""
