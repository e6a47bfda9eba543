"""A causal language model of transformers, taken apart by inspection: its layers, its cache, passes over parts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray

from specplug.adapters.common.torch_layers import (
    ATTENTION_NAMES,
    MLP_NAMES,
    TOLERANCE,
    apply_head,
    head_tensors,
    named,
    rows_of,
)
from specplug.adapters.transformers_hf.stubs import no_attention, nothing, passing
from specplug.errors import SkipPlanError
from specplug.layers.exit_head import ExitHead
from specplug.layers.fingerprint import fingerprint
from specplug.layers.plan import Plan
from specplug.layers.swapping import swapped

#: What decoder stacks call their last norm.
NORM_NAMES = ("norm", "final_layernorm", "final_layer_norm", "ln_f")

#: What a layer may be given as tensors, beside its states, and :meth:`Decoder.run_layer` knows to make.
_KNOWN_TENSORS = (
    *("hidden_states", "attention_mask", "position_ids", "position_embeddings", "cache_position"),
)


class Decoder:
    """Runs a model with sublayers left out, on the same weights and the same cache.

    A sublayer is left out by giving it another ``forward`` for the time of a pass, one that adds nothing; the model's
    own code does the rest. The list of layers is found by looking for the longest one, the sublayers by their usual
    names, and what each returns by running one token.

    Args:
        model: a causal language model of transformers, in evaluation mode afterwards.

    Raises:
        SkipPlanError: a model whose layers or sublayers are not recognised, or whose cache cannot be rolled back
            (recurrent state, sliding windows): what is wrong, and what is needed.
    """

    def __init__(self, model: Any) -> None:
        self.model = model.eval()
        self.name = type(model).__name__
        self.inner, self.blocks = _stack(model)
        self.attention = [
            _part(block, ATTENTION_NAMES, "attention", self.name) for block in self.blocks
        ]
        self.mlp = [_part(block, MLP_NAMES, "MLP", self.name) for block in self.blocks]
        self.norm = _part(self.inner, NORM_NAMES, "final norm", self.name)
        self.hidden = int(model.config.get_text_config().hidden_size)
        self.vocab_size = int(model.config.get_text_config().vocab_size)
        #: What else the model gives to its layers, such as ``alibi=None``.
        self._flags: dict[str, Any] = {}
        self._unknown: list[str] = []
        self._outputs = self._look()
        self._parts: dict[Any, list[Any]] = {}

    @property
    def layers(self) -> int:
        """Number of decoder layers."""
        return len(self.blocks)

    def new_cache(self) -> Any:
        """An empty KV cache of the model."""
        from transformers import DynamicCache

        return DynamicCache(config=self.model.config)

    def logits(self, tokens: Sequence[int], cache: Any) -> NDArray[Any]:
        """One pass over ``tokens``, which ``cache`` is extended by: float64 or float32 ``[n, V]``."""
        import torch

        ids = torch.tensor([list(tokens)], dtype=torch.long, device=self.model.device)
        with torch.inference_mode():
            out = self.model(input_ids=ids, past_key_values=cache, use_cache=True)
        return as_numpy(out.logits[0])

    def fill(self, tokens: Sequence[int], cache: Any) -> None:
        """The same without the LM head, whose output for a long prompt would take gigabytes."""
        import torch

        ids = torch.tensor([list(tokens)], dtype=torch.long, device=self.model.device)
        with torch.inference_mode():
            self.inner(input_ids=ids, past_key_values=cache, use_cache=True)

    @contextmanager
    def running(self, plan: Plan, head: ExitHead | None = None) -> Iterator[None]:
        """Passes inside run the sublayers of ``plan`` only, and ``head`` after the last norm.

        Raises:
            SkipPlanError: a plan for another number of layers.
        """
        if plan.layers != self.layers:
            raise SkipPlanError(
                f"the plan is for {plan.layers} layers, {self.name} has {self.layers}; build the policy with "
                f"{self.layers} layers"
            )
        with swapped(self._stubs(plan, head)):
            yield

    @contextmanager
    def watching(self, modules: Sequence[Any]) -> Iterator[list[Any]]:
        """Passes inside write the first output of each module, ``[n, d]``, into the list that this gives."""
        seen: list[Any] = [None] * len(modules)
        hooks = [
            module.register_forward_hook(_recorder(seen, place))
            for place, module in enumerate(modules)
        ]
        try:
            yield seen
        finally:
            for hook in hooks:
                hook.remove()

    @contextmanager
    def watching_inputs(self) -> Iterator[list[Any]]:
        """Passes inside write what enters layer 0, ``[n, d]``, into the list that this gives."""
        seen: list[Any] = [None]

        def record(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            seen[0] = (args[0] if args else kwargs["hidden_states"])[0]

        hook = self.blocks[0].register_forward_pre_hook(record, with_kwargs=True)
        try:
            yield seen
        finally:
            hook.remove()

    def run_layer(self, layer: int, states: Any, cache: Any, position: int) -> Any:
        """One layer at one position on several states at once; the cache is read and not extended.

        Args:
            layer: its number.
            states: tensor ``[n, d]``.
            cache: holds at least ``position`` tokens; those from there on are not seen.
            position: where the states stand.

        Returns:
            Tensor ``[n, d]``.
        """
        import torch

        from specplug.adapters.transformers_hf.cache import Branches

        block = self.blocks[layer]
        hidden = states[:, None, :]
        ids = torch.full((1, 1), position, dtype=torch.long, device=hidden.device)
        with torch.inference_mode():
            given = {
                **self._flags,
                "attention_mask": None,
                "position_ids": ids,
                "past_key_values": Branches(cache, layer, position, len(hidden)),
                "use_cache": True,
                "position_embeddings": self._angles(hidden, ids, layer),
            }
            out = block(hidden, **given)
        return _first(out)[:, 0, :]

    def _angles(self, hidden: Any, ids: Any, layer: int) -> Any:
        """Rotary positions, where the model has them; some have others for some of the layers."""
        rotary = getattr(self.inner, "rotary_emb", None)
        if rotary is None:
            return None
        more = {}
        if "layer_type" in inspect.signature(type(rotary).forward).parameters:
            more["layer_type"] = self.model.config.get_text_config().layer_types[layer]
        return rotary(hidden, position_ids=ids, **more)

    def normed(self, states: Any) -> NDArray[Any]:
        """States ``[n, d]`` after the model's last norm. Not inside :meth:`watching` the norm."""
        import torch

        with torch.inference_mode():
            return as_numpy(self.norm(states))

    def fingerprint(self) -> str:
        """Names the weights, see :mod:`specplug.layers.fingerprint`.

        Raises:
            ExitHeadError: they have other names than those of Llama-like models.
        """
        return fingerprint(
            (name, tuple(weight.shape), rows_of(weight))
            for name, weight in self.inner.state_dict().items()
        )

    def _stubs(self, plan: Plan, head: ExitHead | None) -> Iterator[tuple[Any, Callable[..., Any]]]:
        for layer, (attention, mlp) in enumerate(zip(plan.attention, plan.mlp, strict=True)):
            if not attention and not mlp:
                yield self.blocks[layer], passing(self._outputs)
                continue
            if not attention:
                yield self.attention[layer], no_attention
            if not mlp:
                yield self.mlp[layer], nothing
        if head is not None:
            yield self.norm, self._with_head(head)

    def _parts_of(self, head: ExitHead) -> list[Any]:
        """A head as tensors beside the model, made once: at a hidden size of 4096 that takes longer than a draft."""
        weight = next(self.norm.parameters())
        # By identity, and the head is kept with them: arrays have no hash, and an id lives as long as its owner.
        key = (id(head), weight.device, weight.dtype)
        if key not in self._parts:
            if len(self._parts) >= 2 * self.layers:
                self._parts.clear()
            self._parts[key] = [head, *head_tensors(head, weight.device, weight.dtype)]
        return self._parts[key][1:]

    def _with_head(self, head: ExitHead) -> Callable[..., Any]:
        parts = self._parts_of(head)
        norm = type(self.norm).forward

        def forward(states: Any, *args: Any, **kwargs: Any) -> Any:
            return apply_head(parts, norm(self.norm, states, *args, **kwargs))

        return forward

    def _look(self) -> int:
        """Run one token and see what comes out of each part.

        Returns:
            How many things a layer gives; 0 for states that are in no tuple.
        """
        cache = self.new_cache()
        parts = [*self.blocks, *self.attention, *self.mlp]
        kinds: list[Any] = [None] * len(parts)

        def recorder(place: int) -> Callable[..., None]:
            def record(module: Any, args: Any, output: Any) -> None:
                kinds[place] = len(output) if isinstance(output, tuple) else 0

            return record

        def flags(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
            plain = {k: v for k, v in kwargs.items() if v is None or isinstance(v, bool | int)}
            self._flags.update(plain)
            self._unknown = sorted(
                name
                for name, value in kwargs.items()
                if hasattr(value, "dtype") and name not in _KNOWN_TENSORS
            )

        hooks = [part.register_forward_hook(recorder(i)) for i, part in enumerate(parts)]
        hooks.append(self.blocks[0].register_forward_pre_hook(flags, with_kwargs=True))
        try:
            self.logits([self._token()], cache)
        finally:
            for hook in hooks:
                hook.remove()
        count = self.layers
        blocks, attention, mlp = kinds[:count], kinds[count : 2 * count], kinds[2 * count :]
        if set(attention) != {2} or set(mlp) != {0} or len(set(blocks)) != 1:
            raise SkipPlanError(
                f"{self.name}: sublayers return other things than those of Llama-like models (attention "
                f"{set(attention)}, MLP {set(mlp)}, layer {set(blocks)}), so they cannot be left out; "
                "use specplug.suffix"
            )
        for layer in cache.layers:
            if not getattr(layer, "is_croppable", hasattr(layer, "crop")) or getattr(
                layer, "is_sliding", False
            ):
                raise SkipPlanError(
                    f"{self.name}: its cache ({type(layer).__name__}) cannot be rolled back after a draft, as "
                    "recurrent state and sliding windows cannot; use specplug.suffix"
                )
        self._check_that_sublayers_add()
        self._outputs = int(blocks[0])
        self._check_that_a_layer_runs_alone(cache)
        return self._outputs

    def _token(self) -> int:
        """One whose embedding is not zero, as that of padding is: from zeros nothing can be told."""
        rows = self.model.get_input_embeddings().weight[:64]
        return int((rows != 0).any(dim=1).long().argmax())

    def _check_that_a_layer_runs_alone(self, cache: Any) -> None:
        """As CLaSp asks for it."""
        import torch

        problem = (
            f"its layers are given {self._unknown}, which are not known" if self._unknown else ""
        )
        weight = next(self.blocks[0].parameters())
        states = torch.ones(1, self.hidden, device=weight.device, dtype=weight.dtype)
        if not problem:
            try:
                self.run_layer(0, states, cache, 1)
            except Exception as error:  # noqa: BLE001  whatever the model says to a layer alone
                problem = f"a layer cannot be run alone: {error!r}"
        if problem:
            raise SkipPlanError(f"{self.name}: {problem}; use specplug.suffix")

    def _check_that_sublayers_add(self) -> None:
        """With all sublayers left out every layer gives what it was given, or leaving one out means something else."""
        stubs = [
            *((part, no_attention) for part in self.attention),
            *((part, nothing) for part in self.mlp),
        ]
        with swapped(stubs), self.watching_inputs() as first, self.watching(self.blocks) as seen:
            self.logits([self._token()], self.new_cache())
        before = as_numpy(first[0])
        for number, states in enumerate(seen):
            after = as_numpy(states)
            # Written so that what is no number does not pass.
            if not abs(after - before).max() <= TOLERANCE * abs(before).max() > 0.0:
                raise SkipPlanError(
                    f"{self.name}: layer {number} changes its states although its attention and its MLP add nothing, "
                    "so they cannot be left out; use specplug.suffix"
                )


def as_numpy(tensor: Any) -> NDArray[Any]:
    """Float64 stays what it is, everything else becomes float32."""
    import torch

    kept = tensor if tensor.dtype == torch.float64 else tensor.float()
    found: NDArray[Any] = kept.detach().cpu().numpy()
    return found


def _stack(model: Any) -> tuple[Any, list[Any]]:
    """The module that owns the decoder layers, and the layers: the longest list whose modules all have an attention."""
    import torch

    name = type(model).__name__
    if getattr(model, "_is_stateful", False):
        raise SkipPlanError(
            f"{name}: it keeps recurrent state, which cannot be rolled back after a draft; use specplug.suffix"
        )
    # Towers for images and the like are no part of the decoder.
    root = (model.get_decoder() if hasattr(model, "get_decoder") else None) or model
    owners = [
        (owner, list(found))
        for owner in root.modules()
        for found in owner.children()
        if isinstance(found, torch.nn.ModuleList)
        and len(found)
        and all(named(block, ATTENTION_NAMES) is not None for block in found)
    ]
    if not owners or model.config.is_encoder_decoder:
        raise SkipPlanError(
            f"{name}: no list of decoder layers was found that all have an attention called one of "
            f"{', '.join(ATTENTION_NAMES)}; Llama-like causal language models are supported, others can use "
            "specplug.suffix"
        )
    return max(owners, key=lambda found: len(found[1]))


def _part(owner: Any, names: Sequence[str], what: str, model: str) -> Any:
    found = named(owner, names)
    if found is not None:
        return found
    raise SkipPlanError(
        f"{model}: {type(owner).__name__} has no {what} among {', '.join(names)}, so it cannot be left out; use "
        "specplug.suffix"
    )


def _first(output: Any) -> Any:
    return output[0] if isinstance(output, tuple) else output


def _recorder(seen: list[Any], place: int) -> Callable[..., None]:
    def record(module: Any, args: Any, output: Any) -> None:
        seen[place] = _first(output)[0]

    return record
