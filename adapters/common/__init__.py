"""What every adapter needs: one logger that is heard in the host's log."""

from __future__ import annotations

import logging


def host_logger(host: str) -> logging.Logger:
    """The logger ``specplug``, writing through the handlers of the host's own logger.

    Engines configure their own loggers and leave the root alone, so that lines of a plugin below WARNING
    vanish and the others come out bare. An application that configured ``specplug`` itself keeps its setting.
    """
    ours = logging.getLogger("specplug")
    theirs = logging.getLogger(host)
    if not ours.handlers and theirs.handlers:
        for handler in theirs.handlers:
            ours.addHandler(handler)
        # The host's handlers already write the line; a configured root would write it twice.
        ours.propagate = theirs.propagate
        if ours.level == logging.NOTSET:
            ours.setLevel(theirs.level)
    return ours
