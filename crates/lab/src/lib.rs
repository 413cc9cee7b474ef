//! The laboratory: clocks, gates, floors and the loop that finds the next bottleneck.
