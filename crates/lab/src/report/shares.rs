//! The groups of a step as bars, once or before and after, each with its floor.

use super::page::table;
use super::svg::{Anchor, Picture, Scale, short};

const WIDTH: f64 = 860.0;
const PLOT: (f64, f64) = (150.0, 600.0);
const BAR: f64 = 16.0;
const GAP: f64 = 14.0;
const TOP: f64 = 12.0;
const FOOT: f64 = 44.0;

/// One replay of a step.
#[derive(Clone, Debug)]
pub(crate) struct Side {
    /// `before`, `after`, or nothing.
    pub(crate) name: String,
    /// Id of the document.
    pub(crate) evidence: String,
    /// In the order of the plan.
    pub(crate) groups: Vec<Group>,
    /// What the step takes beyond its groups, in nanoseconds.
    pub(crate) remainder_ns: f64,
}

/// One group of operators.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) name: String,
    /// Median of all its calls.
    pub(crate) ns: f64,
    /// Of the sum of the medians.
    pub(crate) share_percent: f64,
    /// Least time, where it is known.
    pub(crate) floor_ns: Option<f64>,
    /// 100 at the floor, or why not known.
    pub(crate) percent_of_floor: Result<f64, String>,
}

/// The picture of one or two replays of a step.
#[derive(Clone, Debug)]
pub(crate) struct Shares {
    /// Unique on the page.
    pub(crate) id: String,
    /// What the picture shows.
    pub(crate) title: String,
    /// One, or before and after.
    pub(crate) sides: Vec<Side>,
}

impl Shares {
    /// The picture and the table beside it.
    pub(crate) fn draw(&self) -> String {
        format!("{}{}", self.picture(), self.table())
    }

    /// Names of the groups of all sides, the first side's order first.
    fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for group in self.sides.iter().flat_map(|s| &s.groups) {
            if !names.contains(&group.name.as_str()) {
                names.push(&group.name);
            }
        }
        names
    }

    fn picture(&self) -> String {
        let names = self.names();
        let row = BAR * self.sides.len() as f64 + GAP;
        let bottom = TOP + row * names.len() as f64;
        let longest = self.sides.iter().flat_map(|s| &s.groups).map(|g| g.ns).fold(0.0, f64::max);
        let scale = Scale::from_zero(longest / 1e6, PLOT);
        let mut p = Picture::new(WIDTH, bottom + FOOT);
        for tick in scale.ticks() {
            p.line("grid", (scale.at(tick), TOP), (scale.at(tick), bottom));
            p.text("tick", (scale.at(tick), bottom + 16.0), Anchor::Middle, short(tick));
        }
        p.text(
            "axis",
            ((PLOT.0 + PLOT.1) / 2.0, bottom + 35.0),
            Anchor::Middle,
            "ms of one step; the tick in a bar is its floor",
        );
        for (n, name) in names.iter().enumerate() {
            let top = TOP + row * n as f64 + GAP / 2.0;
            p.text("label", (PLOT.0 - 14.0, top + (row - GAP) / 2.0 + 4.0), Anchor::End, name);
            for (i, side) in self.sides.iter().enumerate() {
                if let Some(group) = side.groups.iter().find(|g| g.name == *name) {
                    group.draw(&mut p, top + BAR * i as f64, i, side, &scale);
                }
            }
        }
        p.finish(&self.id, &self.title, &self.description())
    }

    fn description(&self) -> String {
        let side = |s: &Side| {
            let groups = s.groups.iter().map(|g| format!("{} {:.1} %", g.name, g.share_percent));
            format!("{} {}: {}.", s.name, s.evidence, groups.collect::<Vec<_>>().join(", "))
        };
        self.sides.iter().map(side).collect::<Vec<_>>().join(" ")
    }

    fn table(&self) -> String {
        let side = |s: &Side| {
            let group = |g: &Group| {
                let floor = match &g.percent_of_floor {
                    Ok(percent) => format!("{percent:.1} %"),
                    Err(why) => format!("unavailable: {why}"),
                };
                let evidence = [s.name.as_str(), &s.evidence].join(" ");
                vec![g.name.clone(), evidence, format!("{:.4}", g.ns / 1e6), format!("{:.1} %", g.share_percent), floor]
            };
            let remainder = vec![
                "the step beyond its groups".to_string(),
                [s.name.as_str(), &s.evidence].join(" "),
                format!("{:.4}", s.remainder_ns / 1e6),
                String::new(),
                String::new(),
            ];
            s.groups.iter().map(group).chain([remainder]).collect::<Vec<_>>()
        };
        let rows: Vec<Vec<String>> = self.sides.iter().flat_map(side).collect();
        table(
            &format!("The numbers of: {}", self.title),
            &["group", "evidence", "median ms", "share", "percent of floor"],
            &rows,
        )
    }
}

impl Group {
    fn draw(&self, p: &mut Picture, top: f64, side: usize, of: &Side, scale: &Scale) {
        let class = ["bar first", "bar second"][side.min(1)];
        let end = scale.at(self.ns / 1e6);
        let title = format!("{} {}: {:.4} ms, {:.1} %", of.name, self.name, self.ns / 1e6, self.share_percent);
        p.bar(class, (PLOT.0, end), (top, BAR - 2.0), title.trim());
        if let Some(floor) = self.floor_ns {
            let x = scale.at(floor / 1e6);
            p.line("floor", (x, top - 1.0), (x, top + BAR - 1.0));
        }
        let floor = self.percent_of_floor.as_ref().map_or_else(|_| String::new(), |f| format!(", {f:.0} % of floor"));
        let text = format!("{} {:.1} %{floor}", of.name, self.share_percent);
        p.text("about", (PLOT.1 + 14.0, top + BAR - 5.0), Anchor::Start, text.trim());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(name: &str, ns: [f64; 2]) -> Side {
        let group = |name: &str, ns: f64, floor: Option<f64>| Group {
            name: name.into(),
            ns,
            share_percent: ns / 1e4,
            floor_ns: floor,
            percent_of_floor: floor.map(|f| 100.0 * f / ns).ok_or_else(|| "no ceiling".to_string()),
        };
        let groups = vec![group("down", ns[0], Some(2e5)), group("norm", ns[1], None)];
        Side { name: name.into(), evidence: format!("doc-{name}"), groups, remainder_ns: 5e4 }
    }

    #[test]
    fn before_and_after_stand_side_by_side() {
        let shares = Shares {
            id: "s".into(),
            title: "A step".into(),
            sides: vec![side("before", [6e5, 4e5]), side("after", [3e5, 4e5])],
        };
        let html = shares.draw();
        assert_eq!((html.matches("bar first").count(), html.matches("bar second").count()), (2, 2));
        assert_eq!(html.matches(r#"class="floor""#).count(), 2, "where a floor is known");
        assert!(html.contains("unavailable: no ceiling") && html.contains("doc-before") && html.contains("doc-after"));
        assert_eq!(html.matches("beyond its groups").count(), 2);
    }

    #[test]
    fn a_group_of_one_side_alone_is_drawn() {
        let mut after = side("after", [3e5, 4e5]);
        after.groups[1].name = "fused".into();
        let shares = Shares { id: "s".into(), title: "A step".into(), sides: vec![side("before", [6e5, 4e5]), after] };
        assert_eq!(shares.names(), ["down", "norm", "fused"]);
    }
}
