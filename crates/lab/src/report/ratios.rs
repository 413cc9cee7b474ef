//! Ratios to a denominator: a bar from 1, the interval, every sample as a dot, and the band that equal arms fill.

use tare_evidence::stats;

use super::page::table;
use super::svg::{Anchor, Picture, Scale, escape, short};

const WIDTH: f64 = 860.0;
/// Where the bars begin and end.
const PLOT: (f64, f64) = (230.0, 600.0);
const ROW: f64 = 46.0;
const TOP: f64 = 12.0;
const FOOT: f64 = 44.0;
/// Scaled median absolute deviations from the median beyond which a sample is pointed out.
const FAR: f64 = 3.5;
/// From a median absolute deviation to a standard deviation, were the samples normal.
const TO_DEVIATION: f64 = 1.4826;

/// One arm.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// Its label.
    pub(crate) label: String,
    /// Class and bytes, under the label.
    pub(crate) about: String,
    /// What is drawn.
    pub(crate) shown: Shown,
    /// The verdict, or another word.
    pub(crate) verdict: String,
    /// Id of its record, and whatever else a table should say: name and value.
    pub(crate) facts: Vec<(&'static str, String)>,
}

/// What is drawn of an arm.
#[derive(Clone, Debug)]
pub(crate) enum Shown {
    /// The denominator.
    Denominator,
    /// Its ratio, all in denominator time / arm time: above 1 is faster.
    Ratio { ratio: f64, interval: Option<(f64, f64)>, samples: Vec<f64> },
    /// Nothing: these words instead.
    Words(String),
}

/// A picture of several arms.
#[derive(Clone, Debug)]
pub(crate) struct Ratios {
    /// Unique on the page.
    pub(crate) id: String,
    /// What the picture shows.
    pub(crate) title: String,
    /// What the axis shows.
    pub(crate) axis: String,
    /// The smallest log-ratio that the campaign can tell from none.
    pub(crate) band: Option<f64>,
    /// In order.
    pub(crate) rows: Vec<Row>,
}

/// Which samples lie far from the others. They are pointed out and never left out.
pub(crate) fn far_out(samples: &[f64]) -> Vec<bool> {
    let logs: Vec<f64> = samples.iter().map(|s| s.ln()).collect();
    let (Some(median), Some(mad)) = (stats::median(&logs), stats::mad(&logs)) else { return Vec::new() };
    logs.iter().map(|l| mad > 0.0 && (l - median).abs() > FAR * TO_DEVIATION * mad).collect()
}

impl Ratios {
    /// The picture and the table beside it.
    pub(crate) fn draw(&self) -> String {
        format!("{}{}", self.picture(), self.table())
    }

    fn scale(&self) -> Scale {
        let band = self.band.into_iter().flat_map(|b| [b.exp(), (-b).exp()]);
        let of_row = |row: &Row| match &row.shown {
            Shown::Ratio { ratio, interval, samples } => {
                let ends = interval.iter().flat_map(|(l, h)| [*l, *h]).filter(|v| v.is_finite());
                samples.iter().copied().chain(ends).chain([*ratio]).collect()
            }
            _ => Vec::new(),
        };
        Scale::of_ratios(self.rows.iter().flat_map(of_row).chain(band), PLOT)
    }

    fn picture(&self) -> String {
        let scale = self.scale();
        let bottom = TOP + ROW * self.rows.len() as f64;
        let mut p = Picture::new(WIDTH, bottom + FOOT);
        if let Some(band) = self.band {
            let title = format!("equal arms differ by up to {:.2} % here", 100.0 * band.exp_m1());
            p.bar("band", (scale.at((-band).exp()), scale.at(band.exp())), (TOP, bottom - TOP), &title);
        }
        for tick in scale.ticks() {
            let x = scale.at(tick);
            p.line("grid", (x, TOP), (x, bottom));
            p.text("tick", (x, bottom + 16.0), Anchor::Middle, format!("{}x", short(tick)));
        }
        p.line("one", (scale.at(1.0), TOP), (scale.at(1.0), bottom));
        p.text("axis", ((PLOT.0 + PLOT.1) / 2.0, bottom + 35.0), Anchor::Middle, &self.axis);
        for (n, row) in self.rows.iter().enumerate() {
            draw_row(&mut p, row, TOP + ROW * n as f64, &scale);
        }
        p.finish(&self.id, &self.title, &self.description())
    }

    fn description(&self) -> String {
        let said = self.rows.iter().map(|row| format!("{}: {}.", row.label, row.said()));
        said.collect::<Vec<_>>().join(" ")
    }

    fn table(&self) -> String {
        let names: Vec<&str> = self.rows.iter().flat_map(|r| &r.facts).fold(Vec::new(), |mut all, (name, _)| {
            if !all.contains(name) {
                all.push(name);
            }
            all
        });
        let head: Vec<&str> = ["arm", "ratio", "samples", "verdict"].into_iter().chain(names.iter().copied()).collect();
        let cells = |row: &Row| {
            let samples = match &row.shown {
                Shown::Ratio { samples, .. } => {
                    let far = far_out(samples).iter().filter(|f| **f).count();
                    if far > 0 { format!("{}, {far} far out", samples.len()) } else { samples.len().to_string() }
                }
                _ => String::new(),
            };
            let fact = |name: &&str| row.facts.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
            let facts = names.iter().map(|name| fact(name).unwrap_or_default());
            [row.label.clone(), row.said(), samples, row.verdict.clone()].into_iter().chain(facts).collect::<Vec<_>>()
        };
        table(&format!("The numbers of: {}", self.title), &head, &self.rows.iter().map(cells).collect::<Vec<_>>())
    }
}

impl Row {
    /// The ratio in words.
    fn said(&self) -> String {
        match &self.shown {
            Shown::Denominator => "1, the denominator".to_string(),
            Shown::Words(words) => words.clone(),
            Shown::Ratio { ratio, interval, .. } => match interval {
                Some((low, high)) => format!("{ratio:.3} [{low:.3}, {high:.3}]"),
                None => format!("{ratio:.3}, no interval"),
            },
        }
    }
}

fn draw_row(p: &mut Picture, row: &Row, top: f64, scale: &Scale) {
    let middle = top + ROW / 2.0;
    p.text("label", (PLOT.0 - 14.0, middle - 3.0), Anchor::End, &row.label);
    p.text("about", (PLOT.0 - 14.0, middle + 12.0), Anchor::End, &row.about);
    match &row.shown {
        Shown::Denominator => {
            p.dot("denominator", (scale.at(1.0), middle), 6.0, "the denominator");
            p.text("value", (PLOT.1 + 14.0, middle - 3.0), Anchor::Start, "1, the denominator");
        }
        Shown::Words(words) => p.text("about", (PLOT.1 + 14.0, middle + 4.0), Anchor::Start, words),
        Shown::Ratio { ratio, interval, samples } => {
            let class = if *ratio >= 1.0 { "bar faster" } else { "bar slower" };
            p.bar(class, (scale.at(1.0), scale.at(*ratio)), (middle - 9.0, 18.0), &row.said());
            if let Some((low, high)) = interval {
                let ends = (scale.at(*low), scale.at(*high));
                p.line("interval", (ends.0, middle), (ends.1, middle));
                for x in [ends.0, ends.1] {
                    p.line("interval", (x, middle - 5.0), (x, middle + 5.0));
                }
            }
            for (n, (sample, far)) in samples.iter().zip(far_out(samples)).enumerate() {
                let y = middle + [0.0, -11.0, 11.0, -6.0, 6.0][n % 5];
                let (class, word) = if far { ("sample far", ", far out") } else { ("sample", "") };
                p.dot(
                    class,
                    (scale.at(*sample), y),
                    if far { 4.0 } else { 2.6 },
                    &format!("sample {n}: {sample:.4}{word}"),
                );
            }
            p.text("value", (PLOT.1 + 14.0, middle - 3.0), Anchor::Start, row.said());
            p.text("about", (PLOT.1 + 14.0, middle + 12.0), Anchor::Start, &row.verdict);
        }
    }
}

/// What the marks of these pictures mean.
pub(crate) fn legend() -> String {
    let marks = [
        ("bar", "ratio to the denominator, from 1 outwards"),
        ("interval", "the interval of the ratio"),
        ("dots", "one for each sample; a ring is far from the others, and still counts"),
        ("band", "what equal arms differ by on this host: nothing inside it is a finding"),
    ];
    marks.map(|(mark, means)| format!("<b>{}</b>: {}", escape(mark), escape(means))).join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratios() -> Ratios {
        let row = |label: &str, shown| Row {
            label: label.into(),
            about: "w4a16".into(),
            shown,
            verdict: "keep".into(),
            facts: vec![("record", format!("id-of-{label}"))],
        };
        Ratios {
            id: "r".into(),
            title: "Decode against base".into(),
            axis: "base time / arm time".into(),
            band: Some(0.02),
            rows: vec![
                row("base", Shown::Denominator),
                row(
                    "fast",
                    Shown::Ratio {
                        ratio: 1.5,
                        interval: Some((1.4, 1.6)),
                        samples: vec![1.49, 1.5, 1.51, 1.5, 1.52, 3.0],
                    },
                ),
                row("twin", Shown::Words("the kernels of base: drawn once".into())),
            ],
        }
    }

    #[test]
    fn every_sample_is_a_dot_and_far_ones_are_rings() {
        let html = ratios().draw();
        assert_eq!(html.matches(r#"class="sample"#).count(), 6);
        assert_eq!(html.matches(r#"class="sample far""#).count(), 1);
        assert!(html.contains("6, 1 far out"), "the table says so too");
    }

    #[test]
    fn every_row_stands_in_picture_description_and_table() {
        let html = ratios().draw();
        for label in ["base", "fast", "twin"] {
            assert!(html.contains(&format!("id-of-{label}")), "{label}");
            assert!(html.matches(&format!(">{label}<")).count() >= 2, "{label}: {html}");
        }
        let desc = html.split("<desc").nth(1).unwrap().split("</desc>").next().unwrap();
        assert!(desc.contains("fast: 1.500 [1.400, 1.600]") && desc.contains("drawn once"), "{desc}");
    }

    #[test]
    fn the_band_lies_around_one() {
        let html = ratios().draw();
        let band = html.split(r#"class="band" x=""#).nth(1).unwrap();
        let number = |text: &str| text.split('"').next().unwrap().parse::<f64>().unwrap();
        let (x, width) = (number(band), number(band.split(r#"width=""#).nth(1).unwrap()));
        let one = number(html.split(r#"class="one" x1=""#).nth(1).unwrap());
        assert!((x + width / 2.0 - one).abs() < 0.2, "{x} {width} {one}");
    }

    #[test]
    fn equal_samples_have_no_far_ones() {
        assert_eq!(far_out(&[1.0, 1.0, 1.0, 2.0]), [false; 4], "without a spread nothing is known to be far");
        assert!(far_out(&[]).is_empty());
    }
}
