//! How often threads of an arm sat out, because other processes kept their processors busy: a condition of its times.

use crate::provenance::Host;
use serde_json::Value;
use std::fmt;
use tare_core::Reading;

/// The fact of a host's state that tells it, once for each process of an arm.
const FACT: &str = "benched_after_requests";

/// All processes of an arm together, in at least one of which threads sat out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SatOut {
    /// Parallel regions that ran: a step is one.
    pub regions: u64,
    /// Those that ran on fewer threads than there are.
    pub short: u64,
    /// How many threads were missing at once at most.
    pub most: u64,
}

impl SatOut {
    /// The sum of what processes tell: regions, short ones, most threads out. None when nobody sat out in any.
    pub fn sum(processes: impl Iterator<Item = (u64, u64, u64)>) -> Option<Self> {
        let none = Self { regions: 0, short: 0, most: 0 };
        let all = processes.fold(none, |all, (regions, short, most)| Self {
            regions: all.regions + regions,
            short: all.short + short,
            most: all.most.max(most),
        });
        (all.short > 0).then_some(all)
    }

    /// What a record of `host` says; none where nobody sat out, or where the record says nothing of it.
    pub fn of(host: &Host) -> Option<Self> {
        let Some(Reading::Available(Value::Array(processes))) = host.state.get(FACT) else { return None };
        let number = |process: &Value, name: &str| process.get(name)?.as_u64();
        let told = |p: &Value| Some((number(p, "regions")?, number(p, "short")?, number(p, "most")?));
        Self::sum(processes.iter().filter_map(told))
    }
}

impl fmt::Display for SatOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { regions, short, most } = self;
        write!(
            f,
            "threads waited for their processors: {short} of {regions} parallel regions ran without up to {most} of the threads"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::collections::BTreeMap;

    fn host(state: Option<Value>) -> Host {
        let state = state.map(|value| (FACT.to_string(), Reading::Available(value)));
        Host::new("a-host", BTreeMap::new(), state.into_iter().collect()).unwrap()
    }

    #[test]
    fn processes_of_a_record_are_summed_and_silence_is_none() {
        let all = json!([
            { "regions": 10, "short": 0, "most": 0 },
            { "unavailable": "workers are not bound" },
            { "regions": 30, "short": 4, "most": 2 },
        ]);
        let found = SatOut::of(&host(Some(all))).unwrap();
        assert_eq!(found, SatOut { regions: 40, short: 4, most: 2 });
        assert!(found.to_string().contains("4 of 40 parallel regions ran without up to 2 of the threads"), "{found}");
        let whole = json!([{ "regions": 10, "short": 0, "most": 0 }]);
        assert_eq!(SatOut::of(&host(Some(whole))), None);
        assert_eq!(SatOut::of(&host(None)), None, "a record of before this was kept");
    }
}
