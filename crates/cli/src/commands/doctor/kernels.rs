//! `tare doctor --kernels`: the matrix of formats, phases and instruction sets, and how far each cell is from its floor where
//! a record measured it.

mod measured;

use anyhow::Result;
use comfy_table::{ColumnConstraint, Table, Width, presets::UTF8_FULL_CONDENSED};
use serde_json::{Value, json};
use tare_core::Reading;
use tare_lab::On;
use tare_model::kernel_matrix::{Cell, Phase, cells};
use tare_ops::class::CLASSES;
use tare_ops::{Backend, Isa};

use crate::args::DoctorArgs;
use crate::settings::Settings;
use crate::setup::{cpu_config, on};
use measured::{Floor, Floors};

/// Prints the matrix of the backend that is asked for.
pub(super) fn run(args: &DoctorArgs, settings: &Settings) -> Result<()> {
    let on = on(&args.how, settings);
    let backend = on.backend(&cpu_config(&args.how)?)?;
    let cells = cells(backend.variants(), &backend.describe().isa);
    let floors = Floors::read(&args.ledger, &on);
    if args.json {
        println!("{}", as_json(&on, &cells, &floors));
    } else {
        print(&on, &cells, &floors);
    }
    Ok(())
}

fn as_json(on: &On, cells: &[Cell], floors: &Reading<Floors>) -> Value {
    let one = |c: &Cell| {
        let mut cell = json!(c);
        cell["readable"] = json!(c.is_readable());
        cell["floor"] = json!(floor(c, floors));
        cell
    };
    json!({ "backend": on.name(), "cells": cells.iter().map(one).collect::<Vec<_>>() })
}

/// What was measured of a cell, or why nothing was.
fn floor(cell: &Cell, floors: &Reading<Floors>) -> Reading<Floor> {
    match floors {
        Reading::Unavailable { why } => Reading::unavailable(why),
        Reading::Available(floors) => floors.of(cell).cloned().ok_or_else(|| "unmeasured".to_string()).into(),
    }
}

fn print(on: &On, cells: &[Cell], floors: &Reading<Floors>) {
    let mut levels: Vec<Isa> = cells.iter().map(|c| c.level).collect();
    levels.dedup();
    for (i, level) in levels.iter().enumerate() {
        let up_to = if i == 0 { "as the host is" } else { "with --isa" };
        println!("{}, kernels up to {level} ({up_to})", on.name());
        let of_level: Vec<&Cell> = cells.iter().filter(|c| c.level == *level).collect();
        println!("{}", table(&of_level, floors));
    }
    println!("readable: plain Rust. fallback: right, but something faster exists or should.");
    match floors {
        Reading::Unavailable { why } => println!("percent of floor: unavailable: {why}"),
        Reading::Available(f) => {
            println!(
                "percent: of the floor of a whole phase of a record, whose streamed weights had that format; cells"
            );
            println!("without one are unmeasured. The records:");
            f.records().iter().for_each(|line| println!("  {line}"));
        }
    }
}

/// One row for all formats and classes of an operator whose three phases read alike.
fn table(cells: &[&Cell], floors: &Reading<Floors>) -> Table {
    let mut rows: Vec<(Of, [String; 3])> = Vec::new();
    for three in cells.chunks(Phase::ALL.len()) {
        let [first, ..] = three else { continue };
        let texts = [0, 1, 2].map(|i| three.get(i).map_or_else(String::new, |c| text(c, floors)));
        let format = first.format.map_or_else(|| "-".to_string(), |f| f.to_string());
        rows.push((Of { operator: first.operator.to_string(), format, class: first.class.to_string() }, texts));
    }
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["operator", "format", "class", "1 row", "16 rows", "512 rows"]);
    for (operator, formats, classes, [decode, few, prefill]) in merged(rows) {
        let classes = if classes.len() == CLASSES.len() { "all".to_string() } else { classes.join(" ") };
        table.add_row([operator, formats.join(" "), classes, decode, few, prefill]);
    }
    if let Some(formats) = table.column_mut(1) {
        formats.set_constraint(ColumnConstraint::UpperBoundary(Width::Fixed(32)));
    }
    table
}

/// What a row of the table is about.
struct Of {
    operator: String,
    format: String,
    class: String,
}

type Row = (String, Vec<String>, Vec<String>, [String; 3]);

/// Classes of a format that read alike, then formats whose classes do: in the order in which each comes first.
fn merged(rows: Vec<(Of, [String; 3])>) -> Vec<Row> {
    let mut by_format: Vec<Row> = Vec::new();
    for (of, texts) in rows {
        let same = |r: &&mut Row| r.0 == of.operator && r.1[0] == of.format && r.3 == texts;
        match by_format.iter_mut().find(same) {
            Some(row) => row.2.push(of.class),
            None => by_format.push((of.operator, vec![of.format], vec![of.class], texts)),
        }
    }
    let mut merged: Vec<Row> = Vec::new();
    for row in by_format {
        match merged.iter_mut().find(|m| m.0 == row.0 && m.2 == row.2 && m.3 == row.3) {
            Some(same) => same.1.extend(row.1),
            None => merged.push(row),
        }
    }
    merged
}

/// A kernel without what its row says already, and what is to be said of it.
fn text(cell: &Cell, floors: &Reading<Floors>) -> String {
    let Some(key) = cell.kernel.available() else { return "none".to_string() };
    let without = |text: &str, part: &str| text.strip_prefix(part).unwrap_or(text).to_string();
    let mut short = without(key, &format!("{}.", cell.operator));
    if let Some(f) = cell.format {
        short = without(&short, &format!("{f}."));
    }
    let mut said: Vec<String> = Vec::new();
    if cell.is_readable() {
        said.push("readable".to_string());
    }
    if cell.fallback.is_some() {
        said.push("fallback".to_string());
    }
    if let Reading::Available(f) = floor(cell, floors) {
        let number = floors.available().and_then(|all| all.number_of(&f)).unwrap_or_default();
        said.push(format!("{:.0} % [{number}]", f.percent));
    }
    if said.is_empty() { short } else { format!("{short} ({})", said.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn row(operator: &str, format: &str, class: &str, text: &str) -> (Of, [String; 3]) {
        let of = Of { operator: operator.into(), format: format.into(), class: class.into() };
        (of, [0, 1, 2].map(|_| text.to_string()))
    }

    #[test]
    fn what_reads_alike_is_one_row() {
        let merged = merged(vec![
            row("linear", "f32", "f32", "avx2"),
            row("linear", "q4_0", "f32", "avx2"),
            row("linear", "q4_0", "w4a16", "avx2"),
            row("linear", "q4_0", "w4a8", "a8.avx2"),
            row("linear", "q4_1", "f32", "avx2"),
            row("linear", "q4_1", "w4a16", "avx2"),
            row("rope", "-", "f32", "avx2"),
        ]);
        let seen: BTreeMap<String, (String, String)> = merged
            .iter()
            .map(|(op, formats, classes, t)| (format!("{op} {}", formats.join(" ")), (classes.join(" "), t[0].clone())))
            .collect();
        assert_eq!(seen["linear q4_0 q4_1"], ("f32 w4a16".into(), "avx2".into()));
        assert_eq!(seen["linear q4_0"], ("w4a8".into(), "a8.avx2".into()));
        assert_eq!((seen.len(), merged.len()), (4, 4));
    }
}
