"""The Flower runtime: the same Client and Training, for organisations that already run SuperLink and SuperNodes.

Flower carries bytes and nothing else. Every request is signed by the coordinator and every reply by its client, with
the keys of the roster: Flower's node ids decide where a message goes, never who somebody is.

letters.py: what travels. site.py: a client's answer to one letter. relay.py, coordinator.py: the other end.
post.py: one thread for each message under way. apps.py: the only file that imports flwr. worker.py: a site's process
that stays, so that not every message starts from nothing.
"""
