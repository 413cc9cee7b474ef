"""OpenVINO's runtime behind the shim protocol: a folder that `convert.py` made.

Not the pipeline of OpenVINO GenAI: it answers when all is drawn, so that turns cannot be held apart, and shows no logit.
The graph is the one that the pipeline loads. As there, the head is computed for the last token alone, and keys and values
stay in the graph's state; nothing of one request is kept for the next.
"""

import os

import openvino
from openvino import opset13

from protocol import TokenByToken, cpu_ns, now_ns, resident_bytes, serve

# What may be set, and what is set when nothing is asked for; nothing is the runtime's own default.
DEFAULTS = {"hint": "LATENCY", "pinning": None, "precision": None, "kv": None, "groups": None}
# Kinds of layers of a compiled graph that tell how it computes: products, attention over the cache, what is fused.
TELLING = ("FullyConnected", "MatMul", "ScaledDotProductAttentionWithKVCache", "RoPE", "RMS", "LLMMLP", "QKVProjection")
# Bits of the elements of packed matrices, and of what unpacks them.
BITS = {"i4": 4, "u4": 4, "i8": 8, "u8": 8, "f16": 16, "bf16": 16, "f32": 32}


class Engine(TokenByToken):
    def load(self, ask):
        unknown = ask["settings"].keys() - DEFAULTS.keys()
        if unknown:
            raise ValueError(f"settings: expected some of {', '.join(DEFAULTS)}, found {', '.join(unknown)}")
        settings = {**DEFAULTS, **ask["settings"]}
        graph = os.path.join(ask["model"], "openvino_model.xml")
        if not os.path.isfile(graph):
            raise ValueError(f"model: expected a folder with openvino_model.xml (`--written-as`), found {ask['model']}")
        core = openvino.Core()
        model = core.read_model(graph)
        head = head_of(model)
        layers, head_bits, streamed = packing(model, head)
        only_last_token(model, head)
        wanted = {
            "PERFORMANCE_HINT": settings["hint"],
            "INFERENCE_NUM_THREADS": ask["threads"],
            "ENABLE_CPU_PINNING": settings["pinning"],
            "INFERENCE_PRECISION_HINT": settings["precision"],
            "KV_CACHE_PRECISION": settings["kv"],
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": settings["groups"],
        }
        compiled = core.compile_model(model, "CPU", {k: v for k, v in wanted.items() if v is not None})
        self.request = compiled.create_infer_request()
        self.context = ask["context"]
        # Kernels are chosen when a graph runs for the first time.
        self.used = 0
        self.run([0])
        found = {name: text(compiled.get_property(name)) for name in (*wanted, "NUM_STREAMS")}
        chosen = layers_of(compiled)
        return {
            "name": "openvino",
            "version": openvino.get_version(),
            "class": {
                "weight_bits": layers,
                "head_bits": head_bits,
                "activation_bits": activation_bits(chosen, found["DYNAMIC_QUANTIZATION_GROUP_SIZE"]),
                "kv": found["KV_CACHE_PRECISION"],
                "sums": "f32",
            },
            "streamed_bytes": streamed,
            "vocab": model.outputs[0].partial_shape[2].get_length(),
            "logits": True,
            "proof": [f"{n} x {' '.join(layer)}" for layer, n in sorted(chosen.items())],
            "settings": {**settings, "found": found},
        }

    def run(self, ids):
        """The arg max after `ids` and its logit."""
        end = self.used + len(ids)
        if end > self.context:
            raise ValueError(f"the context of {self.context} tokens is full")
        self.give("input_ids", "i64", [ids])
        self.give("attention_mask", "i64", [[1] * end])
        self.give("position_ids", "i64", [range(self.used, end)])
        self.give("beam_idx", "i32", [0])
        self.request.infer()
        self.used = end
        row = self.request.get_output_tensor(0).data.reshape(-1)
        self.last = int(row.argmax())
        return float(row[self.last])

    def give(self, name, kind, values):
        shape = [len(values), len(values[0])] if isinstance(values[0], (list, range)) else [len(values)]
        tensor = openvino.Tensor(getattr(openvino.Type, kind), openvino.Shape(shape))
        tensor.data[:] = values
        self.request.set_tensor(name, tensor)

    def begin(self):
        self.request.reset_state()
        self.used = 0

    def finish(self, ask):
        resident = resident_bytes()
        cpu = cpu_ns() - self.cpu
        start = now_ns()
        self.request.reset_state()
        return {"release_ns": now_ns() - start, "cpu_ns": cpu, "rss_bytes": resident}

    def rest(self, ask):
        # Its workers sleep by themselves between two inferences.
        return {}


def head_of(model):
    """The product that makes the logits."""
    node = model.outputs[0].get_node().input_value(0).get_node()
    while node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    if node.get_type_name() != "MatMul":
        raise ValueError(f"graph: expected logits from a MatMul, found {node.get_type_name()}")
    return node


def only_last_token(model, head):
    """Lets the head see the last token alone."""
    rows = head.input_value(0)
    last = opset13.gather(rows, opset13.constant([-1], openvino.Type.i64), opset13.constant(1, openvino.Type.i64))
    head.input(0).replace_source_output(last.output(0))
    model.validate_nodes_and_infer_types()


def constants(output):
    """What a matrix is unpacked from: quants first, then zero points and scales."""
    node = output.get_node()
    kind = node.get_type_name()
    if kind == "Constant":
        return [node]
    inputs = {"Convert": 1, "Reshape": 1, "Subtract": 2, "Multiply": 2}.get(kind, 0)
    return [c for i in range(inputs) for c in constants(node.input_value(i))]


def packing(model, head):
    """Mean bits of a weight of the layers, bits of one of the head, and bytes of all that a token reads."""
    weights = {True: 0, False: 0}
    bits = {True: 0, False: 0}
    for node in model.get_ops():
        parts = constants(node.input_value(1)) if node.get_type_name() == "MatMul" else []
        kinds = [p.get_element_type().get_type_name() for p in parts]
        if kinds and kinds[0] in ("i4", "u4", "i8", "u8"):
            is_head = node.get_friendly_name() == head.get_friendly_name()
            sizes = [size(p.shape) for p in parts]
            weights[is_head] += sizes[0]
            bits[is_head] += sum(n * BITS[kind] for n, kind in zip(sizes, kinds))
    if not weights[True] or not weights[False]:
        raise ValueError("graph: expected packed layers and a packed head, found others")
    return bits[False] / weights[False], bits[True] / weights[True], (bits[True] + bits[False]) // 8


def size(shape):
    n = 1
    for d in shape:
        n *= d
    return n


def text(value):
    """A property in words: a type by its short name, a number as it is."""
    if isinstance(value, openvino.Type):
        return value.get_type_name()
    return value if isinstance(value, (bool, int, str)) else str(value).split(".")[-1]


def layers_of(compiled):
    """How many layers of the compiled graph have each kind, kernel and precision, of those that tell."""
    found = {}
    for node in compiled.get_runtime_model().get_ops():
        about = node.get_rt_info()
        layer = tuple(about[k].astype(str) for k in ("layerType", "primitiveType", "runtimePrecision") if k in about)
        if layer and layer[0] in TELLING:
            found[layer] = found.get(layer, 0) + 1
    return found


def activation_bits(layers, groups):
    """Bits that the products round their activations to: kernels end in the type that they compute in.

    In F32 the runtime rounds activations of packed products to 8 bits, in groups, unless these have no length.
    """
    kinds = {layer[1].rsplit("_", 1)[-1] for layer in layers if layer[0] == "FullyConnected"}
    bits = {"bf16": 16, "f16": 16, "f32": 8 if groups else 32}
    if len(kinds) != 1 or not kinds <= bits.keys():
        raise ValueError(f"graph: expected all packed products in one of {', '.join(bits)}, found {sorted(kinds)}")
    return bits[kinds.pop()]


serve(Engine())
