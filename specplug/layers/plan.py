"""Which attention and MLP sublayers of the target a draft pass runs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from specplug.errors import SkipPlanError

#: The most tokens that :func:`worth` thinks of drafting.
MOST_DRAFTS = 16


@dataclass(frozen=True, slots=True)
class Plan:
    """The sublayers that run, and where the model is left early.

    A sublayer that does not run leaves its residual stream as it is. The attention of layer 0 always runs: its part of
    the KV cache tells the position of the draft.

    Attributes:
        attention: one flag per layer.
        mlp: one flag per layer.
        exit_layer: nothing runs from this layer on, and an exit head that was fitted for it may be used; None if the
            draft goes through to the last layer.
    """

    attention: tuple[bool, ...]
    mlp: tuple[bool, ...]
    exit_layer: int | None = None

    def __post_init__(self) -> None:
        if len(self.attention) != len(self.mlp) or not self.attention:
            raise SkipPlanError(
                f"a plan needs one attention and one MLP flag per layer, got {len(self.attention)} and {len(self.mlp)}"
            )
        if not self.attention[0]:
            raise SkipPlanError(
                "a plan must run the attention of layer 0, where the position of the draft is read; leave 0 out of "
                "the skipped attention sublayers"
            )
        if self.exit_layer is not None:
            _check_exit(self.exit_layer, self.layers)
            if any(self.attention[self.exit_layer :]) or any(self.mlp[self.exit_layer :]):
                raise SkipPlanError(f"a plan that exits at {self.exit_layer} runs layers after it")

    @classmethod
    def full(cls, layers: int) -> Plan:
        """All sublayers of a model of ``layers`` layers."""
        return cls((True,) * layers, (True,) * layers)

    @classmethod
    def early_exit(cls, layers: int, exit_layer: int) -> Plan:
        """The first ``exit_layer`` of ``layers`` layers.

        Raises:
            SkipPlanError: ``exit_layer`` is not between 1 and ``layers - 1``.
        """
        _check_exit(exit_layer, layers)
        flags = tuple(layer < exit_layer for layer in range(layers))
        return cls(flags, flags, exit_layer)

    @classmethod
    def skipping(
        cls, layers: int, attention: Collection[int] = (), mlp: Collection[int] = ()
    ) -> Plan:
        """All but the named attention and MLP sublayers.

        Raises:
            SkipPlanError: a layer that the model does not have, or the attention of layer 0.
        """
        for name, chosen in (("attention", attention), ("mlp", mlp)):
            for layer in chosen:
                if not 0 <= layer < layers:
                    raise SkipPlanError(
                        f"{name}: there is no layer {layer}; the model has layers 0 to {layers - 1}"
                    )
        skipped_attention, skipped_mlp = frozenset(attention), frozenset(mlp)
        return cls(
            tuple(layer not in skipped_attention for layer in range(layers)),
            tuple(layer not in skipped_mlp for layer in range(layers)),
        )

    @property
    def layers(self) -> int:
        """Of the whole model."""
        return len(self.attention)

    @property
    def skips(self) -> int:
        """Sublayers that do not run."""
        return 2 * self.layers - sum(self.attention) - sum(self.mlp)

    def cost(self, attention_share: float = 0.5) -> float:
        """What runs, as a share of all layers.

        Args:
            attention_share: the part of a layer's work that is attention, between 0 and 1.
        """
        work = attention_share * sum(self.attention) + (1.0 - attention_share) * sum(self.mlp)
        return work / self.layers


def worth(match: float, draft_cost: float, verify_cost: float = 0.0) -> float:
    """The best goodput relative to plain decoding, over all fixed draft lengths up to :data:`MOST_DRAFTS`.

    With ``n`` drafts of which each is right with probability ``match``, a step emits
    ``1 + match + ... + match ** n`` tokens and takes ``1 + n * (draft_cost + verify_cost)`` plain steps
    (Leviathan et al. 2023, arXiv:2211.17192, equation 1). Never below 1: no drafts are a choice too.
    """
    best, tokens, survival = 1.0, 1.0, 1.0
    for drafts in range(1, MOST_DRAFTS + 1):
        survival *= match
        tokens += survival
        best = max(best, tokens / (1.0 + drafts * (draft_cost + verify_cost)))
    return best


def _check_exit(exit_layer: int, layers: int) -> None:
    if not 1 <= exit_layer < layers:
        raise SkipPlanError(
            f"an early exit must lie after 1 to {layers - 1} of {layers} layers, got {exit_layer}"
        )
