"""A job of the cluster and the blame for its end: node, job or unknown, with evidence. Pure: no clock, no file.

*Node* only for a hardware fault that opened or grew on this node while the job ran. *Unknown* is never node and never
job.
"""
