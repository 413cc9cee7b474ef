use crate::specimen;
use serde_json::{Map, Value, json};
use tare_evidence::Record;
use tare_evidence::canonical;
use tare_evidence::compare::{NotComparable, arm_differences, comparable, same_work};
use tare_evidence::identity::Work;

/// Another value that the field accepts: tried one after the other until the work still reads.
fn changed(fields: &Map<String, Value>, name: &str) -> Work {
    let old = &fields[name];
    let candidates = match old {
        Value::Number(n) => vec![json!(n.as_u64().unwrap() + 1)],
        Value::Array(_) => vec![json!([77])],
        Value::Object(_) => vec![json!({ "temperature": 0.5 })],
        _ => ["last", "all", "ignore", "stop", "warm", "cold", "other"].map(|s| json!(s)).to_vec(),
    };
    let works = candidates.into_iter().filter(|c| c != old).filter_map(|candidate| {
        let mut fields = fields.clone();
        fields.insert(name.into(), candidate);
        serde_json::from_value(Value::Object(fields)).ok()
    });
    works.into_iter().next().unwrap_or_else(|| panic!("no other value found for `{name}`"))
}

#[test]
fn each_field_of_the_work_alone_refuses_comparison_by_name() {
    let work = specimen::work();
    let Value::Object(fields) = canonical::value_of(&work).unwrap() else { panic!("a work is an object") };
    assert!(same_work(&work, &work.clone()).is_ok());
    for name in fields.keys() {
        let other = changed(&fields, name);
        let error = same_work(&work, &other).unwrap_err();
        let text = error.to_string();
        let NotComparable::Work(mismatch) = error else { panic!("{text}") };
        assert_eq!(mismatch.differences.len(), 1, "{text}");
        let difference = &mismatch.differences[0];
        assert_eq!(&difference.field, name);
        let new = canonical::value_of(&other).unwrap();
        assert_eq!(
            (&difference.left, &difference.right),
            (&canonical::text(&fields[name]), &canonical::text(&new[name]))
        );
        assert!(text.contains(name.as_str()) && text.contains(&difference.left) && text.contains(&difference.right));
    }
}

#[test]
fn all_differing_fields_are_named_at_once() {
    let work = specimen::work();
    let other = Work { depth: 9, shape: "llama-tiny".into(), ..work.clone() };
    let text = same_work(&work, &other).unwrap_err().to_string();
    assert!(
        text.contains("depth: 0 against 9") && text.contains(r#"shape: "qwen3-tiny" against "llama-tiny""#),
        "{text}"
    );
}

#[test]
fn campaigns_and_failed_gates_stand_in_the_way() {
    let record = specimen::record();
    assert!(comparable(&record, &record).is_ok());
    let mut draft = specimen::draft(specimen::passed());
    draft.about.campaign = "2026-03-02-a".into();
    let later = Record::seal(draft).unwrap();
    let text = comparable(&record, &later).unwrap_err().to_string();
    assert!(text.contains("2026-03-01-a") && text.contains("2026-03-02-a") && text.contains("one campaign"), "{text}");
    let error = comparable(&record, &specimen::void_record()).unwrap_err();
    assert!(matches!(error, NotComparable::NoTimings(_)), "{error}");
}

#[test]
fn arms_may_differ_and_say_where() {
    let a = specimen::record().arm;
    let mut b = a.clone();
    b.head_format = "bf16".into();
    let differences = arm_differences(&a, &b).unwrap();
    assert_eq!(differences[0].to_string(), r#"head_format: "w4g128" against "bf16""#);
    assert_eq!(differences.len(), 1);
}
