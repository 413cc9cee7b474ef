//! What the host is and how it behaves: processor, memory, counters, ceilings.
