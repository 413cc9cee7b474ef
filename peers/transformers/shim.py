"""Hugging Face transformers on torch behind the shim protocol: a folder with safetensors, in BF16 or F32.

Its own `generate` cannot be stopped between two turns, so that the loop is here: one forward a token over a
cache of its own, the arg max of the last logits.
"""

import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache

from protocol import TokenByToken, cpu_ns, now_ns, resident_bytes, serve


class Engine(TokenByToken):
    def __init__(self):
        self.model = None
        self.cache = None

    def load(self, ask):
        settings = {"attention": "sdpa", "inductor": False, "dtype": "bfloat16", **ask["settings"]}
        torch.set_num_threads(ask["threads"])
        torch.set_grad_enabled(False)
        dtype = {"bfloat16": torch.bfloat16, "float32": torch.float32}[settings["dtype"]]
        model = AutoModelForCausalLM.from_pretrained(
            ask["model"], dtype=dtype, attn_implementation=settings["attention"], local_files_only=True
        ).eval()
        self.model = torch.compile(model, dynamic=True) if settings["inductor"] else model
        self.context = ask["context"]
        bits = torch.finfo(dtype).bits
        head = model.get_output_embeddings().weight
        layers = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed_tokens" not in n and p is not head]
        streamed = sum(p.numel() * p.element_size() for p in [*layers, head])
        kv = "f32" if dtype == torch.float32 else "bf16"
        return {
            "name": "transformers",
            "version": f"{transformers.__version__}, torch {torch.__version__}",
            "class": {"weight_bits": bits, "head_bits": bits, "activation_bits": bits, "kv": kv, "sums": "f32"},
            "streamed_bytes": streamed,
            "vocab": head.shape[0],
            "logits": True,
            "proof": [torch.backends.cpu.get_cpu_capability(), *torch.__config__.parallel_info().splitlines()[:8]],
            "settings": {**settings, "threads": torch.get_num_threads()},
        }

    def run(self, ids):
        """The arg max after `ids` and its logit."""
        if self.cache.get_seq_length() + len(ids) > self.context:
            raise ValueError(f"the context of {self.context} tokens is full")
        out = self.model(torch.tensor([ids]), past_key_values=self.cache, use_cache=True, logits_to_keep=1)
        row = out.logits[0, -1].float()
        self.last = int(row.argmax())
        return float(row[self.last])

    def begin(self):
        self.cache = DynamicCache()

    def finish(self, ask):
        resident = resident_bytes()
        start = now_ns()
        self.cache = None
        return {"release_ns": now_ns() - start, "cpu_ns": cpu_ns() - self.cpu, "rss_bytes": resident}

    def rest(self, ask):
        # The threads of its pool sleep by themselves between two calls.
        return {}


serve(Engine())
