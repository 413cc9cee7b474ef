"""What the shim uses of OpenVINO, over a graph whose next token follows from all that its state holds.

logits: 1 at (1 * t0 + 2 * t1 + 3 * t2 + ...) mod vocabulary of the tokens so far, 0 elsewhere. Whatever is not given as a
stateful graph wants it is an error, as is a head that is computed for more rows than the last.
"""

import json


class Type:
    def __init__(self, name):
        self.name = name

    def get_type_name(self):
        return self.name


Type.i64, Type.i32, Type.u8, Type.bf16, Type.f32 = (Type(n) for n in ("i64", "i32", "u8", "bf16", "f32"))
Shape = list


def get_version():
    return "stand-in"


class Tensor:
    def __init__(self, kind, shape):
        self.kind, self.shape, self.data = kind, shape, []


class Row:
    """The logits of the rows that the head saw, flattened."""

    def __init__(self, values):
        self.values = values

    def reshape(self, _):
        return self

    def argmax(self):
        return self.values.index(max(self.values))

    def __getitem__(self, i):
        return self.values[i]


class Node:
    """An operation, and the only output of it."""

    def __init__(self, kind, name="", inputs=(), element=None, shape=()):
        self.kind, self.name, self.inputs, self.element, self.shape = kind, name, list(inputs), element, shape

    def get_type_name(self):
        return self.kind

    def get_friendly_name(self):
        return self.name

    def get_element_type(self):
        return Type(self.element)

    def get_node(self):
        return self

    def output(self, _):
        return self

    def input_value(self, i):
        return self.inputs[i]

    def input(self, i):
        return Input(self, i)


class Input:
    def __init__(self, node, i):
        self.node, self.i = node, i

    def replace_source_output(self, output):
        self.node.inputs[self.i] = output


class Dimension:
    def __init__(self, n):
        self.n = n

    def get_length(self):
        return self.n


class Result(Node):
    def __init__(self, source, vocab):
        super().__init__("Result", "logits", [source])
        self.partial_shape = [Dimension(-1), Dimension(-1), Dimension(vocab)]


def packed(name, rows, columns, element, group=None):
    """A matrix as NNCF leaves it: quants, zero points where they are unsigned, scales."""
    groups = (rows, columns // group, 1) if group else (rows, 1)
    quants = Node("Convert", "", [Node("Constant", name, element=element, shape=(rows, columns))])
    if element == "u8":
        zero = Node("Convert", "", [Node("Constant", f"{name}/zero_point", element="u8", shape=groups)])
        quants = Node("Subtract", "", [quants, zero])
    scale = Node("Constant", f"{name}/scale", element="f16", shape=groups)
    return Node("Convert", "", [Node("Reshape", "", [Node("Multiply", "", [quants, scale])])])


class Model:
    def __init__(self, about):
        self.vocab, self.about = about["vocab"], about
        tokens = Node("Parameter", "input_ids")
        layer = Node("MatMul", "layer", [tokens, packed("layer.weight", 64, 256, about["element"], 128)])
        scores = Node("MatMul", "attention", [layer, Node("Multiply", "", [tokens, layer])])
        self.head = Node("MatMul", "head", [scores, packed("head.weight", self.vocab, 64, "u8")])
        made = self.head if about["head"] == "product" else Node(about["head"], "other", [self.head])
        self.outputs = [Result(made, self.vocab)]
        self.nodes = [tokens, layer, scores, self.head]

    def get_ops(self):
        return self.nodes

    def validate_nodes_and_infer_types(self):
        rows = self.head.input_value(0)
        self.only_last = rows.kind == "Gather" and [c.value for c in rows.inputs[1:]] == [[-1], 1]


class Core:
    def read_model(self, path):
        with open(path) as f:
            return Model(json.load(f))

    def compile_model(self, model, device, properties):
        return Compiled(model, device, properties)


class Text:
    def __init__(self, value):
        self.value = value

    def astype(self, kind):
        return kind(self.value)


class Layer:
    def __init__(self, **about):
        self.about = {k: Text(v) for k, v in about.items()}

    def get_rt_info(self):
        return self.about


class Compiled:
    def __init__(self, model, device, properties):
        assert device == "CPU"
        self.model = model
        self.inputs = []
        self.found = {
            "INFERENCE_PRECISION_HINT": Type.bf16,
            "KV_CACHE_PRECISION": Type.u8,
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 32,
            "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": True,
        }
        for name, value in properties.items():
            kind = {"bf16": Type.bf16, "f32": Type.f32, "u8": Type.u8}.get(value, value)
            self.found[name] = kind

    def get_property(self, name):
        return self.found[name]

    def create_infer_request(self):
        return Request(self.model)

    def get_runtime_model(self):
        precision = self.found["INFERENCE_PRECISION_HINT"].name
        product = Layer(layerType="FullyConnected", primitiveType=f"brgemm_{precision}", runtimePrecision="i4")
        return Graph([product, product, Layer(layerType="Reorder", primitiveType="jit", runtimePrecision=precision)])


class Graph:
    def __init__(self, nodes):
        self.nodes = nodes

    def get_ops(self):
        return self.nodes


class Request:
    def __init__(self, model):
        self.model, self.state, self.given = model, [], {}

    def reset_state(self):
        self.state = []

    def set_tensor(self, name, tensor):
        self.given[name] = tensor

    def infer(self):
        ids = list(self.given["input_ids"].data[0])
        before, after = len(self.state), len(self.state) + len(ids)
        wanted = {
            "input_ids": ("i64", [1, len(ids)], ids),
            "attention_mask": ("i64", [1, after], [1] * after),
            "position_ids": ("i64", [1, len(ids)], list(range(before, after))),
            "beam_idx": ("i32", [1], 0),
        }
        for name, expected in wanted.items():
            tensor = self.given.pop(name)
            first = tensor.data[0]
            found = (tensor.kind.name, list(tensor.shape), first if first == 0 else list(first))
            assert found == expected, f"{name}: expected {expected}, found {found}"
        assert not self.given, f"unknown inputs {list(self.given)}"
        assert self.model.only_last, "the head is computed for every row"
        self.state += ids

    def get_output_tensor(self, _):
        drawn = sum((i + 1) * t for i, t in enumerate(self.state)) % self.model.vocab
        tensor = Tensor(Type.f32, [1, 1, self.model.vocab])
        tensor.data = Row([float(i == drawn) for i in range(self.model.vocab)])
        return tensor
