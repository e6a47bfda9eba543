"""What the plugin adds to the start of each of vLLM's processes, in seconds. Needs vLLM; starts no engine.

Each figure is from fresh interpreters that have already imported what the process imports anyway, so that only the
plugin's share is timed. The first start ever compiles all kernels (an empty cache folder); later ones load them.

    python benchmarks/startup.py [--method suffix] [--repeat 5]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile

REGISTER = """
import time
from importlib.metadata import entry_points
points = [p for p in entry_points(group="vllm.general_plugins") if p.name == "specplug"]
assert len(points) == 1, points
start = time.perf_counter()
points[0].load()()
print("SECONDS", time.perf_counter() - start)
"""

TRANSLATE = """
from vllm.engine.arg_utils import EngineArgs
from vllm.plugins import load_general_plugins
load_general_plugins()
class Stop(Exception): pass
class Arguments:
    speculative_config = {"method": METHOD, "num_speculative_tokens": 8}
import time
start = time.perf_counter()
try:
    EngineArgs.create_speculative_config(Arguments(), None, None)
except AttributeError:
    pass  # the stand-in has nothing for vLLM's own part, which comes after ours
print("SECONDS", time.perf_counter() - start)
assert Arguments.speculative_config["method"] == METHOD
"""

BUILD = """
import time
import vllm.v1.worker.gpu_model_runner
from specplug.testing.stub_host import configuration
start = time.perf_counter()
from specplug.adapters.vllm_v1.options import Choice
from specplug.adapters.vllm_v1.proposer import VllmProposer
from specplug import registry
name = METHOD.removeprefix("specplug.")
VllmProposer(configuration(8, 256, 4096, 49152), Choice(name, registry.check(name, {})))
print("SECONDS", time.perf_counter() - start)
"""

CASES = (
    ("front end: register", "import vllm.engine.arg_utils\n" + REGISTER, False),
    ("front end: check vLLM and the options (only with a method of ours)", TRANSLATE, False),
    ("engine core: register", "import vllm.v1.engine.core\n" + REGISTER, False),
    ("worker: register", "import vllm.v1.worker.gpu_model_runner\n" + REGISTER, False),
    ("worker: build the proposer (only with a method of ours)", BUILD, False),
    ("worker: the same, first start ever", BUILD, True),
)


def seconds(code: str, method: str, cold: bool) -> float:
    """Time printed by ``code`` in a fresh interpreter."""
    with tempfile.TemporaryDirectory() as folder:
        variables = {**os.environ, **({"SPECPLUG_CACHE": folder} if cold else {})}
        done = subprocess.run(
            [sys.executable, "-P", "-c", f"METHOD = {method!r}\n{code}"],
            capture_output=True,
            text=True,
            env=variables,
            check=False,
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith("SECONDS ")]
    if done.returncode or not lines:
        raise SystemExit(f"a measuring process failed:\n{done.stderr[-3000:]}")
    return float(lines[-1].split()[1])


def main() -> int:
    parser = argparse.ArgumentParser(description="Start-up cost of the vLLM plugin, per process.")
    parser.add_argument("--method", default="specplug.suffix")
    parser.add_argument("--repeat", type=int, default=5)
    chosen = parser.parse_args()
    print(f"start-up cost of {chosen.method}, seconds; load {os.getloadavg()[0]:.1f}")
    for name, code, cold in CASES:
        times = [seconds(code, chosen.method, cold) for _ in range(1 if cold else chosen.repeat)]
        print(
            f"  {name:<68} median {statistics.median(times):7.3f}  worst {max(times):7.3f}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
