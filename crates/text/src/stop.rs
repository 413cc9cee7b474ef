//! Stop strings, which may span tokens.

/// What one piece of text led to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopStep {
    /// Text that may be shown now.
    pub emit: String,
    /// Index of the stop string that ended the text, once one has; it stays set in later steps.
    pub stopped: Option<usize>,
}

/// Watches text for stop strings. Text that may be the beginning of one is held back and released as soon as it
/// cannot be. The outcome does not depend on how the text is cut into pieces.
///
/// Of several stop strings the one that is complete first wins; of those that end at the same place, the longest.
/// The stop string itself is never shown.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    /// With their index in the caller's list; empty strings are left out, since they would stop everything.
    stops: Vec<(usize, String)>,
    held: String,
    stopped: Option<usize>,
}

impl StopMatcher {
    /// Watches for `stops`; empty strings among them are ignored.
    pub fn new(stops: Vec<String>) -> Self {
        let stops = stops.into_iter().enumerate().filter(|(_, s)| !s.is_empty()).collect();
        Self { stops, held: String::new(), stopped: None }
    }

    /// Takes the next piece. After a stop everything is dropped.
    pub fn push(&mut self, text: &str) -> StopStep {
        if self.stopped.is_some() {
            return StopStep { emit: String::new(), stopped: self.stopped };
        }
        self.held.push_str(text);
        if let Some((start, index)) = self.first_stop() {
            self.stopped = Some(index);
            self.held.truncate(start);
            return StopStep { emit: std::mem::take(&mut self.held), stopped: self.stopped };
        }
        let keep_from = self.held.len() - self.longest_beginning();
        let rest = self.held.split_off(keep_from);
        StopStep { emit: std::mem::replace(&mut self.held, rest), stopped: None }
    }

    /// The text still held back when nothing follows.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Start and index of the stop string that is complete first.
    fn first_stop(&self) -> Option<(usize, usize)> {
        let found = self.stops.iter().filter_map(|(index, stop)| {
            let start = self.held.find(stop.as_str())?;
            Some((start + stop.len(), start, *index))
        });
        found.min().map(|(_, start, index)| (start, index))
    }

    /// Bytes at the end of the held text that begin a stop string without completing it.
    fn longest_beginning(&self) -> usize {
        let held = self.held.as_str();
        let of_stop = |stop: &str| {
            let mut cuts = stop.char_indices().map(|(i, _)| i).rev();
            cuts.find(|n| held.ends_with(&stop[..*n])).unwrap_or(0)
        };
        self.stops.iter().map(|(_, stop)| of_stop(stop)).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(emit: &str, stopped: Option<usize>) -> StopStep {
        StopStep { emit: emit.into(), stopped }
    }

    #[test]
    fn holds_back_what_may_become_a_stop_and_releases_it() {
        let mut m = StopMatcher::new(vec!["</s>".into(), "END".into()]);
        assert_eq!(m.push("a</"), step("a", None));
        assert_eq!(m.push("x E"), step("</x ", None));
        assert_eq!(m.push("N"), step("", None));
        assert_eq!(m.push("Dtail"), step("", Some(1)));
        assert_eq!(m.push("more"), step("", Some(1)));
        assert_eq!(m.finish(), "");
    }

    #[test]
    fn unfinished_beginnings_come_out_at_the_end() {
        let mut m = StopMatcher::new(vec!["abc".into(), String::new()]);
        assert_eq!(m.push("xab"), step("x", None));
        assert_eq!(m.finish(), "ab");
    }

    #[test]
    fn first_complete_wins_then_the_longest() {
        let mut m = StopMatcher::new(vec!["abcd".into(), "c".into()]);
        assert_eq!(m.push("abcd"), step("ab", Some(1)));
        let mut m = StopMatcher::new(vec!["c".into(), "bc".into()]);
        assert_eq!(m.push("abcd"), step("a", Some(1)));
    }
}
