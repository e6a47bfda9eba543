"""Which controller, and its options, from what a user writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from specplug.control.fixed import BatchSizeTable, FixedLength
from specplug.errors import SettingsError, did_you_mean
from specplug.settings import NoSettings, option, parse
from specplug.types import Capabilities, Context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specplug.protocols import Controller

WHERE = "controller"


@dataclass(frozen=True)
class GoodputSettings:
    """Options of the controller ``goodput``."""

    mode: Literal["throughput", "latency"] = option(
        "throughput",
        help="throughput: most tokens per second of all requests together; latency: least mean time per output token.",
    )
    slo_ms: float | None = option(
        None,
        minimum=0.001,
        maximum=1e6,
        help="Steps with drafts must not be expected to take longer than so many milliseconds.",
    )
    margin: float = option(
        0.01,
        minimum=0.0,
        maximum=10.0,
        help="How much faster than plain decoding a step must be expected to be, as a fraction, to draft at all.",
    )
    max_draft_tokens: int = option(
        8192,
        minimum=0,
        maximum=1_000_000,
        help="Most draft tokens of all requests together per step; each needs a row of logits.",
    )
    async_loss_ms: float = option(
        0.0,
        minimum=0.0,
        maximum=1e4,
        help="Milliseconds by which a step of the engine without specplug is shorter; for the reported gain only.",
    )
    cost_file: str | None = option(
        None,
        help="File with the step costs of this machine, to start from; written again every 2,000 steps.",
    )


@dataclass(frozen=True)
class FixedSettings:
    """Options of the controller ``fixed``."""

    length: int | None = option(
        None,
        minimum=0,
        maximum=1024,
        help="Draft tokens per request and step; null: as many as the engine allows.",
    )


@dataclass(frozen=True)
class TableSettings:
    """Options of the controller ``table``."""

    lengths: str = option(
        "",
        help="Draft tokens by batch size, such as '1:16,4:4,16:0': 16 for 1 to 3 requests, 4 up to 15, else 0.",
    )


_SETTINGS: dict[str, type] = {
    "goodput": GoodputSettings,
    "fixed": FixedSettings,
    "table": TableSettings,
    "none": NoSettings,
}


def check(written: Any) -> dict[str, Any]:
    """The complete, validated form of what a user wrote: ``{"name": ..., option: ...}``.

    Args:
        written: a name, or an object with ``name`` and options; None means ``goodput``.

    Raises:
        SettingsError: unknown controller, unknown option, wrong value.
    """
    if written is None:
        written = "goodput"
    if isinstance(written, str):
        written = {"name": written}
    if not isinstance(written, Mapping):
        raise SettingsError(
            f"{WHERE}: expected a name or an object with 'name' and options, got {written!r}"
        )
    options = dict(written)
    name = options.pop("name", "goodput")
    if name not in _SETTINGS or name == "none":
        valid = [n for n in _SETTINGS if n != "none"]
        raise SettingsError(
            f"{WHERE}: unknown controller {name!r}; {did_you_mean(str(name), valid)}"
        )
    settings: Any = parse(_SETTINGS[name], options, f"{WHERE} {name!r}")
    if isinstance(settings, TableSettings):
        BatchSizeTable.parse(settings.lengths)
    return {"name": name, **asdict(settings)}


def build(
    checked: Mapping[str, Any],
    context: Context,
    capabilities: Capabilities,
    *,
    captured: Sequence[int] = (),
    device: str = "",
    name: str = "",
    informed: bool = True,
    actions: tuple[int, ...] | None = None,
) -> Controller:
    """The controller of one engine process.

    Args:
        checked: what :func:`check` returned.
        captured: token counts to which the engine pads its forward passes.
        device: of the engine, part of the name of the machine in cost files.
        name: of the method, under which ``specplug doctor --live`` shows the decisions; "": not at all.
        informed, actions: of :class:`specplug.control.goodput.GoodputController`; with ``actions`` it only plans.
    """
    options = {key: value for key, value in checked.items() if key != "name"}
    if checked["name"] == "fixed":
        return FixedLength(options["length"])
    if checked["name"] == "table":
        return BatchSizeTable(BatchSizeTable.parse(options["lengths"]))
    from specplug.control.cost import CostModel
    from specplug.control.costfile import machine_name, read_seed
    from specplug.control.goodput import GoodputController
    from specplug.control.live import share
    from specplug.control.passes import PassController

    settings = GoodputSettings(**options)
    seed, machine = None, machine_name(device)
    if settings.cost_file and Path(settings.cost_file).exists():
        seed = read_seed(Path(settings.cost_file), machine)
    # A common length is planned before drafting anyway, and learned with what drafting costs.
    kind = PassController if capabilities.passes and not actions else GoodputController
    controller = kind(
        context,
        settings,
        cost=CostModel(captured, seed),
        machine=machine,
        # What is cut after drafting depends on the draft, which the rule of losslessness forbids for drawn tokens.
        trims=not (capabilities.sampled or capabilities.trees or actions),
        informed=informed,
        actions=actions,
    )
    if name:
        share(controller.decisions, name)
    return controller
