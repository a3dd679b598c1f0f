"""Messages to operators: what is news, how a message leaves, its rate, and its retries.

The rule of this package: a receiver that does not answer keeps nobody waiting but the thread that tells it, and no
message decides anything.
"""
