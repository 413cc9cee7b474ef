"""A model for OpenVINO, by its own tools, and the values that it then has, for whoever computes beside it.

usage: convert.py MODEL.gguf FORMAT FOLDER

The graph is made as `optimum-cli export openvino --weight-format ...` makes it: traced by optimum-intel, packed by NNCF
from the weights alone. NNCF's groups are affine, so that its quants, scales and zero points are written once more as an
MLX folder has them, to the bit: the judge scores those values, and another engine can run on them.
"""

import json
import os
import sys
import tempfile

import numpy
import openvino
import torch
from gguf import GGUFReader
from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig
from safetensors.numpy import save_file
from transformers import AutoConfig, AutoModelForCausalLM

# OpenVINO's own choices for a processor: `--weight-format int4 --group-size 128 --sym --ratio 1.0`, where embedding and head
# get 8 bits, and `--weight-format int8`.
PACKINGS = {
    "openvino-int4": {"bits": 4, "sym": True, "group_size": 128, "ratio": 1.0},
    "openvino-int8": {"bits": 8, "sym": False},
}
# Weights of a group in the MLX folder. A row of 8 bits has one scale, which its groups repeat.
GROUP = 128


def main(source, name, folder):
    if name not in PACKINGS:
        raise ValueError(f"format: expected one of {', '.join(PACKINGS)}, found {name}")
    place, file = os.path.split(os.path.abspath(source))
    config = AutoConfig.from_pretrained(place, gguf_file=file)
    if config.model_type != "qwen3":
        raise ValueError(f"model: expected qwen3, whose file says all that the loader needs, found {config.model_type}")
    # The loader leaves the size of a head at its default.
    size = GGUFReader(source).get_field(f"{config.model_type}.attention.key_length")
    if size is not None:
        config.head_dim = int(size.contents())
    model = AutoModelForCausalLM.from_pretrained(place, gguf_file=file, config=config, dtype=torch.bfloat16)
    vectors = {n: p.detach().float().numpy() for n, p in model.named_parameters() if p.ndim == 1}
    with tempfile.TemporaryDirectory(dir=".") as plain:
        model.save_pretrained(plain)
        del model
        packing = OVWeightQuantizationConfig(**PACKINGS[name])
        made = OVModelForCausalLM.from_pretrained(plain, export=True, compile=False, quantization_config=packing)
        made.save_pretrained(folder)
        del made
    graph = openvino.Core().read_model(os.path.join(folder, "openvino_model.xml"))
    tensors, bits = packed(graph)
    save_file({**tensors, **vectors}, os.path.join(folder, "model.safetensors"), {"format": "mlx"})
    path = os.path.join(folder, "config.json")
    with open(path) as f:
        config = json.load(f)
    smallest = min(bits.values())
    own = {module: {"bits": b, "group_size": GROUP} for module, b in bits.items() if b != smallest}
    config["quantization"] = {"bits": smallest, "group_size": GROUP, **own}
    with open(path, "w") as f:
        json.dump(config, f, indent=2)


def packed(graph):
    """Tensors of every packed matrix of the graph as an MLX folder names them, and the bits of each module.

    value = scale * (quant - zero) = scale * quant + bias with bias = -scale * zero, exact in F32: a scale has 11 bits and
    a zero point at most 8.
    """
    constants = {o.get_friendly_name(): o for o in graph.get_ops() if o.get_type_name() == "Constant"}
    tensors, bits = {}, {}
    for name, quants in constants.items():
        scale = constants.get(f"{name}/scale")
        if scale is None:
            continue
        module = name.removeprefix("self.").removesuffix("._openvino_orig_weight").removesuffix(".weight")
        kind = quants.get_element_type().get_type_name()
        rows = quants.shape[0]
        columns = int(numpy.prod(quants.shape[1:]))
        raw = quants.data.view(numpy.uint8).reshape(rows, -1)
        scales = scale.data.astype(numpy.float32).reshape(rows, -1)
        zero = constants.get(f"{name}/zero_point")
        if kind == "i4" and zero is None:
            # Two's complement to 0 to 15: the highest bit of both quants of a byte.
            raw, zeros, bits[module] = raw ^ 0x88, numpy.full_like(scales, 8), 4
        elif kind == "u8" and zero is not None:
            zeros, bits[module] = zero.data.astype(numpy.float32).reshape(rows, -1), 8
        else:
            with_zero = "without" if zero is None else "with"
            raise ValueError(f"{module}: expected i4 without zero points or u8 with them, found {kind} {with_zero}")
        if columns % GROUP or columns // GROUP % scales.shape[1]:
            raise ValueError(f"{module}: expected groups of {GROUP} or whole rows, found {scales.shape[1]} of {columns}")
        again = columns // GROUP // scales.shape[1]
        scales, biases = (numpy.repeat(v, again, axis=1) for v in (scales, -scales * zeros))
        words = numpy.ascontiguousarray(raw).view(numpy.uint32)
        tensors |= {f"{module}.weight": words, f"{module}.scales": scales, f"{module}.biases": biases}
    if not tensors:
        raise ValueError("graph: expected packed matrices, found none")
    return tensors, bits


if __name__ == "__main__":
    main(*sys.argv[1:])
