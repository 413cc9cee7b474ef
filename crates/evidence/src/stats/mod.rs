//! The one statistics module of tare. Everything is a pure function of its arguments, the seed included.

mod holm;
mod order;
mod power;
mod random;
mod sign_flip;
mod verdict;

pub use holm::holm;
pub use order::{
    geometric_mean, mad, median, nearest_rank, outliers, paired_log_ratios, quantile_type7, standard_deviation,
};
pub use power::{Terms, Verdicts, power_of, samples_for_power, simulate_no_difference};
pub use sign_flip::{Interval, TooFewRounds, interval, least_rounds, p_value};
pub use verdict::{Comparison, EqualArms, Ruling, Verdict, judge};
