//! `tare study`: campaigns.

mod verdicts;

use anyhow::{Result, bail};
use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};
use serde_json::json;
use tare_evidence::campaign::CampaignOutcome;
use tare_evidence::record::Role;
use tare_lab::Study;
use tare_lab::campaign::Closed;

use crate::args::{CampaignArgs, OtherStudy, StudyArgs};
use crate::campaigning::{Ready, conduct};
use crate::settings::Settings;

/// Runs `tare study`.
pub(crate) fn run(args: &StudyArgs, settings: &Settings) -> Result<()> {
    if let Some(OtherStudy::Ops(ops)) = &args.other {
        return crate::commands::ops::run(ops, settings);
    }
    let Some(name) = args.study.as_deref().filter(|_| !args.list) else { return list(args.run.json) };
    let mut study = Study::find(name)?;
    if let Some(n) = args.rounds {
        (study.rounds, study.power, study.role) = (Some(n), None, Role::Screening);
    }
    campaign(study, &args.run, settings)
}

/// What every study inside the binary asks.
fn list(as_json: bool) -> Result<()> {
    let studies = Study::names().map(Study::find).collect::<Result<Vec<_>, _>>()?;
    if as_json {
        println!("{}", json!(studies));
        return Ok(());
    }
    for s in &studies {
        let arms: Vec<&str> = s.arms.iter().map(|a| a.label.as_str()).collect();
        println!("{:27} {}", s.name, s.question);
        println!("{:27} {} of {}, {} rounds", "", s.design.name(), arms.join(", "), s.planned_rounds()?);
    }
    Ok(())
}

/// From a study to its table.
pub(crate) fn campaign(study: Study, args: &CampaignArgs, settings: &Settings) -> Result<()> {
    let ready = Ready::new(study, settings)?;
    if args.dry_run {
        return plan(&ready, args.json);
    }
    let closed = conduct(&ready, args, settings)?;
    if args.json {
        println!("{}", json!({ "campaign": closed.document, "path": closed.path, "records": ids(&closed) }));
    } else {
        verdicts::print(&closed);
    }
    match &closed.document.body.outcome {
        CampaignOutcome::Ruled(_) => Ok(()),
        CampaignOutcome::Unruled { why } => bail!("no verdict: {why}; {}", closed.path.display()),
    }
}

fn ids(closed: &Closed) -> Vec<&str> {
    closed.records.iter().map(|r| r.id.as_str()).collect()
}

/// What would run: arms with their binaries and models, and the order of the first rounds.
fn plan(ready: &Ready, as_json: bool) -> Result<()> {
    let study = &ready.study;
    let orders = (0..ready.plan.rounds.min(4)).map(|r| ready.plan.order(r)).collect::<Result<Vec<_>, _>>()?;
    if as_json {
        let arms: Vec<_> =
            ready.starts.iter().map(|s| json!({ "arm": s.spec, "binary": s.binary, "model": s.model })).collect();
        println!(
            "{}",
            json!({ "study": study, "planned_rounds": ready.plan.rounds, "arms": arms, "first_orders": orders })
        );
        return Ok(());
    }
    println!("{}: {}", study.name, study.question);
    println!("  hypothesis  {}", study.hypothesis);
    println!("  falsifier   {}", study.falsifier);
    println!("  misleads    {}", study.misleads);
    let w = &ready.plan.work;
    println!("  work        {}, {}; {} decides", w.model, w.lengths(), study.metric.name());
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["arm", "what", "binary", "model"]);
    for s in &ready.starts {
        let a = &s.spec;
        let word = |name: &str, value: &Option<String>| value.as_ref().map(|v| format!("{name} {v}"));
        let what: Vec<String> = [
            word("peer", &a.peer),
            word("plan", &a.plan),
            word("class", &a.class),
            word("backend", &a.backend),
            a.threads.map(|n| format!("{n} threads")),
            a.keep_workers.then(|| "every worker kept in".to_string()),
            word("isa", &a.isa),
            a.delay.as_ref().map(|d| format!("{} % delay in {}", d.percent, d.group)),
        ]
        .into_iter()
        .flatten()
        .collect();
        table.add_row([a.label.clone(), what.join(", "), s.binary.display().to_string(), s.model.clone()]);
    }
    for (label, kind) in study.ceilings() {
        let none = || "none".to_string();
        table.add_row([label.to_string(), format!("the ceiling `{}`", kind.ceiling()), none(), none()]);
    }
    println!("{table}");
    println!("  {} rounds, design {}; the first ones:", ready.plan.rounds, study.design.name());
    for (n, order) in orders.iter().enumerate() {
        println!("    round {}  {}", n + 1, order.join(", "));
    }
    Ok(())
}
