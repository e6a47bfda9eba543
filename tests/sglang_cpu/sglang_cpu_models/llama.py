"""SmolLM2 is a Llama."""

from sglang.srt.models.llama import LlamaForCausalLM

EntryClass = [LlamaForCausalLM]
