"""How long a step of an engine takes by the number of tokens in it: ``specplug calibrate``."""
