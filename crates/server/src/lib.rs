//! OpenAI-compatible HTTP in front of the engine.
