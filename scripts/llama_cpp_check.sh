#!/usr/bin/env bash
# Proves that llama.cpp reads what `tare quantize` writes, and computes the same from it.
#
#     scripts/llama_cpp_check.sh [MODEL...]        default: the tiny golden models and synthetic:llama-tiny
#
# For each model and each of f32, f16, bf16, q8_0 and q4_0, llama.cpp loads the file. On the file's values dequantized to
# F32 its logits at every position are within 3e-4 of `tare logits --class f32`. On the file as written, where llama.cpp
# rounds activations, they are within 3e-4 (f32), 0.05 (f16), 0.5 (bf16) or 1.0 (q8_0, q4_0) of logits that spread over
# about 4. Greedy ids agree up to the first step whose lead is below that limit. A model with a tokenizer turns the same
# texts into the same ids before and after, and in llama.cpp.
# A format that a model's widths do not admit (columns in multiples of 32) is printed as refused.
#
# Needs Python 3 and network, or PYTHON naming an interpreter that has llama-cpp-python 0.3.36, gguf, numpy and
# safetensors. llama-cpp-python is built from source: a C++ compiler, and about 15 minutes on two cores.
# TARE names the binary (default: target/release/tare); WORK the folder of the environment and of temporary files
# (default: target/llama-cpp).
set -euo pipefail
cd "$(dirname "$0")/.."

TARE=${TARE:-target/release/tare}
WORK=${WORK:-target/llama-cpp}
mkdir -p "$WORK"
if [ -z "${PYTHON:-}" ]; then
  PYTHON=$WORK/venv/bin/python
  if [ ! -x "$PYTHON" ]; then
    python3 -m venv "$WORK/venv"
    "$PYTHON" -m pip install --quiet --no-binary llama-cpp-python llama-cpp-python==0.3.36 gguf==0.19.0 numpy safetensors
  fi
fi
if [ $# -eq 0 ]; then
  set -- goldens/models/*/ synthetic:llama-tiny
fi
exec "$PYTHON" scripts/llama_cpp_check.py "$TARE" "$WORK" "$@"
