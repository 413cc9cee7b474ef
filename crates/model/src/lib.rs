//! One decoder for every dense family: architecture table, weight map, planner, synthetic models.
