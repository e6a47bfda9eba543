"""Look-ups where the tokens are: on the accelerator, by Triton kernels, without a copy to the host.

What comes out is defined by :mod:`specplug.kernels.flat_match`, bit for bit. :mod:`.lookup` holds the arrays and
launches; :mod:`.kernels` is the only file that needs Triton when it is imported.
"""

from __future__ import annotations
