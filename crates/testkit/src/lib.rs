//! Shared by tests alone: golden files, tolerances, stand-in servers.
