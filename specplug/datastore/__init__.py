"""Building datastores and looking into them: what the command ``specplug datastore`` is made of."""
