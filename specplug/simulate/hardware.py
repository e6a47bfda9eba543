"""What a step costs on several machines. Nothing here is fitted to make a controller look good.

``cpu-*`` were measured: vLLM 0.32 on two cores of an AMD EPYC with SmolLM2-135M, median step times with 0 to 64
drafted tokens per request, at batch sizes 1 and 4. The others are *not measured*: they follow from published peak
figures by the roofline model (Williams, Waterman and Patterson, "Roofline", CACM 2009): the longer of the time to
read the weights and the time to compute, plus a constant for launches and the host, plus the time to read the
key-value cache.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Share of the published peak of arithmetic that large matrix products reach.
EFFICIENCY = 0.6


@dataclass(frozen=True)
class Hardware:
    """Step times of one machine and model.

    Attributes:
        name: how the command line calls it.
        kind: ``memory-bound``, ``middle`` or ``compute-bound``, at small batches.
        source: where the figures come from.
        tokens, seconds: the step's time at some numbers of tokens; linear in between, and beyond the last two.
        per_context: seconds per token in the key-value cache of the batch.
        per_request: seconds per request, for sampling and the host.
    """

    name: str
    kind: str
    source: str
    tokens: tuple[float, ...]
    seconds: tuple[float, ...]
    per_context: float = 0.0
    per_request: float = 0.0

    def step(self, tokens: float, requests: int, context: float) -> float:
        """Seconds of one step."""
        at, times = self.tokens, self.seconds
        # As np.interp does it, which would make arrays of these tuples at each step.
        place = min(max(bisect_right(at, tokens) - 1, 0), len(at) - 2)
        slope = (times[place + 1] - times[place]) / (at[place + 1] - at[place])
        base = times[place] + slope * max(0.0, tokens - at[place])
        return base + self.per_context * context + self.per_request * requests

    def table(self, most: int, requests: int, context: float) -> NDArray[np.float64]:
        """Seconds of steps with 1, 2, ... ``most`` tokens."""
        return np.array([self.step(n, requests, context) for n in range(1, most + 1)])


def roofline(
    name: str,
    kind: str,
    source: str,
    *,
    weights_gb: float,
    parameters: float,
    bandwidth: float,
    flops: float,
    overhead: float,
    kv_bytes: float,
) -> Hardware:
    """Step times from peak figures.

    Args:
        weights_gb: bytes of weights read per step, in 1e9.
        parameters: of the model; each costs two operations per token.
        bandwidth: bytes per second.
        flops: operations per second at peak; :data:`EFFICIENCY` of them count.
        overhead: seconds per step of launches, sampling and the host.
        kv_bytes: bytes of key-value cache per token.
    """
    floor = weights_gb * 1e9 / bandwidth
    per_token = 2 * parameters / (flops * EFFICIENCY)
    knee = floor / per_token
    # A rounded corner: both resources are in use around the knee.
    tokens = (1.0, knee * 0.5, knee, knee * 2, knee * 4, knee * 64)
    shape = (1.0, 1.02, 1.2, 2.05, 4.0, 64.0)
    return Hardware(
        name,
        kind,
        source,
        tokens,
        tuple(overhead + floor * s for s in shape),
        kv_bytes / bandwidth,
        2e-6,
    )


_CPU = "measured: vLLM 0.32.0, 2 cores of an AMD EPYC, SmolLM2-135M-Instruct, idle machine, "

HARDWARE: dict[str, Hardware] = {
    h.name: h
    for h in (
        roofline(
            "h100-8b",
            "memory-bound",
            "roofline: H100 SXM 3.35 TB/s, 989 TFLOP/s dense bf16 (NVIDIA data sheet); 8B weights in bf16",
            weights_gb=16,
            parameters=8e9,
            bandwidth=3.35e12,
            flops=989e12,
            overhead=2e-3,
            kv_bytes=131_072,
        ),
        roofline(
            "4090-8b-int4",
            "middle",
            "roofline: RTX 4090 1.008 TB/s, 165 TFLOP/s dense bf16 (NVIDIA white paper); 8B weights in 4 bits",
            weights_gb=4.5,
            parameters=8e9,
            bandwidth=1.008e12,
            flops=165e12,
            overhead=1.5e-3,
            kv_bytes=131_072,
        ),
        Hardware(
            "cpu-f32",
            "compute-bound",
            _CPU + "float32",
            (1, 5, 9, 17, 33, 65, 132, 260),
            (0.0400, 0.0415, 0.0450, 0.0580, 0.0830, 0.1470, 0.2910, 0.5150),
            1e-7,
        ),
        Hardware(
            "cpu-bf16",
            "compute-bound",
            _CPU + "bfloat16",
            (1, 5, 9, 17, 33, 65, 132, 260),
            (0.0270, 0.0280, 0.0310, 0.0410, 0.0620, 0.1080, 0.1850, 0.3200),
            1e-7,
        ),
    )
}
