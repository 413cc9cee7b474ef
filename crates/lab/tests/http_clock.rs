//! The client against a server that does what servers do: role chunks, several tokens in a chunk, templates, refusals,
//! streams that break.

mod stand_in;

use serde_json::{Value, json};
use stand_in::{Act, Seen, StandIn, chunk, done, event, head, plain, usage};
use std::time::Duration;
use tare_core::Reading;
use tare_lab::http_clock::{Address, Ask, Endpoint, Extra, HttpClock};

/// Long against what a test does, short against what a person waits.
const SILENCE: Duration = Duration::from_secs(20);
/// Waits of the server that a client must not lose, in milliseconds.
const FIRST_MS: u64 = 60;

fn ask() -> Ask {
    Ask { ids: vec![5, 6, 7], output_tokens: 3 }
}

fn reach(server: &StandIn, silence: Duration) -> HttpClock {
    let address = Address { url: server.url.clone(), key: None, silence };
    HttpClock::reach(&address, None).unwrap()
}

fn settled(server: &StandIn) -> HttpClock {
    let mut clock = reach(server, SILENCE);
    clock.settle(&ask(), None, &|| true).unwrap();
    clock
}

/// What the client says when the first request goes wrong.
fn complaint(script: impl Fn(&Seen) -> Vec<Act> + Send + Sync + 'static, silence: Duration) -> String {
    let server = StandIn::start(script);
    reach(&server, silence).settle(&ask(), None, &|| true).unwrap_err().to_string()
}

fn text(text: &str) -> Act {
    event(&json!({ "choices": [{ "text": text }] }))
}

fn delta(delta: Value) -> Act {
    event(&json!({ "choices": [{ "delta": delta }] }))
}

#[test]
fn the_first_token_is_not_the_role_chunk_and_not_between_tokens() {
    let server = StandIn::start(|seen| match seen.path.as_str() {
        "/v1/chat/completions" => vec![
            head(),
            delta(json!({ "role": "assistant", "content": "" })),
            Act::Wait(FIRST_MS),
            delta(json!({ "content": "a" })),
            delta(json!({ "content": "b" })),
            delta(json!({ "content": "c" })),
            delta(json!({})),
            usage(12, 3),
            done(),
        ],
        _ => vec![plain("404 Not Found", "", &json!({ "error": { "message": "no such path" } }))],
    });
    let clock = settled(&server);
    assert_eq!(clock.endpoint(), Endpoint::Chat);
    let round = clock.round(&ask(), &|| true).unwrap();
    let wait_ns = FIRST_MS * 1_000_000;
    assert!(round.ttft_ns >= wait_ns, "TTFT {} is that of the role chunk", round.ttft_ns);
    assert!(round.first_chunk_ns < round.ttft_ns);
    assert_eq!((round.chunks, round.between_chunks_ns.len()), (3, 2));
    assert!(round.end_to_end_ns >= round.ttft_ns + round.decode_ns());
    assert_eq!(round.prompt_tokens, Reading::Available(12));
    assert!(round.template_tokens.available().is_none(), "of a text nobody knows how many tokens were sent");
}

#[test]
fn tokens_are_counted_by_the_server_and_not_by_chunks() {
    let server = StandIn::start(|_| vec![head(), text("ab"), text("cde"), usage(4, 5), done()]);
    let round = settled(&server).round(&ask(), &|| true).unwrap();
    assert_eq!((round.chunks, round.tokens), (2, Reading::Available(5)));
    assert_eq!(round.tokens_after_first_chunk, Reading::Available([1, 4]));
    assert!(round.inter_token_ns.available().is_none());
    assert_eq!(round.template_tokens, Reading::Available(1), "4 tokens counted, 3 ids sent");
    assert_eq!(round.cached_tokens, Reading::Available(0));
}

#[test]
fn events_that_share_a_packet_or_are_split_over_two_are_the_same_events() {
    let two = "data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"choices\":[{\"text\":\"b\"}]}\n\n";
    let (left, right) = two.split_at(20);
    let (left, right) = (left.to_string(), right.to_string());
    let server = StandIn::start(move |_| vec![head(), chunk(&left), Act::Wait(5), chunk(&right), usage(3, 2), done()]);
    let round = settled(&server).round(&ask(), &|| true).unwrap();
    assert_eq!((round.chunks, round.tokens), (2, Reading::Available(2)));
    assert_eq!(round.between_chunks_ns, [0], "both were there when the second portion was");
}

#[test]
fn ids_that_the_server_sends_are_kept() {
    let ids = |ids: &[u32]| event(&json!({ "choices": [{ "text": "x", "token_ids": ids }] }));
    let server = StandIn::start(move |_| vec![head(), ids(&[8]), ids(&[9, 10]), usage(3, 3), done()]);
    let round = settled(&server).round(&ask(), &|| true).unwrap();
    assert_eq!(round.ids, Reading::Available(vec![8, 9, 10]));
    assert_eq!(round.tokens_after_first_chunk, Reading::Available([2, 2]));
}

#[test]
fn one_connection_serves_all_rounds_and_its_making_is_a_number_of_its_own() {
    let server = StandIn::start(|_| vec![head(), text("a"), usage(3, 1), done()]);
    let clock = settled(&server);
    for _ in 0..4 {
        clock.round(&ask(), &|| true).unwrap();
    }
    assert_eq!(server.connections(), 1);
    let made = clock.connections_ns();
    assert!(made.len() == 1 && made[0] > 0, "{made:?}");
    assert_eq!(server.seen().len(), 5, "the settling request and four rounds");
}

#[test]
fn a_connection_that_the_server_closes_is_made_again_and_counted() {
    let closing = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    let server = StandIn::start(move |_| {
        let whole = format!("{closing}data: {{\"choices\":[{{\"text\":\"a\"}}]}}\n\ndata: [DONE]\n\n");
        vec![Act::Write(whole), Act::Close]
    });
    let clock = settled(&server);
    clock.round(&ask(), &|| true).unwrap();
    assert_eq!(clock.connections_ns().len(), server.connections());
    assert!(server.connections() >= 2);
}

#[test]
fn parameters_that_a_server_refuses_are_left_out_and_named() {
    let server = StandIn::start(|seen| {
        let refused = |name: &str| {
            plain("400 Bad Request", "", &json!({ "error": { "message": format!("unknown field {name}") } }))
        };
        if seen.body.get("ignore_eos").is_some() {
            return vec![refused("ignore_eos")];
        }
        if seen.body.get("return_token_ids").is_some() {
            return vec![refused("extra")];
        }
        vec![head(), text("a"), usage(3, 1), done()]
    });
    let clock = settled(&server);
    assert_eq!(clock.endpoint(), Endpoint::Completions);
    assert_eq!(clock.given_up(), [Extra::ReturnTokenIds, Extra::IgnoreEos]);
    let last = server.seen().pop().unwrap();
    assert_eq!(last.body["stream_options"]["include_usage"], true);
    assert_eq!(last.body["prompt"], json!([5, 6, 7]));
}

#[test]
fn a_server_that_takes_no_ids_gets_text() {
    let server = StandIn::start(|seen| {
        if seen.body["prompt"].is_array() {
            return vec![plain("422 Unprocessable Entity", "", &json!({ "detail": "prompt must be a string" }))];
        }
        vec![head(), text("a"), usage(3, 1), done()]
    });
    assert_eq!(settled(&server).endpoint(), Endpoint::CompletionsText);
    assert!(server.seen().pop().unwrap().body["prompt"].is_string());
}

#[test]
fn a_busy_server_says_when_to_come_back() {
    let said = complaint(
        |_| {
            vec![plain("429 Too Many Requests", "retry-after: 7\r\n", &json!({ "error": { "message": "queue full" } }))]
        },
        SILENCE,
    );
    for part in ["429", "Retry-After: 7", "queue full"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn a_key_is_sent_and_its_lack_is_named() {
    let server = StandIn::start(|seen| match seen.authorization.as_deref() {
        Some("Bearer open") => vec![head(), text("a"), usage(3, 1), done()],
        _ => vec![plain("401 Unauthorized", "", &json!({ "error": { "message": "who are you" } }))],
    });
    let with = |key: Option<&str>| {
        let address = Address { url: format!("{}/v1/", server.url), key: key.map(str::to_string), silence: SILENCE };
        let mut clock = HttpClock::reach(&address, None).unwrap();
        clock.settle(&ask(), None, &|| true).map(|_| ()).map_err(|e| e.to_string())
    };
    assert_eq!(with(Some("open")), Ok(()));
    assert!(with(None).unwrap_err().contains("--api-key-env"));
    assert!(
        !format!("{:?}", Address { url: "u".into(), key: Some("secret".into()), silence: SILENCE }).contains("secret")
    );
}

#[test]
fn what_breaks_off_is_an_error_that_says_how_far_it_came() {
    type Script = fn(&Seen) -> Vec<Act>;
    let cases: [(&str, Script, &str); 6] = [
        ("closes early", |_| vec![head(), text("a"), text("b"), Act::Close], "after 2 chunks"),
        ("ends without [DONE]", |_| vec![head(), text("a"), Act::Write("0\r\n\r\n".into())], "after 1 chunks"),
        (
            "sends an error",
            |_| vec![head(), text("a"), event(&json!({ "error": { "message": "out of pages" } })), done()],
            "an error after 1 chunks: out of pages",
        ),
        ("sends rubbish", |_| vec![head(), chunk("data: <html>\n\n"), done()], "<html>"),
        (
            "does not stream",
            |_| vec![plain("200 OK", "", &json!({ "choices": [{ "text": "a" }] }))],
            "application/json",
        ),
        ("brings no token", |_| vec![head(), text(""), usage(3, 0), done()], "chunks without a token"),
    ];
    for (what, script, expected) in cases {
        let said = complaint(script, SILENCE);
        assert!(said.contains(expected), "{what}: {said}");
    }
}

#[test]
fn a_server_that_hangs_is_left() {
    const SHORT: Duration = Duration::from_millis(300);
    for (what, script) in [
        ("before the head", (|_| vec![Act::Wait(30_000)]) as fn(&Seen) -> Vec<Act>),
        ("between tokens", |_| vec![head(), text("a"), Act::Wait(30_000)]),
    ] {
        let said = complaint(script, SHORT);
        assert!(said.contains("nothing for 0.3 s") && said.contains("--timeout"), "{what}: {said}");
    }
}

#[test]
fn nobody_there_and_no_address_are_told_apart() {
    let reach = |url: &str| {
        let address = Address { url: url.into(), key: None, silence: SILENCE };
        HttpClock::reach(&address, None).map(|_| ()).unwrap_err().to_string()
    };
    assert!(reach("http://127.0.0.1:1").contains("a server that answers"));
    assert!(reach("localhost:8080").contains("http://HOST:PORT"));
}

#[test]
fn an_interrupted_answer_is_no_round() {
    let server = StandIn::start(|_| vec![head(), text("a"), usage(3, 1), done()]);
    let clock = settled(&server);
    assert!(clock.round(&ask(), &|| false).unwrap_err().to_string().contains("interrupted"));
}

#[test]
fn a_refusal_of_the_request_itself_is_told_and_not_that_of_the_last_way_to_ask() {
    let too_long = "this model's maximum context length is 8 tokens";
    let refusal = |status: &str, message: &str| vec![plain(status, "", &json!({ "error": { "message": message } }))];
    let said = complaint(
        move |seen| match seen.path.as_str() {
            "/v1/completions" => refusal("400 Bad Request", too_long),
            _ => refusal("404 Not Found", "no chat template"),
        },
        SILENCE,
    );
    assert!(said.contains("400") && said.contains(too_long) && said.contains("no chat template"), "{said}");
    assert!(said.find(too_long) < said.find("no chat template"), "{said}");
    let said = complaint(
        move |seen| match seen.path.as_str() {
            "/v1/completions" => refusal("404 Not Found", "no such path"),
            _ => refusal("400 Bad Request", too_long),
        },
        SILENCE,
    );
    assert!(said.contains(too_long) && !said.contains("check the address"), "{said}");
    let said = complaint(move |_| refusal("404 Not Found", "no such path"), SILENCE);
    assert!(said.contains("check the address"), "{said}");
}

#[test]
fn an_untimed_request_may_bring_no_token() {
    let server = StandIn::start(|seen| match seen.body["max_tokens"].as_u64() {
        Some(1) => vec![head(), text(""), usage(3, 1), done()],
        _ => vec![head(), text("a"), usage(3, 1), done()],
    });
    let clock = settled(&server);
    let prefix = Ask { output_tokens: 1, ..ask() };
    clock.prime(&prefix, &|| true).unwrap();
    assert!(clock.round(&prefix, &|| true).is_err(), "a timed one may not");
    clock.round(&ask(), &|| true).unwrap();
    assert!(clock.prime(&prefix, &|| false).unwrap_err().to_string().contains("interrupted"));
}

#[test]
fn an_empty_event_keeps_the_connection_and_is_nothing_else() {
    let server =
        StandIn::start(|_| vec![head(), chunk("data:\n\n"), text("a"), chunk("data: \n\n"), usage(3, 1), done()]);
    let round = settled(&server).round(&ask(), &|| true).unwrap();
    assert_eq!((round.chunks, round.tokens), (1, Reading::Available(1)));
}
