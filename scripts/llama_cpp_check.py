"""Files that `tare quantize` writes, read by llama.cpp: vocabulary, logits and greedy ids against tare's own.

Started by llama_cpp_check.sh, whose head says what is needed and what is proven.
usage: llama_cpp_check.py TARE WORK MODEL...
"""

import ctypes
import json
import random
import subprocess
import sys
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
from safetensors.numpy import load_file

# Largest difference of two logits of the file as written. llama.cpp rounds activations to the type that its dot product
# wants: Q8 for packed weights, BF16 for BF16, and F16 for F16 where the processor has no mixed product.
LIMITS = {"f32": 3e-4, "f16": 0.05, "bf16": 0.5, "q8_0": 1.0, "q4_0": 1.0}
# The same on the values dequantized to F32: only the order of sums is left.
EXACT = 3e-4
STEPS = 24
PROMPTS = (1, 7, 33)
TEXTS = [
    "The library was quiet.",
    "  leading, trailing  \n\n\tand tabs",
    "don't 12345 x=3.14; // code_here()",
    "naïve façade — “quotes” 你好 مرحبا 👩‍👩‍👧",
    "<|im_end|> stays text",
]


@llama_cpp.llama_log_callback
def errors_only(level, text, _):
    if level == 4:
        sys.stderr.write(text.decode(errors="replace"))


class Witness:
    """llama.cpp on one file: one thread, F32 KV cache, no flash attention."""

    def __init__(self, path):
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        assert self.model, f"llama.cpp refuses {path}"
        setup = llama_cpp.llama_context_default_params()
        setup.n_ctx = setup.n_batch = setup.n_ubatch = 128
        setup.n_threads = setup.n_threads_batch = 1
        setup.type_k = setup.type_v = llama_cpp.GGML_TYPE_F32
        setup.flash_attn_type = 0
        self.context = llama_cpp.llama_init_from_model(self.model, setup)
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.size = llama_cpp.llama_vocab_n_tokens(self.vocab)

    def logits(self, ids):
        """Logits of all positions, [T, V]."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
            batch.seq_id[i][0] = 0
        assert llama_cpp.llama_decode(self.context, batch) == 0
        rows = [llama_cpp.llama_get_logits_ith(self.context, i) for i in range(len(ids))]
        values = np.stack([np.ctypeslib.as_array(row, (self.size,)).copy() for row in rows])
        llama_cpp.llama_batch_free(batch)
        return values

    def greedy(self, ids):
        """The likeliest continuation, and the lead of each id over the second."""
        ids, out, leads = list(ids), [], []
        for _ in range(STEPS):
            last = self.logits(ids)[-1]
            second, first = np.sort(last)[-2:]
            out.append(int(last.argmax()))
            leads.append(float(first - second))
            ids.append(out[-1])
        return out, leads

    def tokenize(self, text):
        """Ids of a text in which nothing is a special token."""
        raw = text.encode()
        room = (llama_cpp.llama_token * (len(raw) + 8))()
        count = llama_cpp.llama_tokenize(self.vocab, raw, len(raw), room, len(room), False, False)
        return list(room[:count])

    def close(self):
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)


class Tare:
    """The binary, as a stranger calls it."""

    def __init__(self, binary, work):
        self.binary, self.work = binary, work

    def call(self, *args):
        done = subprocess.run([self.binary, *map(str, args)], capture_output=True, text=True)
        assert done.returncode == 0, f"tare {' '.join(map(str, args))}: {done.stderr}"
        return done.stdout

    def ids_file(self, ids):
        path = self.work / "ids.json"
        path.write_text(json.dumps(ids))
        return path

    def logits(self, model, ids):
        out = self.work / "logits.safetensors"
        self.call("logits", "-m", model, "--ids", self.ids_file(ids), "--class", "f32", "-o", out)
        return load_file(out)["logits"]

    def greedy(self, model, ids):
        args = ["-n", STEPS, "--class", "f32", "--ignore-eos", "--json"]
        return json.loads(self.call("run", "-m", model, "--ids", self.ids_file(ids), *args))["ids"]

    def tokenize(self, model, text):
        return json.loads(self.call("tokenize", "-m", model, "--json", "--", text))


def dequantized(path, out):
    """The same file with every tensor in F32, so that llama.cpp has no activation to round."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type"):
            continue
        of = field.types[-1] if len(field.types) > 1 else None
        writer.add_key_value(key, field.contents(), field.types[0], of)
    for t in reader.tensors:
        writer.add_tensor(t.name, np.ascontiguousarray(gguf.quants.dequantize(t.data, t.tensor_type), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def compare(tare, model, witness, limit, prompts):
    """Largest difference of two logits, and steps of the greedy series that agree before a lead below `limit`."""
    worst, certain = 0.0, 0
    for ids in prompts:
        worst = max(worst, float(np.abs(tare.logits(model, ids) - witness.logits(ids)).max()))
        ours, (theirs, leads) = tare.greedy(model, ids), witness.greedy(ids)
        for step, (a, b, lead) in enumerate(zip(ours, theirs, leads)):
            if lead <= limit:
                break
            assert a == b, f"{model}: step {step}: tare says {a}, llama.cpp {b}, {lead} ahead"
            certain += 1
    assert worst <= limit, f"{model}: logits differ by {worst}, more than {limit}"
    return worst, certain


def has_tokenizer(tare, source):
    """Whether the source has one; a file written from a source without one has placeholders for llama.cpp's sake."""
    done = subprocess.run([tare.binary, "tokenize", "-m", source, "a"], capture_output=True, text=True)
    return done.returncode == 0


def compare_texts(tare, source, path, witness):
    """How many texts the source, the file and llama.cpp turn into the same ids; none without a tokenizer."""
    if not has_tokenizer(tare, source):
        return 0
    for text in TEXTS:
        before, ours, theirs = tare.tokenize(source, text), tare.tokenize(path, text), witness.tokenize(text)
        assert before == ours == theirs, f"{text!r}: source {before}, tare on the file {ours}, llama.cpp {theirs}"
    return len(TEXTS)


def check(tare, source, form):
    name = source.rstrip("/").rsplit("/", 1)[-1].replace(":", "-").replace("?", "-")
    path = tare.work / f"{name}-{form}.gguf"
    path.unlink(missing_ok=True)
    command = [tare.binary, "quantize", "-m", source, "--format", form, "-o", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        assert "multiples of 32" in done.stderr, done.stderr
        return f"refused: {done.stderr.strip()}"
    written, plain = Witness(path), tare.work / "dequantized.gguf"
    draw = random.Random(form + name)
    prompts = [[draw.randrange(written.size) for _ in range(n)] for n in PROMPTS]
    dequantized(path, plain)
    exact = Witness(plain)
    close, ids = compare(tare, path, exact, EXACT, prompts)
    worst, certain = compare(tare, path, written, LIMITS[form], prompts)
    texts = compare_texts(tare, source, path, written)
    exact.close()
    written.close()
    plain.unlink()
    path.unlink()
    return f"dequantized to F32 {close:.1e}, {ids} ids; as written {worst:.1e}, {certain} ids; {texts} texts"


def main():
    binary, work, *sources = sys.argv[1:]
    tare = Tare(binary, Path(work))
    llama_cpp.llama_log_set(errors_only, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    failed = 0
    for source in sources:
        for form in LIMITS:
            try:
                print(f"ok    {source} {form}: {check(tare, source, form)}", flush=True)
            except AssertionError as fault:
                failed += 1
                print(f"FAIL  {source} {form}: {fault}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
