//! The arm's side of the lines: a loop over questions.

use std::io::{BufRead, Write};
use std::path::Path;
use tare_core::Fault;
use tare_model::{Model, ModelError};

use crate::LabError;
use crate::arm::hold::{Held, Home};
use crate::arm::protocol::{Answer, Ask, Load, VERSION, line, parse};
use crate::digests::DigestStore;

/// Answers questions until there are no more. A question that cannot be answered is answered with why; what it was about
/// is over then, but the loop goes on, so that the campaign ends the process in its own order.
///
/// # Errors
/// When a line cannot be read or written.
pub fn serve(home: &Home, questions: impl BufRead, mut answers: impl Write) -> Result<(), LabError> {
    let mut lines = questions.lines();
    let mut next = || -> Result<Option<Ask>, LabError> {
        let text = lines.next().transpose().map_err(|e| pipe("read", &e))?;
        Ok(text.map(|t| parse(&t)).transpose()?)
    };
    let mut say = |answer: &Answer| -> Result<(), LabError> {
        let text = line(answer)?;
        writeln!(answers, "{text}").and_then(|()| answers.flush()).map_err(|e| pipe("write", &e))
    };
    while let Some(ask) = next()? {
        match ask {
            Ask::Hello { protocol } => say(&hello(protocol, home))?,
            Ask::Quit => break,
            Ask::Load(load) => return hold(&load, home, &mut next, &mut say),
            other => say(&failed(&Fault::new("arm", "hello, load or quit first", format!("{other:?}"))))?,
        }
    }
    Ok(())
}

/// Everything after the load: the arm lives in here.
fn hold(
    load: &Load,
    home: &Home,
    next: &mut dyn FnMut() -> Result<Option<Ask>, LabError>,
    say: &mut dyn FnMut(&Answer) -> Result<(), LabError>,
) -> Result<(), LabError> {
    let model = match open(&load.model, home) {
        Ok(model) => model,
        Err(e) => return say(&failed(&e)),
    };
    let mut held = match Held::new(load, &model, home) {
        Ok(held) => held,
        Err(e) => return say(&failed(&e)),
    };
    say(&Answer::Loaded(Box::new(held.facts().clone())))?;
    while let Some(ask) = next()? {
        let done = |r: Result<(), LabError>| r.map_or_else(|e| failed(&e), |()| Answer::Done);
        let answer = match ask {
            Ask::Quit => break,
            Ask::Hello { protocol } => hello(protocol, home),
            Ask::Load(_) => failed(&Fault::new("arm", "one load", "a second")),
            Ask::WarmUp { tokens } => done(held.warm_up(tokens)),
            Ask::Prefill => done(held.prefill()),
            Ask::Decode { tokens, returned } => done(held.decode(tokens, Ask::baton(returned))),
            Ask::Finish => done(held.finish()),
            Ask::Rest => done(held.rest()),
            Ask::Judge { full } => {
                held.judge(full).map_or_else(|e| failed(&e), |judged| Answer::Judged(Box::new(judged)))
            }
        };
        say(&answer)?;
    }
    Ok(())
}

/// The model, with the digest of its values from an earlier process where the file is the one of before.
fn open(spec: &str, home: &Home) -> Result<Model, ModelError> {
    let model = Model::open(spec)?;
    if model.file().is_some() {
        let digest = DigestStore::at(&home.folder).of("values 1", Path::new(spec), || model.values_digest())?;
        model.trust_values_digest(digest);
    }
    Ok(model)
}

fn hello(protocol: u32, home: &Home) -> Answer {
    if protocol == VERSION {
        return Answer::Hello { protocol: VERSION, build: home.build.clone() };
    }
    let found = format!("version {protocol}");
    failed(
        &Fault::new("arm protocol", format!("version {VERSION}, which this build speaks"), found)
            .remedy("run the campaign with a build that speaks the same version"),
    )
}

fn failed(e: &dyn std::error::Error) -> Answer {
    let mut why = e.to_string();
    let mut source = e.source();
    while let Some(cause) = source {
        why = format!("{why}: {cause}");
        source = cause.source();
    }
    Answer::Failed { why }
}

fn pipe(doing: &str, e: &std::io::Error) -> LabError {
    Fault::new("arm", format!("to {doing} a line"), e.to_string()).into()
}
