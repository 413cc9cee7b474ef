use serde_json::Value;
use tare_evidence::canonical;

/// The traces come with a digest that Python computed over their canonical JSON.
#[test]
fn canonical_digests_are_those_of_python() {
    let traces = [include_str!("../data/chunked-8.json"), include_str!("../data/serving-16.json")];
    for (text, requests) in traces.into_iter().zip([8, 16]) {
        let file: Value = serde_json::from_str(text).unwrap();
        let trace = &file["request_trace"];
        assert_eq!(trace.as_array().unwrap().len(), requests);
        assert_eq!(file["request_trace_sha256"], canonical::digest(trace));
    }
}
