"""The operations that the shim adds to a graph."""

from openvino import Node, Type


def constant(value, kind):
    assert kind is Type.i64
    node = Node("Constant", element=kind.name)
    node.value = value
    return node


def gather(rows, at, axis):
    return Node("Gather", "", [rows, at, axis])
