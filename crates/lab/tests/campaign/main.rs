//! Campaigns, without processes and without time.

mod closing;
mod running;
mod scripted;
