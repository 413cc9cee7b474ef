//! Server-sent events out of bytes that arrive in any portions.

/// Reads a stream of events. An event is the `data:` lines before an empty line; everything else is left out, and so is
/// an event whose data is empty, which some gateways send to keep a connection alive.
#[derive(Debug, Default)]
pub(crate) struct EventReader {
    line: Vec<u8>,
    data: Option<String>,
    after_return: bool,
}

impl EventReader {
    /// The data of the events that `bytes` complete.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut complete = Vec::new();
        for &byte in bytes {
            let second_half = byte == b'\n' && self.after_return;
            self.after_return = byte == b'\r';
            match byte {
                _ if second_half => {}
                b'\n' | b'\r' => complete.extend(self.end_line()),
                other => self.line.push(other),
            }
        }
        complete
    }

    /// Whether a part of an event is left: the stream was cut.
    pub(crate) fn is_torn(&self) -> bool {
        self.data.is_some() || !self.line.is_empty()
    }

    fn end_line(&mut self) -> Option<String> {
        let line = String::from_utf8_lossy(&self.line).into_owned();
        self.line.clear();
        if line.is_empty() {
            return self.data.take().filter(|data| !data.is_empty());
        }
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        if field == "data" {
            let value = value.strip_prefix(' ').unwrap_or(value);
            match &mut self.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => self.data = Some(value.to_string()),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str =
        ": ping\ndata: {\"a\":\"\u{e9}\"}\n\nevent: x\r\ndata:one\r\ndata: two\r\n\r\ndata: [DONE]\n\n";

    #[test]
    fn events_do_not_depend_on_the_portions() {
        let expected = ["{\"a\":\"\u{e9}\"}", "one\ntwo", "[DONE]"];
        for portion in 1..STREAM.len() {
            let mut reader = EventReader::default();
            let events: Vec<String> = STREAM.as_bytes().chunks(portion).flat_map(|p| reader.feed(p)).collect();
            assert_eq!(events, expected, "portions of {portion}");
            assert!(!reader.is_torn());
        }
    }

    #[test]
    fn an_event_without_data_is_no_event() {
        for empty in ["data:\n\n", "data: \n\n", "data\n\n", "\n\n", "event: ping\n\n", ":\n\n"] {
            let mut reader = EventReader::default();
            let events = reader.feed(format!("data: a\n\n{empty}data: b\n\n").as_bytes());
            assert_eq!(events, ["a", "b"], "{empty:?}");
            assert!(!reader.is_torn());
        }
    }

    #[test]
    fn a_torn_event_is_no_event() {
        let mut reader = EventReader::default();
        assert!(reader.feed(b"data: {\"half\":").is_empty());
        assert!(reader.is_torn());
    }
}
