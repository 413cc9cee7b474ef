//! One file for each command.

pub(crate) mod accuracy;
pub(crate) mod after;
pub(crate) mod arm;
pub(crate) mod chat;
pub(crate) mod clock;
pub(crate) mod clock_url;
pub(crate) mod compare;
pub(crate) mod decide;
pub(crate) mod doctor;
pub(crate) mod inspect;
pub(crate) mod ledger;
pub(crate) mod logits;
pub(crate) mod mutate;
pub(crate) mod next;
pub(crate) mod ops;
pub(crate) mod peers;
pub(crate) mod perplexity;
pub(crate) mod pull;
pub(crate) mod quantize;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod study;
pub(crate) mod text;
pub(crate) mod translate;
