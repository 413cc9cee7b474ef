//! Whether what was measured again says the same, and whether what was written still counts here.

use crate::{specimen, specimen_campaign};
use tare_evidence::campaign::CampaignOutcome;
use tare_evidence::present::Present;
use tare_evidence::provenance::Host;
use tare_evidence::replicate::{self, Replication};
use tare_evidence::ruling::Ruled;
use tare_evidence::{Record, canonical};

fn record(change: impl FnOnce(&mut tare_evidence::Draft)) -> Record {
    let mut draft = specimen::draft(specimen::passed());
    change(&mut draft);
    Record::seal(draft).unwrap()
}

#[test]
fn a_record_replicates_when_its_rates_overlap() {
    let first = record(|_| {});
    assert_eq!(replicate::record(&first, &first).unwrap(), Replication::Replicates);
    let slower = record(|d| {
        for round in &mut d.measured.samples.rounds {
            round.timing.token_ns.iter_mut().for_each(|ns| *ns = *ns * 13 / 10);
        }
    });
    let Replication::DoesNotReplicate { why } = replicate::record(&first, &slower).unwrap() else { panic!("30 %") };
    assert!(why.len() == 1 && why[0].starts_with("decode: "), "{why:?}");
    let Replication::DoesNotReplicate { why } = replicate::record(&first, &specimen::void_record()).unwrap() else {
        panic!("its gate failed")
    };
    assert_eq!(why, ["the gate failed"]);
    let elsewhere = record(|d| {
        let mut class = d.provenance.host.class.clone();
        class.insert("cores".into(), tare_core::Reading::Available(serde_json::json!(64)));
        d.provenance.host = Host::new("vm-64core", class, d.provenance.host.state.clone()).unwrap();
    });
    assert_eq!(replicate::record(&first, &elsewhere).unwrap(), Replication::OtherHostClass);
    let other = record(|d| d.work.shape = "another".into());
    assert!(replicate::record(&first, &other).unwrap_err().to_string().contains("--model"));
}

fn ruled() -> Ruled {
    let (opening, records) = (specimen_campaign::opening(), specimen_campaign::records());
    match specimen_campaign::body(&opening, &records).outcome {
        CampaignOutcome::Ruled(ruled) => ruled,
        CampaignOutcome::Unruled { why } => panic!("{why}"),
    }
}

#[test]
fn a_campaign_replicates_when_its_intervals_overlap() {
    let first = ruled();
    assert_eq!(replicate::campaign(&first, &first), Replication::Replicates);
    let mut none = first.clone();
    none.rulings[0].interval = tare_core::Reading::Available(tare_evidence::stats::Interval { low: -0.01, high: 0.01 });
    let Replication::DoesNotReplicate { why } = replicate::campaign(&first, &none) else { panic!("no overlap") };
    assert!(why[0].starts_with("fused: "), "{why:?}");
    let mut turned = first.clone();
    turned.rulings[0].verdict = tare_evidence::stats::Verdict::Reject;
    let Replication::DoesNotReplicate { why } = replicate::campaign(&first, &turned) else { panic!("it turned") };
    assert_eq!(why, ["fused: keep, then reject"]);
    none.rulings.clear();
    let Replication::DoesNotReplicate { why } = replicate::campaign(&first, &none) else { panic!("no ruling") };
    assert_eq!(why, ["fused: not ruled again"]);
}

#[test]
fn what_has_moved_on_is_named() {
    let record = record(|_| {});
    let here = Present {
        host_class_sha256: canonical::digest_of(&record.provenance.host.class).unwrap(),
        thresholds_version: "1".into(),
    };
    assert!(here.reopens(&record).is_empty());
    let there = Present { host_class_sha256: "00".repeat(32), thresholds_version: "2".into() };
    let why = there.reopens(&record);
    assert!(why.len() == 2 && why[0].contains("vm-2core") && why[1].contains("gate limits 1, now 2"), "{why:?}");
    let old = Record::parse(include_str!("../data/record-v1.json")).unwrap();
    assert!(here.reopens(&old).iter().any(|w| w == "schema 1, now 2"));
}
