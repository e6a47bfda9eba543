"""Replay of recorded requests through proposers: what speculation would have brought, without a model.

``specplug replay`` is the command; :func:`specplug.replay.simulator.replay_record` is the loop. Tokenizers and
compression libraries are imported only where they are used; they come with the extra ``specplug[replay]``.
"""
