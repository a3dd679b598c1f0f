"""Messages to operators: the news, its delivery, its rate, and its retries.

The rule of this package: a receiver that does not answer delays only the thread that sends to it, and no message
decides anything.
"""
