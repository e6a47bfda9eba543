"""Will it pay, and with which settings: ``specplug tune``."""
