"""Isolates the calls that can hang.

The rule of this package: a question that may block goes to a worker, a small process that was executed afresh (never a
bare fork of the threaded daemon), over its own pipes, with a deadline. At the deadline the worker is killed; one that
does not die (uninterruptible sleep) is left alone and counted, and no second worker of its family starts while it
lives. The daemon imports ``supervise``; ``worker`` and the ``*_ops`` modules run in the child only.
"""
