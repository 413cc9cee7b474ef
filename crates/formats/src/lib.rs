//! Model files: safetensors, GGUF and MLX folders, their block codecs and quantizers.
