"""The Flower runtime: the federation machine for organisations that already run SuperLink and SuperNodes.

Flower carries bytes and nothing else. Every request is signed by the coordinator and every reply by its client, with
the keys of the roster: Flower's node ids decide where a bundle goes, never who somebody is.

bundles.py: what travels. client.py: a client's answer to one bundle. coordinator.py: the other end. post.py: one thread
for each bundle under way. apps.py: the only file that imports flwr. worker.py: a client's process that stays, so that
not every bundle starts from nothing. template.py: the app folder for `flwr run`.
"""
