//! Pictures as text: shapes with classes, which the page's style colours for light, dark and paper.

use std::fmt::{Display, Write};

/// Text that may stand in HTML and SVG, attributes included.
pub(crate) fn escape(text: impl Display) -> String {
    let mut out = String::new();
    for c in text.to_string().chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

/// Where a text is anchored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// A picture that grows. Coordinates are in pixels of its view box.
#[derive(Debug)]
pub(crate) struct Picture {
    width: f64,
    height: f64,
    body: String,
}

impl Picture {
    pub(crate) fn new(width: f64, height: f64) -> Self {
        Self { width, height, body: String::new() }
    }

    fn push(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _infallible = self.body.write_fmt(element);
        self.body.push('\n');
    }

    /// A rectangle from `left` to `right`, in whichever order; `title` is shown when somebody points at it.
    pub(crate) fn bar(&mut self, class: &str, (left, right): (f64, f64), (y, height): (f64, f64), title: &str) {
        let (x, width) = (left.min(right), (right - left).abs());
        let title = escape(title);
        self.push(format_args!(
            r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}"><title>{title}</title></rect>"#
        ));
    }

    pub(crate) fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        self.push(format_args!(r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#));
    }

    pub(crate) fn dot(&mut self, class: &str, (x, y): (f64, f64), radius: f64, title: &str) {
        let title = escape(title);
        self.push(format_args!(
            r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="{radius:.1}"><title>{title}</title></circle>"#
        ));
    }

    pub(crate) fn text(&mut self, class: &str, (x, y): (f64, f64), anchor: Anchor, text: impl Display) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escape(text);
        self.push(format_args!(r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#));
    }

    /// The picture with its name and what it says, for those who cannot see it.
    pub(crate) fn finish(self, id: &str, title: &str, description: &str) -> String {
        let Self { width, height, body } = self;
        let (title, description) = (escape(title), escape(description));
        format!(
            "<svg viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\" \
             xmlns=\"http://www.w3.org/2000/svg\">\n<title id=\"{id}-t\">{title}</title>\n<desc id=\"{id}-d\">{description}</desc>\n\
             {body}</svg>\n"
        )
    }
}

/// A mapping of values to places, straight or logarithmic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    logarithmic: bool,
}

impl Scale {
    /// Values from 0 to at least `high`, between two places.
    pub(crate) fn from_zero(high: f64, (from, to): (f64, f64)) -> Self {
        Self { low: 0.0, high: if high > 0.0 { high } else { 1.0 }, from, to, logarithmic: false }
    }

    /// Ratios that hold all of `values` and 1, with a little room, between two places.
    pub(crate) fn of_ratios(values: impl Iterator<Item = f64>, (from, to): (f64, f64)) -> Self {
        let usable = values.filter(|v| v.is_finite() && *v > 0.0);
        let (low, high) = usable.fold((1.0f64, 1.0f64), |(l, h), v| (l.min(v), h.max(v)));
        let room = ((high / low).ln() * 0.06).max(0.01);
        Self { low: low * (-room).exp(), high: high * room.exp(), from, to, logarithmic: true }
    }

    pub(crate) fn at(&self, value: f64) -> f64 {
        let share = if self.logarithmic {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// A handful of round values.
    pub(crate) fn ticks(&self) -> Vec<f64> {
        if self.logarithmic && self.high / self.low > 2.5 {
            for steps in [&[1.0, 1.5, 2.0, 3.0, 5.0, 7.0][..], &[1.0, 2.0, 5.0], &[1.0]] {
                let decades = -6..=6;
                let all = decades.flat_map(|d| steps.iter().map(move |s| s * 10f64.powi(d)));
                let inside: Vec<f64> = all.filter(|v| (self.low..=self.high).contains(v)).collect();
                if (3..=8).contains(&inside.len()) {
                    return inside;
                }
            }
        }
        let span = self.high - self.low;
        let rough = span / 5.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| *s >= rough).unwrap_or(rough);
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step + 1e-9).floor() as i64;
        (first..=last).map(|n| n as f64 * step).collect()
    }
}

/// A number with as many digits as it needs, three significant ones at most.
pub(crate) fn short(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 || v == 0.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 0.1 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_string() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_stays_text() {
        let mut p = Picture::new(10.0, 10.0);
        p.text("a", (1.0, 2.0), Anchor::Middle, "<script>&\"'");
        p.bar("b", (5.0, 2.0), (0.0, 1.0), "</title><b>");
        let svg = p.finish("x", "<t>", "</desc>");
        assert!(!svg.contains("<script") && !svg.contains("<b>") && !svg.contains("<t>"), "{svg}");
        assert_eq!(svg.matches("</desc>").count(), 1);
        assert!(svg.contains(r#"x="2.0""#) && svg.contains(r#"width="3.0""#), "{svg}");
    }

    #[test]
    fn scales_hold_what_they_are_made_for_and_their_ticks_lie_inside() {
        for values in [vec![0.5, 3.0], vec![0.98, 1.01], vec![1.0], vec![0.01, 0.9], vec![120.0], vec![f64::NAN, 2.0]] {
            let scale = Scale::of_ratios(values.iter().copied(), (100.0, 500.0));
            for v in values.iter().filter(|v| v.is_finite()) {
                assert!((100.0..=500.0).contains(&scale.at(*v)), "{v}");
            }
            let ticks = scale.ticks();
            assert!((1..=12).contains(&ticks.len()), "{values:?}: {ticks:?}");
            assert!(ticks.iter().all(|t| scale.at(*t) > 100.0 - 1e-9 && scale.at(*t) < 500.0 + 1e-9), "{ticks:?}");
            assert!(ticks.windows(2).all(|w| w[0] < w[1]), "{ticks:?}");
        }
        let scale = Scale::from_zero(42.0, (0.0, 84.0));
        assert_eq!((scale.at(21.0), scale.at(-1.0), scale.at(99.0)), (42.0, 0.0, 84.0));
        assert_eq!(scale.ticks(), [0.0, 10.0, 20.0, 30.0, 40.0]);
    }

    #[test]
    fn numbers_are_short() {
        let shown: Vec<String> = [0.0, 1.0, 1.25, 12.34, 123.4, 0.0123, 0.5].map(short).to_vec();
        assert_eq!(shown, ["0", "1", "1.25", "12.3", "123", "0.012", "0.5"]);
    }
}
