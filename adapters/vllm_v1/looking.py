"""Finds the decoder layers of a model of vLLM, and how they are called, by watching one token pass through it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

from specplug.adapters.common.torch_layers import ATTENTION_NAMES, MLP_NAMES, TOLERANCE, named
from specplug.adapters.vllm_v1.passes import forward_context
from specplug.adapters.vllm_v1.sublayers import Call, Parts, Place, argument, silent, stubs
from specplug.errors import SkipPlanError
from specplug.layers.plan import Plan
from specplug.layers.swapping import swapped

#: Tokens of which the first whose state is not zero is watched: rows of padding are, and tell nothing.
TOKENS = range(8)
_INSTEAD = "use specplug.suffix"


class Seen(NamedTuple):
    """One call of a module: its arguments, its output, and the states that it was given (see :func:`watching`)."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any
    copies: list[Any]


def take_apart(runner: Any, model: Any) -> list[Parts]:
    """The layers of the model that vLLM serves, in their order.

    Args:
        runner: vLLM's, its KV cache one group and allocated; slots of the placeholder block are written.
        model: its model.

    Raises:
        SkipPlanError: no list of layers was found, or what they take and give is not understood.
    """
    name = type(model).__name__
    [group] = runner.kv_cache_config.kv_cache_groups
    blocks = find_stack(model, group.layer_names)
    attention = [named(block, ATTENTION_NAMES) for block in blocks]
    mlp = [named(block, MLP_NAMES) for block in blocks]
    try:
        count = len(blocks)
        for token in TOKENS:
            with watching([*blocks, *attention, *mlp]) as seen:
                one_token(runner, model, token)
            call = call_of(seen[:count])
            if bool(call.entering(seen[0].args, seen[0].kwargs).any()):
                break
        parts = [
            _parts(block, a, m, (seen[count + i], seen[2 * count + i]), call)
            for i, (block, a, m) in enumerate(zip(blocks, attention, mlp, strict=True))
        ]
        parts = _that_add(runner, model, parts, token)
        # With layers behind those that are left out, and without.
        for skipped in ([1], list(range(1, count))):
            with swapped(stubs(Plan.skipping(count, skipped, skipped), parts)):
                one_token(runner, model, token)
    except SkipPlanError as error:
        raise SkipPlanError(f"{name}: {error}; {_INSTEAD}") from None
    except Exception as error:  # whatever the model's code says to parts that do nothing
        raise SkipPlanError(
            f"{name}: its layers cannot be run one without the other: {error!r}; {_INSTEAD}"
        ) from error
    return parts


def find_stack(model: Any, caches: Sequence[str]) -> list[Any]:
    """The list of modules that has one layer for each cache, each with an attention.

    Caches are called after the modules that own them; where they are not, any list of the right length will do.

    Raises:
        SkipPlanError: there is none.
    """
    import torch

    lists = {
        name: list(module)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.ModuleList)
    }
    lengths = sorted({len(found) for found in lists.values()})
    owners = [name for name in lists if all(cache.startswith(f"{name}.") for cache in caches)]
    for name in owners or lists:
        blocks = lists[name]
        with_attention = [b for b in blocks if named(b, ATTENTION_NAMES) is not None]
        if len(with_attention) == len(blocks) == len(caches):
            return blocks
    raise SkipPlanError(
        f"{type(model).__name__} has no list of {len(caches)} decoder layers, one for each cache of keys and values, "
        f"whose attention is called one of {', '.join(ATTENTION_NAMES)} (lists of {lengths} modules were found); "
        f"{_INSTEAD}"
    )


def call_of(seen: Sequence[Seen]) -> Call:
    """How layers are called, from one call of each.

    Raises:
        SkipPlanError: there is one layer, or one is given something else than the one before it gave.
    """
    if len(seen) < 2 or any(found is None for found in seen):
        raise SkipPlanError(f"of its {len(seen)} layers, not two or more are run for a token")
    found = {_call(before.output, after) for before, after in pairwise(seen)}
    if len(found) != 1 or None in found:
        raise SkipPlanError("its layers are given something else than the layer before gave")
    [call] = found
    assert call is not None
    argument(seen[0].args, seen[0].kwargs, call.hidden)
    return call


def _call(output: Any, after: Seen) -> Call | None:
    many = isinstance(output, tuple)
    hidden = _place(output[0] if many else output, after)
    if hidden is None:
        return None
    residual = _place(output[1], after) if many and len(output) > 1 else None
    return Call(hidden, residual, len(output) if many else 0)


def _place(value: Any, after: Seen) -> Place | None:
    """Where a tensor stands among the arguments of a call."""
    if value is None:
        return None
    places: list[tuple[Place, Any]] = [*enumerate(after.args), *after.kwargs.items()]
    return next((place for place, found in places if found is value), None)


def _parts(block: Any, attention: Any, mlp: Any, seen: Sequence[Seen | None], call: Call) -> Parts:
    """A layer with those of its sublayers that give a state, maybe with other things behind it."""
    known: list[Any] = []
    more: list[int] = []
    for module, one in zip((attention, mlp), seen, strict=True):
        many = one is not None and isinstance(one.output, tuple)
        more.append(len(one.output) - 1 if one is not None and many else 0)
        known.append(module if one is not None and _gives_state(one) else None)
    return Parts(block, known[0], known[1], call, (more[0], more[1]))


def _gives_state(seen: Seen) -> bool:
    first = seen.output[0] if isinstance(seen.output, tuple) else seen.output
    shapes = [copy.shape for copy in seen.copies]
    return hasattr(first, "shape") and bool(shapes) and shapes[0] == first.shape


def _that_add(runner: Any, model: Any, parts: Sequence[Parts], token: int) -> list[Parts]:
    """Those sublayers whose output is added to the state: with both at zero, a layer gives what it was given."""
    both = [part for part in parts if part.attention is not None and part.mlp is not None]
    nothing = [
        (module, silent(more))
        for part in both
        for module, more in zip((part.attention, part.mlp), part.more, strict=True)
    ]
    with swapped(nothing), watching([part.block for part in parts], parts[0].call) as seen:
        one_token(runner, model, token)
    found = []
    for part, one in zip(parts, seen, strict=True):
        after, before = one.output, one.copies[0]
        size = float(before.abs().max())
        moved = float((after - before).abs().max())
        known = part in both and size > 0.0 and moved <= TOLERANCE * size
        found.append(part if known else part._replace(attention=None, mlp=None))
    return found


@contextmanager
def watching(modules: Sequence[Any], call: Call | None = None) -> Iterator[list[Any]]:
    """Passes inside write what each module is called with and gives, a :class:`Seen` or None, into the list.

    Args:
        modules: may hold None.
        call: keep copies of the states that this finds, as output too; without it, tensors of floating point.
    """
    seen: list[Any] = [None] * len(modules)
    copies: list[list[Any]] = [[] for _ in modules]

    def before(place: int) -> Callable[..., None]:
        def record(module: Any, args: Any, kwargs: Any) -> None:
            if call is not None:
                copies[place] = [call.entering(args, kwargs).clone()]
                return
            given = [kwargs.get("hidden_states"), *args, *kwargs.values()]
            copies[place] = [
                value
                for value in given
                if hasattr(value, "is_floating_point") and value.is_floating_point()
            ]

        return record

    def after(place: int) -> Callable[..., None]:
        def record(module: Any, args: Any, kwargs: Any, output: Any) -> None:
            # At once: the next layer may write where it reads.
            kept = output if call is None else call.state(output).clone()
            seen[place] = Seen(args, kwargs, kept, copies[place])

        return record

    with ExitStack() as stack:
        for place, module in enumerate(modules):
            if module is not None:
                entering = module.register_forward_pre_hook(before(place), with_kwargs=True)
                leaving = module.register_forward_hook(after(place), with_kwargs=True)
                stack.callback(entering.remove)
                stack.callback(leaving.remove)
        yield seen


def one_token(runner: Any, model: Any, token: int) -> None:
    """Run a token at position 0 through the model; its keys go into the placeholder block, which is never read."""
    import torch
    from vllm.v1.attention.backend import CommonAttentionMetadata

    device = runner.device
    width = int(runner.input_batch.block_table[0].block_table.cpu.shape[1])
    starts = torch.tensor([0, 1], dtype=torch.int32)
    where = torch.zeros(1, dtype=torch.int64, device=device)
    common = CommonAttentionMetadata(
        query_start_loc=starts.to(device),
        query_start_loc_cpu=starts,
        seq_lens=torch.ones(1, dtype=torch.int32, device=device),
        num_reqs=1,
        num_actual_tokens=1,
        max_query_len=1,
        max_seq_len=1,
        block_table_tensor=torch.zeros(1, width, dtype=torch.int32, device=device),
        slot_mapping=torch.zeros(1, dtype=torch.int64, device=device),
        causal=True,
        positions=where,
    )
    with torch.inference_mode(), forward_context(runner, common):
        model(
            input_ids=torch.full((1,), token, dtype=torch.int32, device=device),
            positions=where,
            intermediate_tensors=None,
            inputs_embeds=None,
        )
