//! The inference engine: KV storage, pure scheduler, runner.
